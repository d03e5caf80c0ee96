/*
 * Bytes being built: a growing buffer with a hard maximum, always followed by a terminating zero.
 *
 * Once an append does not fit or memory is out, the buffer is marked bad, keeps what it had, and every later append
 * does nothing: check once, with buf_check(), at the end. Not for bytes being read: that is base/rd.h.
 */
#ifndef ERMITE_BASE_BUF_H
#define ERMITE_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
	char *p;    /* owned; terminated with a zero that is not counted; NULL while empty */
	size_t n;   /* bytes used */
	size_t cap; /* bytes allocated */
	size_t max; /* most bytes it may hold */
	bool bad;   /* an append was lost */
};

#define BUF_INIT(max_bytes) ((struct buf){.max = (max_bytes)})
#define scoped_buf          __attribute__((cleanup(buf_done)))

/* Frees the memory; the buffer can be used again. */
void buf_done(struct buf *b);

/* Forgets the content, keeps the memory and clears the mark. */
void buf_clear(struct buf *b);

/* Appends n bytes; p is borrowed. */
void buf_add(struct buf *b, const void *p, size_t n);

/* Appends a terminated string. */
void buf_str(struct buf *b, const char *s);

/* Appends formatted text. */
[[gnu::format(printf, 2, 3)]] void buf_fmt(struct buf *b, const char *format, ...);

/* Appends s as a JSON string with its quotes: control bytes, quote and backslash escaped, bytes that are not UTF-8
 * replaced by U+FFFD. n is the length of s. */
void buf_json(struct buf *b, const char *s, size_t n);

/* Appends s so that it stays on one line and cannot steer a terminal or turn its own order around: control characters
 * and bytes that are not UTF-8 become \xNN. n is the length of s. */
void buf_plain(struct buf *b, const char *s, size_t n);

/* The text so far, never NULL; owned by the buffer and valid until the next append. */
const char *buf_text(const struct buf *b);

/* Takes the next line of a text: *at is where it begins and then where the one after it does. Returns false at the end.
 * *ret is n bytes of the text without its newline, and not terminated; an empty line counts. */
bool buf_next_line(const char **at, const char **ret, size_t *ret_n);

/* Returns 0, or -ENOBUFS when an append was lost. */
[[nodiscard]] int buf_check(const struct buf *b);

#endif
