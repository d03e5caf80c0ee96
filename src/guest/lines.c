#include "guest/lines.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void lines_init(struct lines *l, int fd)
{
	l->fd = fd;
	l->at = 0;
	l->have = 0;
	l->ended = false;
	l->too_long = false;
}

/* Makes room behind the bytes at hand and reads more; a line that fills the buffer is given up. */
static int lines_fill(struct lines *l, struct err *e)
{
	memmove(l->text, l->text + l->at, l->have - l->at);
	l->have -= l->at;
	l->at = 0;
	if (l->have == sizeof(l->text) - 1) {
		l->too_long = true;
		l->have = 0;
	}
	ssize_t n = read(l->fd, l->text + l->have, sizeof(l->text) - 1 - l->have);
	if (n < 0)
		return errno == EINTR ? 0 : err_sys(e, "read lines");
	l->have += (size_t)n;
	l->ended = n == 0;
	return 0;
}

int lines_next(struct lines *l, char **ret, struct err *e)
{
	for (;;) {
		char *start = l->text + l->at;
		char *newline = memchr(start, '\n', l->have - l->at);
		if (!newline && !l->ended) {
			int r = lines_fill(l, e);
			if (r < 0)
				return r;
			continue;
		}
		if (!newline && l->at == l->have)
			return 0;
		char *end = newline ? newline : l->text + l->have;
		bool whole = !l->too_long;
		*end = '\0';
		l->at = newline ? (size_t)(end - l->text) + 1 : l->have;
		l->too_long = false;
		if (whole) {
			*ret = start;
			return 1;
		}
	}
}
