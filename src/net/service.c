#include "net/service.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/scope.h"
#include "guard/isolate.h"
#include "spec/message.h"

/* A message is looked at for what it costs, a socket each. What was asked for is paid off with time; a tenth of a
 * second's worth may be owed, then nothing is read for a while. */
#define SOCKET_NS     (UINT64_C(1000000000) / SERVICE_SOCKETS_PER_S)
#define OWED_NS_MAX   UINT64_C(100000000)
#define PAUSE_MS      20
#define MESSAGES_ONCE 16 /* before others have their turn */

/* Answers that wait for the helper hold sockets of the host: a few hundred at most. */
#define SEND_BYTES 32768

/* Sentences within a minute; a sandbox that knows how to end its helper could fill the host's log with them. */
#define WARNINGS_MAX       8
#define WARNINGS_WINDOW_MS 60000

#define SENTENCE_SIZE 640

struct service {
	struct service_plan plan;
	struct loop *loop;
	struct child child;
	int channel; /* owned; -1 while the helper does not run */
	struct source *channel_source, *end_source;
	struct source *start_timer, *pause_timer;
	uint64_t paid_ns; /* when all sockets so far are paid off */
	uint64_t starts_ms
		[SERVICE_STARTS_MAX]; /* when it was started anew, the oldest to be overwritten next */
	size_t starts_next;
	uint64_t warnings_ms; /* when the minute began that warnings are counted in */
	unsigned warnings;
};

static int watch_channel(struct service *s, struct err *e);
static int watch_end(struct service *s, struct err *e);

static void warn(struct service *s, const char *sentence)
{
	uint64_t now = clock_boot_ms();
	if (s->warnings == 0 || now - s->warnings_ms >= WARNINGS_WINDOW_MS) {
		s->warnings_ms = now;
		s->warnings = 0;
	}
	s->warnings++;
	if (s->warnings <= WARNINGS_MAX)
		s->plan.warn(s->plan.data, sentence);
}

/* Forgets a helper that has ended, or ends one. */
static void stop(struct service *s)
{
	loop_remove(&s->channel_source);
	loop_remove(&s->end_source);
	child_kill(&s->child);
	fd_close(&s->channel);
}

static int open_channel(struct service *s, int *ret_far, struct err *e)
{
	int ends[2] = {-1, -1};
	const int bytes = SEND_BYTES;
	int r = chan_pair(ends, e);
	if (r < 0)
		return r;
	s->channel = ends[0];
	*ret_far = ends[1];
	/* Only our end: whether the helper waits is its own choice. */
	if (fcntl(s->channel, F_SETFL, O_RDWR | O_NONBLOCK) < 0 ||
	    setsockopt(s->channel, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) < 0)
		return err_sys(e, "prepare a channel");
	return 0;
}

static int start_child(struct service *s, int config, int far, struct err *e)
{
	int fds[CHILD_FDS_MAX];
	const char *const arguments[] = {s->plan.name, s->plan.id, NULL};
	memcpy(fds, s->plan.fds, s->plan.n_fds * sizeof(fds[0]));
	fds[SERVICE_FD_CONFIG] = config;
	fds[SERVICE_FD_CHANNEL] = far;
	const struct child_plan plan = isolate_plan(s->plan.path, arguments, fds, s->plan.n_fds);
	return child_start(&plan, &s->child, e);
}

static int start(struct service *s, struct err *e)
{
	scoped_fd int config = -1;
	scoped_fd int far = -1;
	int r = s->plan.configure(s->plan.data, &config, e);
	if (r == 0)
		r = open_channel(s, &far, e);
	if (r == 0)
		r = start_child(s, config, far, e);
	if (r == 0)
		r = s->plan.started(s->plan.data, s->plan.name, s->child.pid, e);
	if (r == 0)
		r = watch_channel(s, e);
	if (r == 0)
		r = watch_end(s, e);
	if (r < 0)
		stop(s);
	return r;
}

/* Starts the helper anew, or has it wait when that was done too often of late. how: a sentence without its full stop
 * that says why. Only a timer that cannot be armed is an error of ours. */
static int start_anew(struct service *s, const char *how, struct err *e)
{
	char sentence[SENTENCE_SIZE];
	struct err why = ERR_INIT;
	uint64_t now = clock_boot_ms();
	uint64_t oldest = s->starts_ms[s->starts_next];
	if (oldest > 0 && now - oldest < SERVICE_WINDOW_MS) {
		uint64_t wait_ms = SERVICE_WINDOW_MS - (now - oldest);
		(void)snprintf(sentence, sizeof(sentence),
			       "%s; it happens often, the next start is in %llu ms", how,
			       (unsigned long long)wait_ms);
		warn(s, sentence);
		return loop_arm(s->start_timer, wait_ms, e);
	}
	s->starts_ms[s->starts_next] = now;
	s->starts_next = (s->starts_next + 1) % SERVICE_STARTS_MAX;
	if (start(s, &why) == 0) {
		(void)snprintf(sentence, sizeof(sentence), "%s; it was started anew", how);
		warn(s, sentence);
		return 0;
	}
	(void)snprintf(sentence, sizeof(sentence), "%s; it could not be started anew: %s", how, why.msg);
	warn(s, sentence);
	return loop_arm(s->start_timer, SERVICE_WINDOW_MS, e);
}

