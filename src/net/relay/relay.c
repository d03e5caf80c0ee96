#include "net/relay/relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/scope.h"
#include "guard/calls.h"
#include "guard/isolate.h"
#include "io/chan.h"
#include "net/dial.h"
#include "net/relay/connection.h"
#include "spec/message.h"

#define CONNECTIONS_CAP 1024

/* The program, the C library, and the sources of the loop. */
#define MEMORY_OWN (UINT64_C(1) << 25)

/* A timer and two sockets for each connection, one more that is looked at, a message's, and what it starts with. */
#define FILES_OWN 48

#define ACCEPTS_ONCE 16 /* before others have their turn */

struct relay {
	struct relay_config config;
	struct connection_owner owner;
	struct loop *loop;
	struct source *channel_source;
	struct source *listener_source; /* NULL while every row is taken */
	struct connection *connections; /* config.connections_max of them */
};

/* The sockets to the target are of the host's network namespace. One that has failed could be connected anew, to
 * whatever the host reaches, by a datagram call with an address and MSG_FASTOPEN: so there is none but sendmsg() with
 * exactly the flag that the channel needs. Of options only SO_LINGER can be set, which is how a connection is reset;
 * its number is TCP_CONGESTION and IP_RECVTOS under other levels, which do no harm. */
static const struct isolate_rule rules[] = {
	{SCMP_SYS(sendmsg), 2, UINT32_MAX, MSG_NOSIGNAL},
	{SCMP_SYS(setsockopt), 2, UINT32_MAX, SO_LINGER},
};

static int isolate(const struct relay_config *config, struct err *e)
{
	static const int calls[] = {
		SCMP_SYS(read),          SCMP_SYS(write),       SCMP_SYS(close),    SCMP_SYS(recvmsg),
		SCMP_SYS(accept4),       SCMP_SYS(getsockopt),  SCMP_SYS(shutdown), SCMP_SYS(epoll_ctl),
		SCMP_SYS(epoll_wait),    SCMP_SYS(epoll_pwait), SCMP_SYS(mmap),     SCMP_SYS(timerfd_settime),
		SCMP_SYS(clock_gettime), SCMP_SYS(munmap),      SCMP_SYS(brk),      SCMP_SYS(mremap),
		SCMP_SYS(exit_group),
	};
	int all[sizeof(calls) / sizeof(calls[0]) + EXTRA_CALLS_MAX];
	memcpy(all, calls, sizeof(calls));
	size_t n = sizeof(calls) / sizeof(calls[0]);
	n += extra_calls(all + n);
	const struct isolate_plan plan = {
		.uid = config->uid,
		.syscalls = all,
		.n_syscalls = n,
		.rules = rules,
		.n_rules = sizeof(rules) / sizeof(rules[0]),
		.memory_bytes = memory_max(MEMORY_OWN + config->connections_max * sizeof(struct connection)),
		.files = FILES_OWN + 3 * config->connections_max,
	};
	return isolate_enter(&plan, e);
}

static struct connection *find_free(struct relay *r)
{
	for (size_t i = 0; i < r->config.connections_max; i++)
		if (r->connections[i].state == CONNECTION_FREE)
			return &r->connections[i];
	return NULL;
}

/* The connection that has waited longest for a socket. The keeper answers in the order it is asked in, and all sockets
 * lead to the same target. */
static struct connection *find_waiting(struct relay *r)
{
	struct connection *oldest = NULL;
	for (size_t i = 0; i < r->config.connections_max; i++) {
		struct connection *c = &r->connections[i];
		if (c->state == CONNECTION_WAITS && (!oldest || c->begun_ns < oldest->begun_ns))
			oldest = c;
	}
	return oldest;
}

static int begin(struct relay *r, int guest, struct err *e)
{
	struct connection *c = find_free(r);
	int result = connection_begin(c, guest, e);
	if (result < 0)
		return result;
	struct chan_message m;
	m.type = MESSAGE_DIAL;
	m.id = 0;
	m.a = 1;
	m.b = DIAL_TCP;
	m.n = m.n_fds = 0;
	return chan_send(RELAY_FD_CHANNEL, &m, NULL) < 0 ? connection_break(c, e) : 0;
}

