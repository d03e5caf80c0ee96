#include "net/dns/dns.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "guard/calls.h"
#include "guard/isolate.h"
#include "net/dns/state.h"
#include "spec/message.h"

/* Its state, an answer over TCP for every question, what waits for every connection, and the program. */
#define MEMORY_MAX (UINT64_C(1) << 26)

/* Full pools, a socket for every question and connection, a message's descriptors, and what it starts with. What may be
 * closed ends at 511. */
#define FILES_MAX 480

/* Descriptors 0 to 9 stay what they are: nothing that allows a number may come to mean another socket. Written to are
 * those behind them, which are connected, standard error and the log. A datagram goes to an address of the program's
 * choice by DNS_FD_UDP only, which is bound to the sandbox's link: the sockets to resolvers live in the host's network
 * namespace and would reach all of it. */
#define BEHIND(call, mask, value)                                                                            \
	{                                                                                                    \
		SCMP_SYS(call), 0, UINT32_MAX & ~(uint64_t)(mask), (value)                                   \
	}
#define BEHIND_ALL(call)                                                                                     \
	BEHIND(call, 1, 10), BEHIND(call, 3, 12), BEHIND(call, 15, 16), BEHIND(call, 31, 32),                \
		BEHIND(call, 63, 64), BEHIND(call, 127, 128), BEHIND(call, 255, 256)

_Static_assert(DNS_FDS == 10, "the first of what is behind");

static const struct isolate_rule rules[] = {
	BEHIND_ALL(close),
	BEHIND_ALL(write),
	BEHIND(write, 0, 2),
	BEHIND(write, 0, DNS_FD_LOG),
	BEHIND(sendto, 0, DNS_FD_UDP),
	BEHIND(sendmsg, 0, DNS_FD_CHANNEL),
	BEHIND(accept4, 0, DNS_FD_TCP),
};

int dns_isolate(uid_t uid, struct err *e)
{
	static const int calls[] = {
		SCMP_SYS(read),      SCMP_SYS(recvfrom),        SCMP_SYS(recvmsg),       SCMP_SYS(recvmmsg),
		SCMP_SYS(epoll_ctl), SCMP_SYS(epoll_wait),      SCMP_SYS(epoll_pwait),   SCMP_SYS(getrandom),
		SCMP_SYS(mmap),      SCMP_SYS(timerfd_settime), SCMP_SYS(clock_gettime), SCMP_SYS(munmap),
		SCMP_SYS(brk),       SCMP_SYS(mremap),          SCMP_SYS(exit_group),
	};
	int all[sizeof(calls) / sizeof(calls[0]) + EXTRA_CALLS_MAX];
	memcpy(all, calls, sizeof(calls));
	size_t n = sizeof(calls) / sizeof(calls[0]);
	n += extra_calls(all + n);
	const struct isolate_plan plan = {
		.uid = uid,
		.syscalls = all,
		.n_syscalls = n,
		.rules = rules,
		.n_rules = sizeof(rules) / sizeof(rules[0]),
		.memory_bytes = memory_max(MEMORY_MAX),
		.files = FILES_MAX,
	};
	return isolate_enter(&plan, e);
}

static int read_config(struct dns_config *ret, struct err *e)
{
	struct dns_config c = {0};
	/* From the start, whoever has read it before. */
	ssize_t n = pread(DNS_FD_CONFIG, &c, sizeof(c), 0);
	if (n < 0)
		return err_sys(e, "read the configuration");
	if (n != (ssize_t)sizeof(c) || c.magic != DNS_CONFIG_MAGIC || c.n_resolvers > DIAL_TARGETS_MAX ||
	    c.allow.n > NETWORK_EXCEPTIONS_MAX || !memchr(c.forge_name, '\0', sizeof(c.forge_name)))
		return err_set(e, -EINVAL, "the configuration is not one of this build");
	*ret = c;
	return 0;
}

static int set_nonblocking(int fd, struct err *e)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return err_sys(e, "prepare descriptor %d", fd);
	return 0;
}

static int map_counts(struct dns *d, struct err *e)
{
	struct stat st = {0};
	if (fstat(DNS_FD_COUNTS, &st) < 0)
		return err_sys(e, "look at the counters");
	if ((uint64_t)st.st_size < sizeof(*d->counts))
		return err_set(e, -EINVAL, "the counters have no room");
	void *p = mmap(NULL, sizeof(*d->counts), PROT_READ | PROT_WRITE, MAP_SHARED, DNS_FD_COUNTS, 0);
	if (p == MAP_FAILED)
		return err_sys(e, "map the counters");
	d->counts = p;
	return 0;
}