static int start_due(void *data, struct err *e)
{
	struct service *s = data;
	struct err why = ERR_INIT;
	if (start(s, &why) == 0)
		return 0;
	warn(s, why.msg);
	return loop_arm(s->start_timer, SERVICE_WINDOW_MS, e);
}

/* Ends a helper that did what it must not. */
static int punish(struct service *s, const struct err *why, struct err *e)
{
	char how[SENTENCE_SIZE / 2];
	(void)snprintf(how, sizeof(how), "%s was ended: %.200s", s->plan.name, why->msg);
	stop(s);
	return start_anew(s, how, e);
}

static int ended(void *data, int, uint32_t, struct err *e)
{
	struct service *s = data;
	struct child_end end = {0};
	char how[SENTENCE_SIZE / 2];
	int r = child_wait(&s->child, 0, &end, e);
	if (r < 0)
		return r == -ETIMEDOUT ? 0 : r;
	stop(s);
	if (end.signal)
		(void)snprintf(how, sizeof(how), "%s was killed by signal %d", s->plan.name, end.signal);
	else
		(void)snprintf(how, sizeof(how), "%s ended with status %d", s->plan.name, end.status);
	return start_anew(s, how, e);
}

static int watch_end(struct service *s, struct err *e)
{
	return loop_add_fd(s->loop, s->child.pidfd, EPOLLIN, ended, s, &s->end_source, e);
}

/* What was asked for is asked for, whether or not there were sockets. */
static bool owes_much(struct service *s, uint64_t sockets)
{
	uint64_t now = clock_boot_ns();
	if (s->paid_ns < now)
		s->paid_ns = now;
	s->paid_ns += (sockets > 0 && sockets <= MESSAGE_FDS_MAX ? sockets : 1) * SOCKET_NS;
	return s->paid_ns - now > OWED_NS_MAX;
}

static int take(struct service *s, struct chan_message *m, struct err *e)
{
	if (m->type != MESSAGE_DIAL || !message_permitted(m->type, SENDER_HELPER) || m->n_fds > 0 || m->n > 0)
		return err_set(e, -EPROTO, "it sent %s with %u descriptors and %u bytes",
			       message_name(m->type), m->n_fds, m->n);
	int r = s->plan.dial(s->plan.data, s->channel, m, e);
	return r == -EAGAIN ? err_set(e, r, "it does not read what it has asked for") : r;
}

static int channel_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct service *s = data;
	struct err why = ERR_INIT;
	struct chan_message m;
	for (int i = 0; i < MESSAGES_ONCE; i++) {
		int r = chan_receive(fd, &m, &why);
		if (r == -EAGAIN)
			return 0;
		if (r == 0) {
			/* Its end is told by its pidfd, with the status. */
			loop_remove(&s->channel_source);
			return 0;
		}
		if (r > 0) {
			r = take(s, &m, &why);
			chan_close_fds(&m);
		}
		/* It ended before it was answered. */
		if (r == -EPIPE)
			return 0;
		if (r < 0)
			return punish(s, &why, e);
		if (owes_much(s, m.a)) {
			loop_remove(&s->channel_source);
			return loop_arm(s->pause_timer, PAUSE_MS, e);
		}
	}
	return 0;
}

static int watch_channel(struct service *s, struct err *e)
{
	return loop_add_fd(s->loop, s->channel, EPOLLIN, channel_ready, s, &s->channel_source, e);
}

/* The helper of before the pause may have ended, and another run. */
static int pause_over(void *data, struct err *e)
{
	struct service *s = data;
	return s->channel >= 0 && !s->channel_source ? watch_channel(s, e) : 0;
}

int service_start(const struct service_plan *plan, struct loop *loop, struct service **ret, struct err *e)
{
	assert(plan->n_fds > SERVICE_FD_CHANNEL && plan->n_fds <= CHILD_FDS_MAX);
	struct service *s = calloc(1, sizeof(*s));
	if (!s)
		return err_set(e, -ENOMEM, "out of memory");
	s->plan = *plan;
	s->loop = loop;
	s->child = CHILD_INIT;
	s->channel = -1;
	int r = loop_add_timer(loop, start_due, s, &s->start_timer, e);
	if (r == 0)
		r = loop_add_timer(loop, pause_over, s, &s->pause_timer, e);
	if (r == 0)
		r = start(s, e);
	if (r < 0) {
		service_end(s);
		return err_ctx(e, r, "%s", plan->name);
	}
	*ret = s;
	return 0;
}

void service_tell(struct service *s, const struct chan_message *m)
{
	/* The end of the helper is seen by the loop, which starts it anew. */
	if (s->channel >= 0 && chan_send(s->channel, m, NULL) < 0)
		(void)child_signal(&s->child, SIGKILL, NULL);
}

void service_end(struct service *s)
{
	if (!s)
		return;
	stop(s);
	loop_remove(&s->start_timer);
	loop_remove(&s->pause_timer);
	free(s);
}