/* Takes connections as long as there is room; the others wait in the listener's queue. */
static int listener_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct relay *r = data;
	for (int i = 0; i < ACCEPTS_ONCE && find_free(r); i++) {
		struct sockaddr_in from = {0};
		socklen_t n = sizeof(from);
		scoped_fd int guest = accept4(fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (guest < 0)
			return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
				       ? 0
				       : err_sys(e, "accept a connection");
		if (from.sin_family != AF_INET || ntohl(from.sin_addr.s_addr) != r->config.guest)
			continue;
		int result = begin(r, fd_steal(&guest), e);
		if (result < 0)
			return result;
	}
	if (!find_free(r))
		loop_remove(&r->listener_source);
	return 0;
}

static int watch_listener(void *data, struct err *e)
{
	struct relay *r = data;
	if (r->listener_source)
		return 0;
	return loop_add_fd(r->loop, RELAY_FD_LISTENER, EPOLLIN, listener_ready, r, &r->listener_source, e);
}

static int channel_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct relay *r = data;
	struct chan_message m;
	int result = chan_receive(fd, &m, e);
	if (result == 0)
		loop_stop(r->loop);
	if (result == 0 || result == -EAGAIN)
		return 0;
	if (result < 0)
		return err_ctx(e, result, "from the keeper");
	struct connection *c = find_waiting(r);
	if (m.type != MESSAGE_SOCKETS)
		result = err_set(e, -EPROTO, "%s is no message for the relay", message_name(m.type));
	else
		result = c ? connection_dialled(c, chan_take_fd(&m, 0), e) : 0;
	chan_close_fds(&m);
	return result < 0 ? result : 0;
}

/* What is done with privilege: nothing here reads what somebody else has written. */
static int prepare(struct relay *r, struct err *e)
{
	if (fcntl(RELAY_FD_LISTENER, F_SETFL, O_RDWR | O_NONBLOCK) < 0 ||
	    fcntl(RELAY_FD_CHANNEL, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
		return err_sys(e, "prepare descriptors");
	(void)signal(SIGPIPE, SIG_IGN);
	r->connections = calloc(r->config.connections_max, sizeof(*r->connections));
	r->loop = r->connections ? loop_new() : NULL;
	if (!r->loop)
		return err_sys(e, "make an event loop");
	r->owner = (struct connection_owner){.loop = r->loop,
					     .idle_ms = r->config.idle_ms,
					     .connect_ms = r->config.connect_ms,
					     .freed = watch_listener,
					     .data = r};
	int result = 0;
	for (size_t i = 0; result == 0 && i < r->config.connections_max; i++)
		result = connection_init(&r->connections[i], &r->owner, e);
	if (result == 0)
		result = loop_add_fd(r->loop, RELAY_FD_CHANNEL, EPOLLIN, channel_ready, r, &r->channel_source,
				     e);
	return result;
}

static int read_config(struct relay_config *ret, struct err *e)
{
	struct relay_config c = {0};
	/* From the start, whoever has read it before. */
	ssize_t n = pread(RELAY_FD_CONFIG, &c, sizeof(c), 0);
	if (n < 0)
		return err_sys(e, "read the configuration");
	if (n != (ssize_t)sizeof(c) || c.magic != RELAY_CONFIG_MAGIC || c.connections_max < 1 ||
	    c.connections_max > CONNECTIONS_CAP)
		return err_set(e, -EINVAL, "the configuration is not one of this build");
	*ret = c;
	return 0;
}

static int run(struct relay *r, struct err *e)
{
	int result = read_config(&r->config, e);
	if (result == 0)
		result = prepare(r, e);
	if (result == 0)
		result = isolate(&r->config, e);
	if (result == 0)
		result = watch_listener(r, e);
	return result < 0 ? result : loop_run(r->loop, e);
}

int relay_run(void)
{
	struct err e = ERR_INIT;
	struct relay r = {0};
	relay_config_init(&r.config);
	int result = run(&r, &e);
	if (result < 0)
		log_error("%s", e.msg);
	loop_free(r.loop);
	free(r.connections);
	return result < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