/* What the keeper may send. */
static int take_message(struct dns *d, struct chan_message *m, struct err *e)
{
	if (m->type == MESSAGE_RESOLVERS && m->b <= DIAL_TARGETS_MAX)
		upstream_resolvers(d, (uint32_t)m->a, (uint32_t)m->b);
	else if (m->type == MESSAGE_SOCKETS)
		upstream_sockets(d, m);
	else
		return err_set(e, -EPROTO, "%s is no message for the forwarder", message_name(m->type));
	return 0;
}

static int keeper_ready(void *data, int fd, uint32_t, struct err *e)
{
	struct dns *d = data;
	struct chan_message m;
	d->now_ms = clock_boot_ms();
	int r = chan_receive(fd, &m, e);
	if (r == 0)
		loop_stop(d->loop);
	if (r == 0 || r == -EAGAIN)
		return 0;
	if (r > 0)
		r = take_message(d, &m, e);
	if (r < 0)
		return err_ctx(e, r, "from the keeper");
	chan_close_fds(&m);
	return dns_settle(d, e);
}

void dns_due(struct dns *d, uint64_t ms)
{
	d->due_ms = ms < d->due_ms ? ms : d->due_ms;
}

static int timer_fired(void *data, struct err *e)
{
	struct dns *d = data;
	d->now_ms = clock_boot_ms();
	d->armed_ms = NO_DEADLINE;
	questions_expire(d);
	clients_expire(d);
	upstream_expire(d);
	d->due_ms = NO_DEADLINE;
	dns_due(d, clients_deadline(d));
	dns_due(d, questions_deadline(d));
	dns_due(d, upstream_deadline(d));
	return dns_settle(d, e);
}

/* What is done with privilege: nothing here reads what somebody else has written. */
static int prepare(struct dns *d, struct err *e)
{
	int on = 1;
	int r = map_counts(d, e);
	if (r == 0)
		r = set_nonblocking(DNS_FD_TCP, e);
	if (r == 0)
		r = set_nonblocking(DNS_FD_CHANNEL, e);
	if (r == 0 && d->config->log)
		r = set_nonblocking(DNS_FD_LOG, e);
	/* Connections inherit it: pipelined answers do not wait for each other. */
	if (r == 0 && setsockopt(DNS_FD_TCP, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		r = err_sys(e, "prepare the listener");
	if (r < 0)
		return r;
	log_open(d);
	(void)signal(SIGPIPE, SIG_IGN);
	d->loop = loop_new();
	if (!d->loop)
		return err_sys(e, "make an event loop");
	return loop_add_timer(d->loop, timer_fired, d, &d->timer, e);
}

int dns_settle(struct dns *d, struct err *e)
{
	int r = clients_settle(d, e);
	if (r < 0)
		return r;
	/* It is armed anew only for what comes earlier: most questions are answered before it would fire. */
	if (d->due_ms >= d->armed_ms)
		return 0;
	d->armed_ms = d->due_ms;
	return loop_arm(d->timer, d->due_ms > d->now_ms ? d->due_ms - d->now_ms : 1, e);
}

static int serve(struct dns *d, struct err *e)
{
	d->now_ms = clock_boot_ms();
	d->armed_ms = d->due_ms = NO_DEADLINE;
	int r = loop_add_fd(d->loop, DNS_FD_CHANNEL, EPOLLIN, keeper_ready, d, &d->channel_source, e);
	if (r == 0 && d->config->log)
		r = loop_add_fd(d->loop, DNS_FD_REFUSED, EPOLLIN, log_refused, d, &d->refused_source, e);
	if (r == 0)
		r = clients_open(d, e);
	if (r < 0)
		return r;
	upstream_open(d);
	return loop_run(d->loop, e);
}

static void dns_free(struct dns *d)
{
	questions_close(d);
	clients_close(d);
	upstream_close(d);
	log_close(d);
	loop_free(d->loop);
	free(d);
}

static int run(struct err *e)
{
	struct dns_config config = {0};
	int r = read_config(&config, e);
	if (r < 0)
		return r;
	struct dns *d = calloc(1, sizeof(*d));
	if (!d)
		return err_set(e, -ENOMEM, "out of memory");
	d->config = &config;
	clients_init(d);
	questions_init(d);
	r = prepare(d, e);
	if (r == 0)
		r = dns_isolate(config.uid, e);
	if (r == 0)
		r = serve(d, e);
	dns_free(d);
	return r;
}

int dns_run(void)
{
	struct err e = ERR_INIT;
	int r = run(&e);
	if (r < 0)
		log_error("%s", e.msg);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
