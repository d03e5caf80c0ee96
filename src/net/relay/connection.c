#include "net/relay/connection.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"

/* Reads of one flow before others have their turn. */
#define ROUNDS_MAX 8

static int timer_due(void *data, struct err *e);

int connection_init(struct connection *c, const struct connection_owner *owner, struct err *e)
{
	c->owner = owner;
	for (size_t i = 0; i < SIDES; i++)
		c->sides[i] = (struct side){.connection = c, .fd = -1};
	return loop_add_timer(owner->loop, timer_due, c, &c->timer, e);
}

static int release(struct connection *c, struct err *e)
{
	for (size_t i = 0; i < SIDES; i++) {
		loop_remove(&c->sides[i].source);
		fd_close(&c->sides[i].fd);
		c->flows[i].at = c->flows[i].end = 0;
		c->flows[i].ended = c->flows[i].passed_on = false;
	}
	c->state = CONNECTION_FREE;
	int r = loop_arm(c->timer, 0, e);
	return r < 0 ? r : c->owner->freed(c->owner->data, e);
}

int connection_break(struct connection *c, struct err *e)
{
	/* Closed so, a socket sends a reset and forgets what it had to send. */
	const struct linger none = {.l_onoff = 1};
	for (size_t i = 0; i < SIDES; i++)
		if (c->sides[i].fd >= 0)
			(void)setsockopt(c->sides[i].fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	return release(c, e);
}

static uint64_t limit_ms(const struct connection *c)
{
	return c->state == CONNECTION_OPEN ? c->owner->idle_ms : c->owner->connect_ms;
}

/* The timer is not armed anew at every byte: it looks whether there were any. */
static int timer_due(void *data, struct err *e)
{
	struct connection *c = data;
	if (c->state == CONNECTION_FREE)
		return 0;
	uint64_t quiet_ms = clock_boot_ms() - c->active_ms;
	if (quiet_ms >= limit_ms(c))
		return connection_break(c, e);
	return loop_arm(c->timer, limit_ms(c) - quiet_ms, e);
}

static bool is_empty(const struct flow *f)
{
	return f->at == f->end;
}

/* The three steps return 1, 0 when the socket has none or takes none for now, or -EIO when it is broken. */
static int blocked(void)
{
	return errno == EAGAIN || errno == EINTR ? 0 : -EIO;
}

static int fill(struct flow *f, int source)
{
	ssize_t n = read(source, f->bytes, sizeof(f->bytes));
	if (n < 0)
		return blocked();
	f->at = 0;
	f->end = (uint32_t)n;
	f->ended = n == 0;
	return 1;
}

static int drain(struct flow *f, int sink)
{
	ssize_t n = write(sink, f->bytes + f->at, f->end - f->at);
	if (n < 0)
		return blocked();
	f->at += (uint32_t)n;
	return 1;
}

static int pass_end(struct flow *f, int sink)
{
	f->passed_on = true;
	return shutdown(sink, SHUT_WR) < 0 ? -EIO : 1;
}

/* Moves bytes until one side has none or takes none. Returns 0 or 1, or -EIO when one of them is broken. */
static int move(struct connection *c, enum side_name from)
{
	struct flow *f = &c->flows[from];
	int source = c->sides[from].fd;
	int sink = c->sides[from == SIDE_GUEST ? SIDE_TARGET : SIDE_GUEST].fd;
	int r = 1;
	for (int i = 0; r > 0 && i < ROUNDS_MAX && !f->passed_on; i++) {
		if (is_empty(f) && !f->ended)
			r = fill(f, source);
		if (r > 0 && !is_empty(f))
			r = drain(f, sink);
		if (r > 0 && is_empty(f) && f->ended)
			r = pass_end(f, sink);
	}
	return r;
}

static int side_ready(void *data, int fd, uint32_t events, struct err *e);

/* Watches a side for what is wanted of it. A side of which nothing is wanted is not watched at all, since epoll would
 * tell of its hang-up for ever. */
static int watch(struct connection *c, enum side_name name, struct err *e)
{
	struct side *s = &c->sides[name];
	const struct flow *out = &c->flows[name == SIDE_GUEST ? SIDE_TARGET : SIDE_GUEST];
	uint32_t events = 0;
	if (is_empty(&c->flows[name]) && !c->flows[name].ended)
		events |= EPOLLIN;
	if (!is_empty(out))
		events |= EPOLLOUT;
	if (events == 0)
		loop_remove(&s->source);
	else if (s->source)
		return loop_set_events(s->source, events, e);
	else
		return loop_add_fd(c->owner->loop, s->fd, events, side_ready, s, &s->source, e);
	return 0;
}

static int pass_on(struct connection *c, struct err *e)
{
	c->active_ms = clock_boot_ms();
	if (move(c, SIDE_GUEST) < 0 || move(c, SIDE_TARGET) < 0)
		return connection_break(c, e);
	if (c->flows[SIDE_GUEST].passed_on && c->flows[SIDE_TARGET].passed_on)
		return release(c, e);
	int r = watch(c, SIDE_GUEST, e);
	return r < 0 ? r : watch(c, SIDE_TARGET, e);
}

static int connected(struct connection *c, int fd, struct err *e)
{
	int error = 0;
	socklen_t n = sizeof(error);
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) < 0 || error != 0)
		return connection_break(c, e);
	c->state = CONNECTION_OPEN;
	int r = loop_arm(c->timer, c->owner->idle_ms, e);
	return r < 0 ? r : pass_on(c, e);
}

static int side_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct connection *c = ((struct side *)data)->connection;
	return c->state == CONNECTION_CONNECTS ? connected(c, fd, e) : pass_on(c, e);
}

int connection_begin(struct connection *c, int guest, struct err *e)
{
	c->sides[SIDE_GUEST].fd = guest;
	c->state = CONNECTION_WAITS;
	c->begun_ns = clock_boot_ns();
	c->active_ms = clock_boot_ms();
	return loop_arm(c->timer, c->owner->connect_ms, e);
}

int connection_dialled(struct connection *c, int target, struct err *e)
{
	struct side *s = &c->sides[SIDE_TARGET];
	if (target < 0)
		return connection_break(c, e);
	s->fd = target;
	c->state = CONNECTION_CONNECTS;
	return loop_add_fd(c->owner->loop, target, EPOLLOUT, side_ready, s, &s->source, e);
}
