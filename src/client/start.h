/*
 * What the client asks to be started inside a sandbox, as the frames that the executor reads: Strings, then one Start.
 * The keeper and the conduit pass them on.
 */
#ifndef ERMITE_CLIENT_START_H
#define ERMITE_CLIENT_START_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "stream.pb.h"

#define START_FRAMES_MAX 1258291u /* bytes of the frames of one start, 1.2 MiB */

struct start_request {
	uint32_t id;
	ermite_Kind kind;
	char *const *arguments;   /* NULL-terminated */
	char *const *environment; /* NULL-terminated, or NULL for none */
	const char *user;
	const char *workdir;
	bool has_stdin;
	bool terminal;
	uint32_t rows, columns; /* of the terminal */
};

/* Checks what has to fit: strings together, user and directory. Returns 0 or -E2BIG with a sentence. */
[[nodiscard]] int start_check(const struct start_request *s, struct err *e);

/* Appends the frames. Returns 0, -E2BIG as start_check(), -ENOMEM or -ENOBUFS (out has no room). */
[[nodiscard]] int start_encode(const struct start_request *s, struct buf *out, struct err *e);

#endif
