/*
 * Errors as values: a code and one sentence.
 *
 * The caller owns a `struct err` (on its stack, ERR_INIT) and passes it down as the last parameter; NULL is allowed
 * and means "the code is enough". Nothing is allocated, so an error can be made after fork, in the guest program and
 * when memory is out. Every layer adds at most one noun phrase in front with err_ctx(). Each call returns the code,
 * so an error path is one line. Libraries fill errors, they never print them.
 */
#ifndef ERMITE_BASE_ERR_H
#define ERMITE_BASE_ERR_H

#include <stddef.h>

struct err {
	int code;      /* negative errno, 0 when nothing went wrong */
	char msg[480]; /* always terminated; empty when code is 0 */
};

#define ERR_INIT ((struct err){0})

/* Sets the message. code: a negative errno. Returns code. */
[[nodiscard, gnu::format(printf, 3, 4)]] int err_set(struct err *e, int code, const char *format, ...);

/* Sets the message and appends ": " and the text of errno. Returns -errno (-EIO should errno be 0). */
[[nodiscard, gnu::format(printf, 2, 3)]] int err_sys(struct err *e, const char *format, ...);

/* Like err_sys() for a call that returned its negative errno instead of setting errno. Returns code. */
[[nodiscard, gnu::format(printf, 3, 4)]] int err_code(struct err *e, int code, const char *format, ...);

/* Puts context and ": " in front of the message that is there; the oldest tail is cut when room runs out.
 * Returns code. */
[[nodiscard, gnu::format(printf, 3, 4)]] int err_ctx(struct err *e, int code, const char *format, ...);

/* The text of an errno value, positive or negative; a constant string, never NULL. */
const char *err_text(int code);

#endif
