#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "net/dns/state.h"

#define ACCEPT_BATCH 16

static bool is_guest(const struct dns *d, const struct sockaddr_in *from, socklen_t n)
{
	return n == sizeof(*from) && from->sin_family == AF_INET && from->sin_port != 0 &&
	       ntohl(from->sin_addr.s_addr) == d->config->guest;
}

static int udp_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct dns *d = data;
	d->now_ms = clock_boot_ms();
	for (size_t i = 0; i < BATCH_MAX; i++) {
		d->batch_parts[i] =
			(struct iovec){.iov_base = d->batch_bytes[i], .iov_len = sizeof(d->batch_bytes[i])};
		d->batch[i].msg_hdr = (struct msghdr){.msg_name = &d->batch_from[i],
						      .msg_namelen = sizeof(d->batch_from[i]),
						      .msg_iov = &d->batch_parts[i],
						      .msg_iovlen = 1};
	}
	/* What goes wrong here is told once and concerns a datagram, not the socket. */
	int n = recvmmsg(fd, d->batch, BATCH_MAX, MSG_DONTWAIT, NULL);
	for (int i = 0; i < n; i++) {
		const struct msghdr *m = &d->batch[i].msg_hdr;
		if (m->msg_flags & MSG_TRUNC || !is_guest(d, &d->batch_from[i], m->msg_namelen))
			d->counts->dropped++;
		else
			(void)question_take(d, &d->batch_from[i], NULL, d->batch_bytes[i],
					    d->batch[i].msg_len);
	}
	return dns_settle(d, e);
}

static void connection_close(struct connection *c)
{
	if (c->fd < 0)
		return;
	if (c->waiting > 0)
		questions_forget(c->dns, c);
	loop_remove(&c->source);
	fd_close(&c->fd);
	free(c->out);
	c->out = NULL;
}

/* Takes the messages that are complete, as long as there is room for what they ask and the answers are taken. */
static void take_messages(struct connection *c)
{
	struct dns *d = c->dns;
	size_t at = 0;
	c->stalled = false;
	while (c->fd >= 0 && c->n - at >= 2) {
		size_t n = (size_t)c->in[at] << 8 | c->in[at + 1];
		if (c->n - at < 2 + n)
			break;
		if (c->out_n > 0 || !question_take(d, NULL, c, c->in + at + 2, n)) {
			c->stalled = true;
			break;
		}
		at += 2 + n;
	}
	c->n -= (uint32_t)at;
	memmove(c->in, c->in + at, c->n);
	/* The time for a message counts from its first byte, and not while it waits for us. */
	if (c->n == 0 || c->stalled)
		c->message_ms = NO_DEADLINE;
	else if (at > 0 || c->message_ms == NO_DEADLINE)
		c->message_ms = d->now_ms + d->config->message_ms;
	dns_due(d, c->message_ms);
}

static void write_out(struct connection *c)
{
	ssize_t n = write(c->fd, c->out + c->out_at, c->out_n);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		connection_close(c);
		return;
	}
	c->out_at += n < 0 ? 0 : (uint32_t)n;
	c->out_n -= n < 0 ? 0 : (uint32_t)n;
	if (c->out_n == 0) {
		free(c->out);
		c->out = NULL;
	}
}

static void read_in(struct connection *c)
{
	ssize_t n = read(c->fd, c->in + c->n, FRAME_MAX - c->n);
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		connection_close(c);
	} else if (n == 0) {
		c->ended = true;
	} else if (n > 0) {
		c->n += (uint32_t)n;
		take_messages(c);
	}
}

/* Nothing is read from a client that does not take its answers, nor while it waits for room. */
static void watch(struct connection *c)
{
	uint32_t events = c->out_n > 0 ? EPOLLOUT : c->stalled || c->ended ? 0 : EPOLLIN;
	bool done = c->ended && c->waiting == 0 && c->out_n == 0 && !c->stalled;
	if (c->fd >= 0 && (done || loop_set_events(c->source, events, NULL) < 0))
		connection_close(c);
}

static int connection_ready(void *data, int, uint32_t events, struct err *e)
{
	struct connection *c = data;
	struct dns *d = c->dns;
	d->now_ms = clock_boot_ms();
	if (events & EPOLLOUT)
		write_out(c);
	else if (events & EPOLLIN)
		read_in(c);
	else
		connection_close(c);
	return dns_settle(d, e);
}

/* Nothing is being asked for it, nor waits to be but for its own sake. */
static bool is_idle(const struct connection *c)
{
	return c->waiting == 0 && (!c->stalled || c->out_n > 0);
}

