#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scope.h"
#include "net/dns/state.h"
#include "spec/message.h"

#define POOL_IDLE_MS 10000

/* More than there are questions: answers to those that have ended meanwhile may be under way. */
#define TCP_DIALS_MAX 64

/* Asks the keeper for sockets. A channel that takes no more is one that the keeper does not read: what needs a socket
 * runs into its deadline. One that is closed ends the loop. */
static bool dial(uint32_t resolver, uint32_t count, enum dial_kind kind)
{
	struct chan_message m;
	m.type = MESSAGE_DIAL;
	m.id = resolver;
	m.a = count;
	m.b = kind;
	m.n = m.n_fds = 0;
	return chan_send(DNS_FD_CHANNEL, &m, NULL) == 0;
}

/* Asks for a message full of sockets as long as there is room for one more. */
static void refill(struct dns *d, uint32_t resolver)
{
	struct pool *p = &d->pools[resolver];
	while (p->n + (p->dialled + 1) * MESSAGE_FDS_MAX <= p->wanted &&
	       dial(resolver, MESSAGE_FDS_MAX, DIAL_UDP))
		p->dialled++;
}

static void drop_pools(struct dns *d)
{
	for (size_t i = 0; i < DIAL_TARGETS_MAX; i++) {
		struct pool *p = &d->pools[i];
		while (p->n > 0)
			fd_close(&p->fds[--p->n]);
		p->wanted = POOL_IDLE;
		p->idle_ms = NO_DEADLINE;
	}
}

void upstream_open(struct dns *d)
{
	d->n_resolvers = d->config->n_resolvers;
	d->generation = d->config->generation;
	drop_pools(d);
	if (d->n_resolvers > 0)
		refill(d, 0);
}

/* A number that nobody can guess. */
static int fresh_id(struct dns *d, uint16_t *ret)
{
	if (d->n_ids == 0) {
		/* So few bytes always come whole. */
		if (getrandom(d->ids, sizeof(d->ids), 0) != (ssize_t)sizeof(d->ids))
			return -EIO;
		d->n_ids = IDS_MAX;
	}
	*ret = d->ids[--d->n_ids];
	return 0;
}

void upstream_end_try(struct question *q)
{
	loop_remove(&q->source);
	fd_close(&q->fd);
	free(q->answer);
	q->answer = NULL;
	q->answer_n = 0;
}

static int udp_answer(void *data, int fd, uint32_t, struct err *e)
{
	struct question *q = data;
	struct dns *d = q->dns;
	d->now_ms = clock_boot_ms();
	ssize_t n = read(fd, d->received, sizeof(d->received));
	if (n >= 0)
		question_answered(q, d->received, (size_t)n);
	else if (errno != EAGAIN && errno != EINTR)
		question_next_try(q);
	return dns_settle(d, e);
}

/* Sends the question with a socket that is the question's from now on. */
static void send_udp(struct question *q, int fd)
{
	struct dns *d = q->dns;
	uint8_t bytes[DNS_QUERY_MAX];
	q->fd = fd;
	q->state = QUESTION_UDP;
	int r = fresh_id(d, &q->id);
	if (r == 0) {
		size_t n = dns_query_write(&q->query, q->id, bytes);
		r = write(fd, bytes, n) == (ssize_t)n ? 0 : -EIO;
	}
	if (r == 0)
		r = loop_add_fd(d->loop, fd, EPOLLIN, udp_answer, q, &q->source, NULL);
	if (r < 0)
		question_next_try(q);
}

void upstream_ask_udp(struct question *q)
{
	struct dns *d = q->dns;
	struct pool *p = &d->pools[q->resolver];
	q->try_ms = d->now_ms + d->config->udp_ms;
	q->state = QUESTION_WANTS_UDP;
	p->idle_ms = d->now_ms + POOL_IDLE_MS;
	dns_due(d, q->try_ms);
	int fd = p->n > 0 ? p->fds[--p->n] : -1;
	if (fd < 0 && p->wanted < POOL_MAX)
		p->wanted *= 2;
	refill(d, q->resolver);
	if (fd >= 0)
		send_udp(q, fd);
}

/* Sends the question over a connection that is there now. */
static int send_tcp(struct question *q, int fd)
{
	uint8_t frame[2 + DNS_QUERY_MAX];
	size_t n = dns_query_write(&q->query, q->id, frame + 2);
	frame[0] = (uint8_t)(n >> 8);
	frame[1] = (uint8_t)n;
	/* It cannot be split: nothing else waits to be sent. */
	if (write(fd, frame, 2 + n) != (ssize_t)(2 + n))
		return -EIO;
	q->state = QUESTION_TCP;
	return loop_set_events(q->source, EPOLLIN, NULL);
}

