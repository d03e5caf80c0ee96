/*
 * Masking the obvious way, to compare wire/mask.h with: every form is looked for at every position of the whole text.
 */
#ifndef ERMITE_TESTS_NAIVE_MASK_H
#define ERMITE_TESTS_NAIVE_MASK_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "wire/forms.h"

/* Appends the masked text to out. */
static inline void naive_mask(const struct forms *forms, const uint8_t *text, size_t n, struct buf *out)
{
	size_t forms_n = 0;
	const struct form *list = forms_list(forms, &forms_n);
	bool *hidden = calloc(n + 1, sizeof(*hidden));
	if (!hidden)
		abort();
	for (size_t i = 0; i < forms_n; i++)
		for (size_t at = 0; at + list[i].n <= n; at++)
			if (memcmp(text + at, forms->text.p + list[i].at, list[i].n) == 0)
				memset(hidden + at, true, list[i].n);
	for (size_t at = 0; at < n; at++) {
		if (!hidden[at])
			buf_add(out, text + at, 1);
		else if (!hidden[at + 1])
			buf_str(out, "***");
	}
	free(hidden);
}

#endif
