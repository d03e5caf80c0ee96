/*
 * Masking secrets in a byte stream: every form of every secret becomes "***", wherever chunks are cut.
 *
 * One Aho-Corasick automaton over all forms (wire/forms.h: plain, trimmed, per line, base64 at its three shifts and
 * URL-safe, hex in both cases, URL, JSON, shell and XML escapes) is built once and shared by all streams; a stream is a
 * state and the bytes held back because they may be the beginning of a form. A form shorter than MASK_FORM_MIN bytes is
 * not searched. Overlapping and adjoining forms become one mark; of forms that begin alike the longest is hidden.
 * A job that wants to print its secrets finds a form that is not searched: this is against accidents.
 *
 * The automaton is memory of the caller's process, bounded by the bytes of the secrets: about 150 times them, 600 times
 * where every byte is escaped (75 MiB for MASK_SECRETS_MAX), and a quarter more while it is built. No descriptors,
 * no clock.
 */
#ifndef ERMITE_WIRE_MASK_H
#define ERMITE_WIRE_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MASK_FORM_MIN    4
#define MASK_SECRETS_MAX 131072 /* bytes of all secrets together */

struct mask;        /* the automaton */
struct mask_stream; /* one stream through it */

/* Receives bytes that are ready; returns nothing, may be called several times for one chunk. */
typedef void mask_sink(void *data, const uint8_t *p, size_t n);

/* Builds the automaton from secrets: zero-ended strings, one after the other in p of n bytes. Returns 0 and the
 * automaton (the caller frees it), *ret is NULL when there is nothing to search; -EMSGSIZE past MASK_SECRETS_MAX,
 * -EINVAL when the last one has no end, -ENOMEM. *ret_ignored counts secrets that have less than MASK_FORM_MIN bytes
 * inside their white space and are not masked; empty ones do not count. */
[[nodiscard]] int mask_new(const char *p, size_t n, struct mask **ret, size_t *ret_ignored, struct err *e);
void mask_free(struct mask *m);

/* A stream over the automaton, which must outlive it. NULL when memory is out. */
struct mask_stream *mask_stream_new(const struct mask *m);
void mask_stream_free(struct mask_stream *s);

/* Feeds n bytes; whatever can no longer be part of a form goes to the sink, in order. */
void mask_feed(struct mask_stream *s, const uint8_t *p, size_t n, mask_sink *sink, void *data);

/* Ends the stream: what was held back goes to the sink. */
void mask_flush(struct mask_stream *s, mask_sink *sink, void *data);

#endif
