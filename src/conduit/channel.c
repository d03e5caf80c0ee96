#include "conduit/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/scope.h"
#include "wire/frame.h"

/* Credit is granted a quarter of the window at a time: the guest never stands still, and messages are few. */
#define GRANT_MIN (FRAME_WINDOW / 4)

/* What can wait at most: a window, and what a mask has held back of earlier ones, which is less than the longest form
 * of a secret; escapes make up to six bytes of one. Only what is used is ever touched. */
#define KEPT_MAX (FRAME_WINDOW + 8 * MASK_SECRETS_MAX)

static int set_nonblocking(int fd, struct err *e)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return err_sys(e, "open a channel");
	return 0;
}

int sink_open(struct sink *s, int fd, struct mask_stream *mask, const struct sink_owner *owner, struct err *e)
{
	*s = (struct sink){
		.owner = *owner,
		.fd = fd,
		.kept = QUEUE_INIT(KEPT_MAX),
		.mask = mask,
		.window = FRAME_WINDOW,
	};
	int r = fd < 0 ? 0 : set_nonblocking(fd, e);
	if (r < 0)
		sink_done(s);
	return r;
}

int sink_charge(struct sink *s, size_t n, struct err *e)
{
	if (s->ended)
		return err_set(e, -EPROTO, "after the end of the channel");
	if (n > s->window)
		return err_set(e, -EPROTO, "%zu bytes with credit for %u", n, s->window);
	s->window -= (uint32_t)n;
	return 0;
}

/* Closes the pipe, whether or not bytes were kept for it. */
static void close_pipe(struct sink *s)
{
	loop_remove(&s->source);
	queue_done(&s->kept);
	fd_close(&s->fd);
}

/* A pipe takes bytes again, or its reader has gone. */
static int sink_writable(void *data, int fd, uint32_t, struct err *e)
{
	struct sink *s = data;
	ptrdiff_t n = queue_write(&s->kept, fd);
	if (n < 0 && n != -EPIPE)
		return err_code(e, (int)n, "write to a pipe");
	if (n < 0) {
		close_pipe(s);
	} else {
		s->relayed += (uint64_t)n;
		if (s->kept.n == 0) {
			loop_remove(&s->source);
			queue_done(&s->kept);
			if (s->ended)
				fd_close(&s->fd);
		}
	}
	return s->owner.moved(s->owner.data, e);
}

static int keep(struct sink *s, const uint8_t *p, size_t n, struct err *e)
{
	int r = queue_add(&s->kept, p, n, e);
	if (r == 0 && !s->source)
		r = loop_add_fd(s->owner.loop, s->fd, EPOLLOUT, sink_writable, s, &s->source, e);
	return r;
}

static int pass(struct sink *s, const uint8_t *p, size_t n, struct err *e)
{
	while (n > 0 && s->fd >= 0 && s->kept.n == 0) {
		ssize_t written = write(s->fd, p, n);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && errno == EAGAIN)
			break;
		if (written < 0 && errno != EPIPE)
			return err_sys(e, "write to a pipe");
		if (written < 0) {
			close_pipe(s);
		} else {
			p += written;
			n -= (size_t)written;
			s->relayed += (uint64_t)written;
		}
	}
	return n > 0 && s->fd >= 0 ? keep(s, p, n, e) : 0;
}

/* What the mask lets out. It cannot fail back through the mask, so the first error is kept. */
static void masked(void *data, const uint8_t *p, size_t n)
{
	struct sink *s = data;
	if (s->error == 0)
		s->error = pass(s, p, n, NULL);
}

static int masked_result(const struct sink *s, struct err *e)
{
	return s->error < 0 ? err_code(e, s->error, "pass on masked output") : 0;
}

int sink_give(struct sink *s, const uint8_t *p, size_t n, struct err *e)
{
	if (!s->mask)
		return pass(s, p, n, e);
	mask_feed(s->mask, p, n, masked, s);
	return masked_result(s, e);
}

uint32_t sink_grant(struct sink *s)
{
	/* What was let through and is not waiting. Bytes that a mask held back count as passed on; so more may wait
	 * than the window has lost. */
	size_t used = FRAME_WINDOW - s->window;
	size_t passed = used > s->kept.n ? used - s->kept.n : 0;
	if (s->ended || passed < GRANT_MIN)
		return 0;
	s->window += (uint32_t)passed;
	return (uint32_t)passed;
}

int sink_end(struct sink *s, struct err *e)
{
	if (s->ended)
		return 0;
	s->ended = true;
	if (s->mask)
		mask_flush(s->mask, masked, s);
	if (s->kept.n == 0)
		close_pipe(s);
	return masked_result(s, e);
}

void sink_drop(struct sink *s)
{
	close_pipe(s);
}

bool sink_is_done(const struct sink *s)
{
	return s->fd < 0;
}

void sink_done(struct sink *s)
{
	close_pipe(s);
	mask_stream_free(s->mask);
	*s = SINK_INIT;
}

int feed_open(struct feed *f, struct loop *loop, int fd, feed_ready_fn *ready, void *data, struct err *e)
{
	*f = (struct feed){
		.loop = loop, .fd = fd, .window = FRAME_WINDOW, .given = true, .ready = ready, .data = data};
	int r = set_nonblocking(fd, e);
	if (r < 0) {
		feed_close(f);
		*f = FEED_INIT;
	}
	return r;
}

int feed_watch(struct feed *f, bool room, struct err *e)
{
	bool wanted = f->fd >= 0 && f->window > 0 && room;
	if (!wanted)
		loop_remove(&f->source);
	else if (!f->source)
		return loop_add_fd(f->loop, f->fd, EPOLLIN, f->ready, f->data, &f->source, e);
	return 0;
}

int feed_credit(struct feed *f, uint32_t bytes, struct err *e)
{
	if (!f->given)
		return err_set(e, -EPROTO, "there is no input");
	if (bytes > FRAME_WINDOW - f->window)
		return err_set(e, -EPROTO, "credit of %u where only %u were under way", bytes,
			       FRAME_WINDOW - f->window);
	f->window += bytes;
	return 0;
}

void feed_close(struct feed *f)
{
	loop_remove(&f->source);
	fd_close(&f->fd);
}