/* Reads on. Returns 1 when the answer is complete, 0 when it is not, or -EIO. */
static int receive_tcp(struct question *q, int fd)
{
	bool body = q->answer_n >= 2;
	size_t whole = body ? (size_t)q->length[0] << 8 | q->length[1] : 0;
	ssize_t n = body ? read(fd, q->answer + (q->answer_n - 2), 2 + whole - q->answer_n)
			 : read(fd, &q->length[q->answer_n], 2 - q->answer_n);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return -EIO;
	q->answer_n += (uint32_t)n;
	if (body)
		return q->answer_n == 2 + whole;
	if (q->answer_n < 2)
		return 0;
	whole = (size_t)q->length[0] << 8 | q->length[1];
	q->answer = malloc(whole);
	return q->answer && whole > 0 ? 0 : -EIO;
}

static int tcp_event(void *data, int fd, uint32_t, struct err *e)
{
	struct question *q = data;
	struct dns *d = q->dns;
	d->now_ms = clock_boot_ms();
	int r = q->state == QUESTION_CONNECTS ? send_tcp(q, fd) : receive_tcp(q, fd);
	if (r < 0) {
		question_next_try(q);
	} else if (r > 0) {
		/* Out of the question's hands, since the end of the try frees it. */
		scoped_free uint8_t *answer = ptr_steal(&q->answer);
		question_answered(q, answer, q->answer_n - 2);
	}
	return dns_settle(d, e);
}

void upstream_ask_tcp(struct question *q)
{
	struct dns *d = q->dns;
	bool last = q->resolver + 1 >= d->n_resolvers;
	q->try_ms = last ? q->end_ms : d->now_ms + d->config->tcp_ms;
	dns_due(d, q->try_ms);
	q->state = QUESTION_WANTS_TCP;
	if (d->tcp_dialled < TCP_DIALS_MAX && dial(q->resolver, 1, DIAL_TCP))
		d->tcp_dialled++;
}

/* The question that has waited longest for a socket to this resolver, or NULL. */
static struct question *waits_for(struct dns *d, uint32_t resolver, enum question_state state)
{
	struct question *oldest = NULL;
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		struct question *q = &d->questions[i];
		if (q->state == state && q->resolver == resolver && (!oldest || q->try_ms < oldest->try_ms))
			oldest = q;
	}
	return oldest;
}

static void take_udp(struct dns *d, uint32_t resolver, struct chan_message *m)
{
	struct pool *p = &d->pools[resolver];
	for (uint32_t i = 0; i < m->n_fds; i++) {
		struct question *q = waits_for(d, resolver, QUESTION_WANTS_UDP);
		if (q)
			send_udp(q, chan_take_fd(m, i));
		else if (p->n < POOL_MAX)
			p->fds[p->n++] = chan_take_fd(m, i);
	}
	/* None could be made, so nobody waits for one in vain. */
	struct question *q = m->n_fds > 0 ? NULL : waits_for(d, resolver, QUESTION_WANTS_UDP);
	for (; q; q = waits_for(d, resolver, QUESTION_WANTS_UDP))
		question_next_try(q);
	if (m->n_fds > 0)
		refill(d, resolver);
}

static void take_tcp(struct dns *d, uint32_t resolver, struct chan_message *m)
{
	struct question *q = waits_for(d, resolver, QUESTION_WANTS_TCP);
	if (!q)
		return;
	q->fd = chan_take_fd(m, 0);
	q->state = QUESTION_CONNECTS;
	if (q->fd < 0 || fresh_id(d, &q->id) < 0 ||
	    loop_add_fd(d->loop, q->fd, EPOLLOUT, tcp_event, q, &q->source, NULL) < 0)
		question_next_try(q);
}

void upstream_sockets(struct dns *d, struct chan_message *m)
{
	bool useful = m->id < d->n_resolvers && m->a == d->generation;
	if (m->b == DIAL_UDP && m->id < DIAL_TARGETS_MAX && d->pools[m->id].dialled > 0)
		d->pools[m->id].dialled--;
	if (m->b == DIAL_TCP && d->tcp_dialled > 0)
		d->tcp_dialled--;
	if (useful && m->b == DIAL_UDP)
		take_udp(d, m->id, m);
	else if (m->b == DIAL_UDP && m->id < d->n_resolvers)
		refill(d, m->id);
	else if (useful && m->b == DIAL_TCP)
		take_tcp(d, m->id, m);
}

void upstream_resolvers(struct dns *d, uint32_t generation, uint32_t n)
{
	drop_pools(d);
	d->generation = generation;
	d->n_resolvers = n;
	if (n > 0)
		refill(d, 0);
	questions_restart(d);
}

uint64_t upstream_deadline(const struct dns *d)
{
	uint64_t first = NO_DEADLINE;
	for (size_t i = 0; i < DIAL_TARGETS_MAX; i++)
		first = d->pools[i].idle_ms < first ? d->pools[i].idle_ms : first;
	return first;
}

void upstream_expire(struct dns *d)
{
	for (size_t i = 0; i < DIAL_TARGETS_MAX; i++) {
		struct pool *p = &d->pools[i];
		if (p->idle_ms > d->now_ms)
			continue;
		while (p->n > POOL_IDLE)
			fd_close(&p->fds[--p->n]);
		p->wanted = POOL_IDLE;
		p->idle_ms = NO_DEADLINE;
	}
}

void upstream_close(struct dns *d)
{
	drop_pools(d);
}
