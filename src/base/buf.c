#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BYTES = 64 };

void buf_done(struct buf *b)
{
	free(b->p);
	*b = BUF_INIT(b->max);
}

void buf_clear(struct buf *b)
{
	b->n = 0;
	b->bad = false;
	if (b->p)
		b->p[0] = '\0';
}

/* Makes room for n more bytes and the terminating zero. Returns where they go, or NULL (and bad). */
static char *room(struct buf *b, size_t n)
{
	size_t need = 0;
	if (b->bad || n > b->max - b->n || __builtin_add_overflow(b->n + n, 1, &need)) {
		b->bad = true;
		return NULL;
	}
	if (need > b->cap) {
		size_t cap = b->cap ? b->cap : FIRST_BYTES;
		while (cap < need)
			cap = cap > SIZE_MAX / 2 ? need : cap * 2;
		char *p = realloc(b->p, cap);
		if (!p) {
			b->bad = true;
			return NULL;
		}
		b->p = p;
		b->cap = cap;
	}
	return b->p + b->n;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
	char *at = room(b, n);
	if (!at)
		return;
	if (n > 0)
		memcpy(at, p, n);
	b->n += n;
	b->p[b->n] = '\0';
}

void buf_str(struct buf *b, const char *s)
{
	buf_add(b, s, strlen(s));
}

void buf_fmt(struct buf *b, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vsnprintf(NULL, 0, format, args);
	va_end(args);
	char *at = n < 0 ? NULL : room(b, (size_t)n);
	if (!at) {
		b->bad = true;
		return;
	}
	va_start(args, format);
	(void)vsnprintf(at, (size_t)n + 1, format, args);
	va_end(args);
	b->n += (size_t)n;
}

/* The length of the well-formed UTF-8 sequence at p (Unicode 15, table 3-7), or 0. n is at least 1. */
static size_t utf8_length(const uint8_t *p, size_t n)
{
	static const struct {
		uint8_t first_min, first_max, second_min, second_max, length;
	} rows[] = {
		{0x00, 0x7f, 0x00, 0x00, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
		{0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
	};
	size_t i = 0;
	while (i < sizeof(rows) / sizeof(rows[0]) && (p[0] < rows[i].first_min || p[0] > rows[i].first_max))
		i++;
	if (i == sizeof(rows) / sizeof(rows[0]) || rows[i].length > n)
		return 0;
	if (rows[i].length > 1 && (p[1] < rows[i].second_min || p[1] > rows[i].second_max))
		return 0;
	for (size_t j = 2; j < rows[i].length; j++)
		if (p[j] < 0x80 || p[j] > 0xbf)
			return 0;
	return rows[i].length;
}

/* Appends one ASCII character inside a JSON string. */
static void json_ascii(struct buf *b, char c)
{
	static const char special[] = "\"\\\n\r\t";
	static const char letter[] = "\"\\nrt";
	const char *at = c ? strchr(special, c) : NULL;
	if (at)
		buf_fmt(b, "\\%c", letter[at - special]);
	else if (c < 0x20 || c == 0x7f)
		buf_fmt(b, "\\u%04x", (unsigned)c);
	else
		buf_add(b, &c, 1);
}

void buf_json(struct buf *b, const char *s, size_t n)
{
	const uint8_t *p = (const uint8_t *)s;
	buf_str(b, "\"");
	for (size_t i = 0, length = 0; i < n; i += length ? length : 1) {
		length = utf8_length(p + i, n - i);
		if (length == 0)
			buf_str(b, "\xef\xbf\xbd");
		else if (length == 1)
			json_ascii(b, s[i]);
		else
			buf_add(b, s + i, length);
	}
	buf_str(b, "\"");
}

/* True for what moves a terminal's cursor or state (C0, DEL, and C1 in its UTF-8 form), begins a line (U+2028, U+2029)
 * or turns the direction of what is shown (U+202A to U+202E, U+2066 to U+2069). */
static bool is_control(const uint8_t *p, size_t length)
{
	if (length == 3 && p[0] == 0xe2)
		return (p[1] == 0x80 && p[2] >= 0xa8 && p[2] <= 0xae) ||
		       (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9);
	return (length == 1 && (p[0] < 0x20 || p[0] == 0x7f)) || (length == 2 && p[0] == 0xc2 && p[1] < 0xa0);
}

void buf_plain(struct buf *b, const char *s, size_t n)
{
	const uint8_t *p = (const uint8_t *)s;
	for (size_t i = 0; i < n;) {
		size_t length = utf8_length(p + i, n - i);
		if (length > 0 && !is_control(p + i, length)) {
			buf_add(b, s + i, length);
			i += length;
		} else {
			buf_fmt(b, "\\x%02x", (unsigned)p[i]);
			i++;
		}
	}
}

const char *buf_text(const struct buf *b)
{
	return b->p ? b->p : "";
}

bool buf_next_line(const char **at, const char **ret, size_t *ret_n)
{
	if (**at == '\0')
		return false;
	*ret = *at;
	*ret_n = strcspn(*at, "\n");
	*at += *ret_n;
	if (**at == '\n')
		++*at;
	return true;
}

int buf_check(const struct buf *b)
{
	return b->bad ? -ENOBUFS : 0;
}