/* A row for a new connection: a free one, or that of the oldest idle one. NULL: all wait. */
static struct connection *find_row(struct dns *d)
{
	struct connection *oldest = NULL;
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &d->connections[i];
		if (c->fd < 0)
			return c;
		if (is_idle(c) && (!oldest || c->begun_ns < oldest->begun_ns))
			oldest = c;
	}
	return oldest;
}

static void accept_one(struct dns *d, struct connection *c, int fd)
{
	connection_close(c);
	c->dns = d;
	c->fd = fd;
	c->begun_ns = clock_boot_ns();
	c->end_ms = d->now_ms + d->config->connection_ms;
	c->message_ms = NO_DEADLINE;
	dns_due(d, c->end_ms);
	c->waiting = c->n = c->out_at = c->out_n = 0;
	c->stalled = c->ended = false;
	if (loop_add_fd(d->loop, c->fd, EPOLLIN, connection_ready, c, &c->source, NULL) < 0)
		connection_close(c);
}

static int listener_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct dns *d = data;
	d->now_ms = clock_boot_ms();
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct connection *row = find_row(d);
		struct sockaddr_in from = {0};
		socklen_t n = sizeof(from);
		if (!row)
			break;
		int client = accept4(fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (client < 0)
			break;
		if (is_guest(d, &from, n)) {
			accept_one(d, row, client);
		} else {
			fd_close(&client);
			d->counts->dropped++;
		}
	}
	return dns_settle(d, e);
}

void clients_init(struct dns *d)
{
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		d->connections[i].fd = -1;
		d->connections[i].in = d->frames[i];
	}
}

int clients_open(struct dns *d, struct err *e)
{
	int r = loop_add_fd(d->loop, DNS_FD_UDP, EPOLLIN, udp_ready, d, &d->udp_source, e);
	if (r == 0)
		r = loop_add_fd(d->loop, DNS_FD_TCP, EPOLLIN, listener_ready, d, &d->tcp_source, e);
	return r;
}

int clients_settle(struct dns *d, struct err *e)
{
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &d->connections[i];
		if (c->fd < 0)
			continue;
		if (c->stalled && c->out_n == 0)
			take_messages(c);
		watch(c);
	}
	return loop_set_events(d->tcp_source, find_row(d) ? EPOLLIN : 0, e);
}

/* Queues what a connection did not take at once; one that takes nothing at all is closed when no more fits. */
static void queue(struct connection *c, const uint8_t *p, size_t n)
{
	if (!c->out) {
		c->out = malloc(CONNECTION_OUT);
		c->out_at = c->out_n = 0;
	}
	if (c->out && c->out_at > 0) {
		memmove(c->out, c->out + c->out_at, c->out_n);
		c->out_at = 0;
	}
	if (!c->out || n > CONNECTION_OUT - c->out_n) {
		connection_close(c);
		return;
	}
	memcpy(c->out + c->out_n, p, n);
	c->out_n += (uint32_t)n;
}

static void send_frame(struct dns *d, struct connection *c, size_t n)
{
	d->sent[0] = (uint8_t)(n >> 8);
	d->sent[1] = (uint8_t)n;
	ssize_t written = c->out_n > 0 ? 0 : write(c->fd, d->sent, 2 + n);
	if (written < 0 && errno != EAGAIN && errno != EINTR) {
		connection_close(c);
		return;
	}
	size_t done = written < 0 ? 0 : (size_t)written;
	if (done < 2 + n)
		queue(c, d->sent + done, 2 + n - done);
}

void client_send(struct dns *d, struct waiter *w, size_t n)
{
	if (w->gone)
		return;
	if (w->connection)
		send_frame(d, w->connection, n);
	else
		(void)sendto(DNS_FD_UDP, d->sent + 2, n, MSG_DONTWAIT, (const struct sockaddr *)&w->from,
			     sizeof(w->from));
}

uint64_t clients_deadline(const struct dns *d)
{
	uint64_t first = NO_DEADLINE;
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		const struct connection *c = &d->connections[i];
		if (c->fd < 0)
			continue;
		first = c->end_ms < first ? c->end_ms : first;
		first = c->message_ms < first ? c->message_ms : first;
	}
	return first;
}

void clients_expire(struct dns *d)
{
	for (size_t i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &d->connections[i];
		if (c->end_ms <= d->now_ms || c->message_ms <= d->now_ms)
			connection_close(c);
	}
}

void clients_close(struct dns *d)
{
	for (size_t i = 0; i < CONNECTIONS_MAX; i++)
		connection_close(&d->connections[i]);
	loop_remove(&d->udp_source);
	loop_remove(&d->tcp_source);
}
