/*
 * Lines of a small text file, read through a fixed buffer: /etc/passwd, /etc/group, /proc/net/unix.
 *
 * The text is the image's or the kernel's, so a line longer than the buffer is left out as a whole and memory never
 * grows. A last line without a newline counts.
 */
#ifndef ERMITE_GUEST_LINES_H
#define ERMITE_GUEST_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct lines {
	int fd; /* borrowed */
	size_t at, have;
	bool ended;
	bool too_long; /* the rest of the line at hand is thrown away */
	char text[8192];
};

/* Prepares reading from fd, which stays the caller's. */
void lines_init(struct lines *l, int fd);

/* Fetches the next line without its newline. Returns 1 and the line, which may be written to and is valid until the
 * next call; 0 at the end; a negative errno. */
[[nodiscard]] int lines_next(struct lines *l, char **ret, struct err *e);

#endif
