#include "client/pump.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/scope.h"

enum {
	SPLICE_BYTES = 1 << 20,
	COPY_BYTES = 65536,
	ROUNDS_MAX = 16,     /* moves in one callback, so that the loop's other sources get their turn */
	TERMINAL_BYTES = 256 /* what a terminal takes without waiting once it is writable */
};

enum way { WAY_SPLICE, WAY_COPY, WAY_DISCARD };

/* What one move came to, when it is no error. */
enum outcome { MOVED, WANTS_FROM, WANTS_TO, AT_END };

struct pump {
	struct loop *loop;
	int from, to;
	int reopened; /* owned: `to` opened again without blocking, or -1 */
	enum way way;
	bool to_socket;
	size_t write_max;
	struct source *source; /* watches `watched`, or NULL */
	int watched;
	uint8_t *bytes; /* COPY_BYTES, made when needed */
	size_t at, have;
	bool ended;
	pump_end_fn *fn;
	void *data;
};

static bool is_ready(int fd, short events)
{
	struct pollfd p = {.fd = fd, .events = events};
	/* Hang-up and error count: the read or write will tell. Files and what cannot be polled are always ready. */
	return poll(&p, 1, 0) > 0;
}

/* True for what splice() serves without blocking: pipes by their flag, files and devices like /dev/null by nature. */
static bool can_splice(int fd)
{
	struct stat st = {0};
	if (fstat(fd, &st) < 0)
		return false;
	return S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && !isatty(fd));
}

static int move_by_splice(struct pump *p)
{
	ssize_t n = splice(p->from, NULL, p->to, NULL, SPLICE_BYTES, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	if (n > 0)
		return MOVED;
	if (n == 0)
		return AT_END;
	/* Either end can have been the reason and have changed since: what can be written to now need not be watched,
	 * and may not be a thing that can be. */
	if (errno == EAGAIN)
		return is_ready(p->to, POLLOUT) ? WANTS_FROM : WANTS_TO;
	if (errno == EINVAL) {
		/* A file opened for appending, or a device that cannot. Nothing was taken. */
		p->way = WAY_COPY;
		return MOVED;
	}
	return errno == EINTR ? MOVED : -errno;
}

static int fill(struct pump *p)
{
	if (!p->bytes)
		p->bytes = malloc(COPY_BYTES);
	if (!p->bytes)
		return -ENOMEM;
	if (!is_ready(p->from, POLLIN))
		return WANTS_FROM;
	ssize_t n = read(p->from, p->bytes, COPY_BYTES);
	if (n < 0 && errno == EAGAIN)
		return WANTS_FROM;
	if (n < 0)
		return errno == EINTR ? MOVED : -errno;
	p->at = 0;
	p->have = (size_t)n;
	return n == 0 ? AT_END : MOVED;
}

static int drain(struct pump *p)
{
	if (!is_ready(p->to, POLLOUT))
		return WANTS_TO;
	size_t n = p->have < p->write_max ? p->have : p->write_max;
	ssize_t done = p->to_socket ? send(p->to, p->bytes + p->at, n, MSG_DONTWAIT | MSG_NOSIGNAL)
				    : write(p->to, p->bytes + p->at, n);
	if (done < 0 && errno == EAGAIN)
		return WANTS_TO;
	if (done < 0)
		return errno == EINTR ? MOVED : -errno;
	p->at += (size_t)done;
	p->have -= (size_t)done;
	return MOVED;
}

static int move(struct pump *p)
{
	if (p->way == WAY_SPLICE)
		return move_by_splice(p);
	if (p->way == WAY_DISCARD)
		p->have = 0;
	return p->have > 0 ? drain(p) : fill(p);
}

static int on_ready(void *data, int fd, uint32_t events, struct err *e);

/* Watches the one descriptor that the next move needs. */
static int watch(struct pump *p, int fd, uint32_t events, struct err *e)
{
	if (p->source && p->watched == fd)
		return 0;
	loop_remove(&p->source);
	p->watched = fd;
	return loop_add_fd(p->loop, fd, events, on_ready, p, &p->source, e);
}

static int end(struct pump *p, int error, struct err *e)
{
	loop_remove(&p->source);
	p->ended = true;
	return p->fn(p->data, p, error, e);
}

static int on_ready(void *data, int, uint32_t, struct err *e)
{
	struct pump *p = data;
	int r = MOVED;
	for (int i = 0; i < ROUNDS_MAX && r == MOVED; i++)
		r = move(p);
	if (r < 0 || r == AT_END)
		return end(p, r < 0 ? r : 0, e);
	if (r == WANTS_FROM)
		return watch(p, p->from, EPOLLIN, e);
	if (r == WANTS_TO)
		return watch(p, p->to, EPOLLOUT, e);
	/* More could be moved at once. What is watched now is either ready, and calls again, or what to wait for. */
	return 0;
}

/* A terminal is opened a second time: that description is ours alone and may be set not to block. Where that is not
 * possible, writing little at a time after it was found writable comes close. */
static void prepare_terminal(struct pump *p)
{
	char path[32];
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", p->to);
	p->reopened = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (p->reopened >= 0)
		p->to = p->reopened;
	else
		p->write_max = TERMINAL_BYTES;
}

int pump_new(struct loop *l, int from, int to, pump_end_fn *fn, void *data, struct pump **ret, struct err *e)
{
	struct pump *p = calloc(1, sizeof(*p));
	if (!p)
		return err_set(e, -ENOMEM, "out of memory");
	*p = (struct pump){.loop = l,
			   .from = from,
			   .to = to,
			   .reopened = -1,
			   .write_max = COPY_BYTES,
			   .fn = fn,
			   .data = data};
	struct stat st = {0};
	p->to_socket = fstat(to, &st) == 0 && S_ISSOCK(st.st_mode);
	p->way = can_splice(from) && can_splice(to) ? WAY_SPLICE : WAY_COPY;
	if (isatty(to))
		prepare_terminal(p);
	/* A file cannot be watched and is always ready: then the pipe on the other side sets the pace. */
	int r = watch(p, from, EPOLLIN, e);
	if (r == -EPERM)
		r = watch(p, to, EPOLLOUT, e);
	if (r < 0) {
		pump_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

void pump_free(struct pump *p)
{
	if (!p)
		return;
	loop_remove(&p->source);
	fd_close(&p->reopened);
	free(p->bytes);
	free(p);
}

int pump_discard(struct pump *p, struct err *e)
{
	p->way = WAY_DISCARD;
	p->ended = false;
	return watch(p, p->from, EPOLLIN, e);
}

int pump_flush(struct pump *p)
{
	int r = pump_ended(p) ? AT_END : MOVED;
	while (r == MOVED)
		r = move(p);
	return r < 0 ? r : 0;
}

bool pump_ended(const struct pump *p)
{
	return !p || p->ended;
}
