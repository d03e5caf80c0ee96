/*
 * Bytes that wait for a descriptor, in order and with a hard maximum. Memory is taken when the first byte waits.
 */
#ifndef ERMITE_CONDUIT_QUEUE_H
#define ERMITE_CONDUIT_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct queue {
	uint8_t *p;   /* owned, max bytes; NULL while nothing was ever added */
	size_t at, n; /* what waits is p[at .. at + n) */
	size_t max;
};

#define QUEUE_INIT(max_bytes) ((struct queue){.max = (max_bytes)})

/* Frees the memory and what waits; the queue can be used again. */
void queue_done(struct queue *q);

/* Room for n more bytes behind those that wait; what is written there counts after queue_added(). Returns 0 and the
 * place (owned by the queue, valid until its next call), -ENOBUFS when it would exceed the maximum, or -ENOMEM. */
[[nodiscard]] int queue_room(struct queue *q, size_t n, uint8_t **ret, struct err *e);

/* Adds the first n bytes of the room. */
void queue_added(struct queue *q, size_t n);

/* Adds n bytes; errors as queue_room(). */
[[nodiscard]] int queue_add(struct queue *q, const void *p, size_t n, struct err *e);

/* Writes what waits to a descriptor that does not block. Returns the bytes written, fewer than waited when it took no
 * more, or the negative errno of write(2). */
[[nodiscard]] ptrdiff_t queue_write(struct queue *q, int fd);

#endif
