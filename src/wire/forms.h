/*
 * The forms of a secret: every text that a job is likely to print it as, for wire/mask.h to search.
 *
 * Forms are made once, before anything is searched, and may repeat: whoever uses them sorts them. White space around
 * a secret does not count: with less than MASK_FORM_MIN bytes inside, it has no forms, nor has such a line.
 */
#ifndef ERMITE_WIRE_FORMS_H
#define ERMITE_WIRE_FORMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "wire/mask.h"

/* One form: bytes of forms.text. */
struct form {
	uint32_t at, n;
};

struct forms {
	struct buf text;
	struct buf list; /* of struct form */
};

/* room: bytes of all secrets together. The longest escape makes six bytes of one, and there are few enough kinds of
 * forms for 160 bytes of text, and 64 forms, per byte of the secrets. */
#define FORMS_INIT(room)                                                                                     \
	((struct forms){BUF_INIT(160 * ((room) + 1)), BUF_INIT(64 * sizeof(struct form) * ((room) + 1))})

/* Frees the memory; wipes it first. */
void forms_done(struct forms *f);

/* Appends every form of the secret of n bytes. Returns false when it is too short to have any. That memory ran out
 * shows in buf_check() of text or list. */
bool forms_add(struct forms *f, const char *secret, size_t n);

/* The forms so far, borrowed until the next call; *ret_n is their number. */
struct form *forms_list(const struct forms *f, size_t *ret_n);

#endif
