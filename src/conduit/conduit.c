#include "conduit/conduit.h"

#include <errno.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "conduit/state.h"
#include "guard/calls.h"
#include "guard/isolate.h"

/* Connections by somebody else than the executor before we give up. */
#define TRIES_MAX 64

/* A process has three pipes; on top come the stream, timers, what a message brings. */
#define FILES_MAX 320

/* Buffers of at most 2 MiB for each of 128 sinks, the automaton that masks secrets, and the program. */
#define MEMORY_MAX (UINT64_C(1) << 29)

int conduit_isolate(const struct conduit_config *config, struct err *e)
{
	/* What conduit_run(), the allocator (mremap) and qsort() (sysinfo, for how much memory it may take) need, and
	 * nothing else. */
	static const int calls[] = {
		SCMP_SYS(read),          SCMP_SYS(write),          SCMP_SYS(pread64),
		SCMP_SYS(close),         SCMP_SYS(recvmsg),        SCMP_SYS(sendmsg),
		SCMP_SYS(accept4),       SCMP_SYS(getsockopt),     SCMP_SYS(fcntl),
		SCMP_SYS(epoll_create1), SCMP_SYS(epoll_ctl),      SCMP_SYS(epoll_wait),
		SCMP_SYS(epoll_pwait),   SCMP_SYS(timerfd_create), SCMP_SYS(timerfd_settime),
		SCMP_SYS(clock_gettime), SCMP_SYS(mmap),           SCMP_SYS(munmap),
		SCMP_SYS(brk),           SCMP_SYS(mremap),         SCMP_SYS(sysinfo),
		SCMP_SYS(getrandom),     SCMP_SYS(exit_group),
	};
	int all[sizeof(calls) / sizeof(calls[0]) + EXTRA_CALLS_MAX];
	memcpy(all, calls, sizeof(calls));
	size_t n = sizeof(calls) / sizeof(calls[0]);
	n += extra_calls(all + n);
	struct isolate_plan plan = {
		.uid = config->uid,
		.syscalls = all,
		.n_syscalls = n,
		.memory_bytes = memory_max(MEMORY_MAX),
		.files = FILES_MAX,
	};
	return isolate_enter(&plan, e);
}

static int tell(struct conduit *c, struct chan_message *m, struct err *e)
{
	m->n_fds = 0;
	int r = chan_send(c->channel, m, e);
	return r < 0 ? err_ctx(e, r, "tell the keeper %s", message_name(m->type)) : 0;
}

int conduit_tell(struct conduit *c, enum message_type type, uint32_t id, uint64_t a, uint64_t b,
		 struct err *e)
{
	struct chan_message m;
	m.type = (uint32_t)type;
	m.id = id;
	m.a = a;
	m.b = b;
	m.n = 0;
	return tell(c, &m, e);
}

int conduit_tell_text(struct conduit *c, enum message_type type, uint32_t id, uint64_t a, const char *text,
		      struct err *e)
{
	struct chan_message m;
	m.type = (uint32_t)type;
	m.id = id;
	m.a = a;
	m.b = 0;
	m.n = (uint32_t)strnlen(text, CHAN_DATA_MAX);
	memcpy(m.data, text, m.n);
	return tell(c, &m, e);
}

int conduit_settle(struct conduit *c, struct err *e)
{
	if (c->phase != PHASE_CLOSED)
		return 0;
	for (size_t i = 0; i < CONDUIT_PROCESSES; i++)
		if (c->processes[i].state != PROCESS_NONE)
			return 0;
	loop_stop(c->loop);
	return conduit_tell(c, MESSAGE_CLOSED, 0, 0, 0, e);
}

static int keeper_start(struct conduit *c, struct chan_message *m, struct err *e)
{
	return process_start(c, m, e);
}

/* A signal or a size for a process that has ended meanwhile comes too late, which is nobody's fault. */
static int keeper_signal(struct conduit *c, struct chan_message *m, struct err *e)
{
	if (m->a < 1 || m->a > 64)
		return err_set(e, -EPROTO, "SIGNAL with number %llu", (unsigned long long)m->a);
	if (!process_find(c, m->id) || c->phase != PHASE_OPEN)
		return 0;
	c->to_guest.which_message = ermite_ToGuest_signal_tag;
	c->to_guest.message.signal = (ermite_Signal){.id = m->id, .number = (uint32_t)m->a};
	return stream_queue(c, e);
}

static int keeper_resize(struct conduit *c, struct chan_message *m, struct err *e)
{
	if (m->a > UINT16_MAX || m->b > UINT16_MAX)
		return err_set(e, -EPROTO, "RESIZE to %llu × %llu", (unsigned long long)m->a,
			       (unsigned long long)m->b);
	if (!process_find(c, m->id) || c->phase != PHASE_OPEN)
		return 0;
	c->to_guest.which_message = ermite_ToGuest_resize_tag;
	c->to_guest.message.resize =
		(ermite_Resize){.id = m->id, .rows = (uint32_t)m->a, .columns = (uint32_t)m->b};
	return stream_queue(c, e);
}

