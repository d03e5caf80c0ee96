/*
 * Standard input of a process: bytes from the host on their way into a pipe or terminal.
 *
 * What does not go in at once is kept, at most FRAME_WINDOW bytes of it since the host has no more credit; the memory
 * is mapped when it is first needed. Bytes that nobody will read are thrown away, and count as passed on.
 */
#ifndef ERMITE_GUEST_INPUT_H
#define ERMITE_GUEST_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

/* Told how many bytes have been passed on or thrown away since it was last told. */
typedef int input_passed_fn(void *data, uint32_t bytes, struct err *e);

struct input {
	struct loop *loop;
	struct source *source; /* while bytes wait */
	int fd;                /* owned, non-blocking; -1 once nothing more goes in */
	bool terminal;
	bool ended;    /* the host has sent all */
	uint8_t *kept; /* mapped, or NULL */
	size_t at, n;  /* what waits is kept[at .. at + n) */
	input_passed_fn *passed;
	void *data;
};

/* Prepares an input. Takes fd, which may be -1: then everything is thrown away. */
void input_init(struct input *in, struct loop *loop, int fd, bool terminal, input_passed_fn *passed,
		void *data);

/* Takes n bytes. Returns 0; -EPROTO when more than FRAME_WINDOW wait; or another negative errno. */
[[nodiscard]] int input_add(struct input *in, const uint8_t *p, size_t n, struct err *e);

/* No more bytes will come: closes a pipe, or types an end of file on a terminal, when all has gone in. */
void input_end(struct input *in);

/* Closes and frees everything; can be called twice. */
void input_done(struct input *in);

#endif
