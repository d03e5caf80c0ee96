#include "conduit/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void queue_done(struct queue *q)
{
	free(q->p);
	*q = QUEUE_INIT(q->max);
}

int queue_room(struct queue *q, size_t n, uint8_t **ret, struct err *e)
{
	if (n > q->max - q->n)
		return err_set(e, -ENOBUFS, "more than %zu bytes wait", q->max);
	if (!q->p) {
		q->p = malloc(q->max);
		if (!q->p)
			return err_set(e, -ENOMEM, "out of memory");
	}
	if (n > q->max - q->n - q->at) {
		memmove(q->p, q->p + q->at, q->n);
		q->at = 0;
	}
	*ret = q->p + q->at + q->n;
	return 0;
}

void queue_added(struct queue *q, size_t n)
{
	q->n += n;
}

int queue_add(struct queue *q, const void *p, size_t n, struct err *e)
{
	uint8_t *room = NULL;
	int r = queue_room(q, n, &room, e);
	if (r < 0)
		return r;
	memcpy(room, p, n);
	queue_added(q, n);
	return 0;
}

ptrdiff_t queue_write(struct queue *q, int fd)
{
	size_t before = q->n;
	while (q->n > 0) {
		ssize_t n = write(fd, q->p + q->at, q->n);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno;
		q->at += (size_t)n;
		q->n -= (size_t)n;
	}
	if (q->n == 0)
		q->at = 0;
	return (ptrdiff_t)(before - q->n);
}