static int keeper_secrets(struct conduit *c, struct chan_message *m, struct err *e)
{
	if (c->masking_fixed)
		return err_set(e, -EPROTO, "SECRETS twice or after a START");
	c->masking_fixed = true;
	scoped_fd int fd = chan_take_fd(m, 0);
	scoped_free char *secrets = malloc(MASK_SECRETS_MAX + 1);
	if (!secrets)
		return err_set(e, -ENOMEM, "out of memory");
	size_t ignored = 0;
	ssize_t n = file_read_all(fd, secrets, MASK_SECRETS_MAX + 1, e);
	int r = n < 0 ? (int)n : mask_new(secrets, (size_t)n, &c->mask, &ignored, e);
	explicit_bzero(secrets, MASK_SECRETS_MAX + 1);
	return r < 0 ? err_ctx(e, r, "secrets") : 0;
}

/* What the keeper may send. */
static const struct order {
	uint32_t type;
	int (*take)(struct conduit *c, struct chan_message *m, struct err *e);
} orders[] = {
	{MESSAGE_START, keeper_start},
	{MESSAGE_SIGNAL, keeper_signal},
	{MESSAGE_RESIZE, keeper_resize},
	{MESSAGE_SECRETS, keeper_secrets},
};

static int take_order(struct conduit *c, struct chan_message *m, struct err *e)
{
	uint32_t least = 0;
	uint32_t most = 0;
	message_fds(m->type, &least, &most);
	for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
		if (orders[i].type != m->type)
			continue;
		if (!message_permitted(m->type, SENDER_KEEPER) || m->n_fds < least || m->n_fds > most)
			break;
		return orders[i].take(c, m, e);
	}
	return err_set(e, -EPROTO, "%s with %u descriptors is no message for the conduit",
		       message_name(m->type), m->n_fds);
}

static int keeper_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct conduit *c = data;
	struct chan_message m;
	int r = chan_receive(fd, &m, e);
	if (r == 0) {
		loop_stop(c->loop);
		return 0;
	}
	if (r < 0)
		return err_ctx(e, r, "from the keeper");
	r = take_order(c, &m, e);
	chan_close_fds(&m);
	return r < 0 ? r : stream_flush(c, e);
}

/* Takes the first connection by the executor's uid; then nobody else can connect. */
static int listener_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct conduit *c = data;
	scoped_fd int guest = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (guest < 0)
		return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : err_sys(e, "accept");
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);
	if (getsockopt(guest, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
		return err_sys(e, "ask who has connected");
	if (peer.uid != c->config->peer_uid) {
		c->tries++;
		c->violated = c->tries >= TRIES_MAX;
		return c->violated
			       ? err_set(e, -EPROTO, "%u connections, none of them by the executor", c->tries)
			       : 0;
	}
	loop_remove(&c->listener_source);
	fd_close(&c->listener);
	return stream_open(c, fd_steal(&guest), e);
}

static void conduit_free(struct conduit *c)
{
	if (c->loop) {
		for (size_t i = 0; i < CONDUIT_PROCESSES; i++)
			process_release(&c->processes[i]);
		loop_free(c->loop);
	}
	mask_free(c->mask);
	queue_done(&c->out);
	fd_close(&c->guest);
	fd_close(&c->listener);
	fd_close(&c->channel);
	free(c);
}

static int prepare(struct conduit *c, struct err *e)
{
	c->loop = loop_new();
	if (!c->loop)
		return err_sys(e, "make an event loop");
	for (size_t i = 0; i < CONDUIT_PROCESSES; i++) {
		c->processes[i] = (struct process){.conduit = c,
						   .state = PROCESS_NONE,
						   .feed = FEED_INIT,
						   .sinks = {SINK_INIT, SINK_INIT}};
	}
	int r = loop_add_fd(c->loop, c->listener, EPOLLIN, listener_ready, c, &c->listener_source, e);
	if (r == 0)
		r = loop_add_fd(c->loop, c->channel, EPOLLIN, keeper_ready, c, &c->channel_source, e);
	return r;
}

int conduit_run(const struct conduit_config *config, int channel, int listener, struct err *e)
{
	scoped_fd int channel_held = channel;
	scoped_fd int listener_held = listener;
	struct conduit *c = calloc(1, sizeof(*c));
	if (!c)
		return err_set(e, -ENOMEM, "out of memory");
	c->config = config;
	c->channel = fd_steal(&channel_held);
	c->listener = fd_steal(&listener_held);
	c->guest = -1;
	c->out = QUEUE_INIT(CONDUIT_OUT_MAX);
	struct err why = ERR_INIT;
	int r = prepare(c, &why);
	if (r == 0)
		r = loop_run(c->loop, &why);
	if (r < 0 && c->violated)
		r = conduit_tell_text(c, MESSAGE_PROTOCOL, 0, 0, why.msg, &why);
	conduit_free(c);
	return r < 0 ? err_set(e, r, "%s", why.msg) : 0;
}
