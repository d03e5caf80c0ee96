/*
 * Plays the keeper for one ermite-dns, so that it can be measured and attacked without a sandbox: opens the listeners,
 * starts the program with its descriptors and namespaces, and hands over sockets to the resolvers.
 *
 *   dnshost PROGRAM LISTEN GUEST PORT LOG RESOLVER:PORT...
 *
 * LOG is a named pipe for the JSON lines, or "". Ends with standard input; then it prints the counters.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "base/scope.h"
#include "guard/isolate.h"
#include "io/chan.h"
#include "io/child.h"
#include "net/dial.h"
#include "net/dns/dns.h"

struct host {
	const char *program;
	struct sockaddr_in listen;
	struct in_addr guest;
	const char *log;
	struct dial_targets resolvers;
	int channel;
	struct dns_counts *counts;
	struct child child;
};

static int open_listener(const struct host *h, int type, int *ret, struct err *e)
{
	int on = 1;
	scoped_fd int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(e, "make a listener");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(fd, (const struct sockaddr *)&h->listen, sizeof(h->listen)) < 0 ||
	    (type == SOCK_STREAM && listen(fd, 128) < 0))
		return err_sys(e, "listen");
	*ret = fd_steal(&fd);
	return 0;
}

static int open_counts(struct host *h, int *ret, struct err *e)
{
	*ret = memfd_create("counts", MFD_CLOEXEC);
	if (*ret < 0 || ftruncate(*ret, sizeof(*h->counts)) < 0)
		return err_sys(e, "make the counters");
	void *p = mmap(NULL, sizeof(*h->counts), PROT_READ, MAP_SHARED, *ret, 0);
	if (p == MAP_FAILED)
		return err_sys(e, "map the counters");
	h->counts = p;
	return 0;
}

static int start(struct host *h, struct err *e)
{
	struct dns_config config;
	dns_config_init(&config);
	config.uid = 987'654;
	config.guest = ntohl(h->guest.s_addr);
	config.gateway = ntohl(h->listen.sin_addr.s_addr);
	config.n_resolvers = h->resolvers.n;
	config.log = h->log[0] != '\0';
	int ends[2];
	scoped_fd int config_fd = -1;
	scoped_fd int udp = -1;
	scoped_fd int tcp = -1;
	scoped_fd int counts = -1;
	scoped_fd int log = config.log ? open(h->log, O_RDWR | O_CLOEXEC) : -1;
	int r = file_memfd("config", &config, sizeof(config), &config_fd, e);
	if (r == 0)
		r = open_listener(h, SOCK_DGRAM, &udp, e);
	if (r == 0)
		r = open_listener(h, SOCK_STREAM, &tcp, e);
	if (r == 0)
		r = open_counts(h, &counts, e);
	if (r == 0)
		r = chan_pair(ends, e);
	if (r < 0)
		return r;
	h->channel = ends[0];
	scoped_fd int far = ends[1];
	/* A socket on which no packet is ever told. */
	scoped_fd int refused = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	const char *const arguments[] = {"ermite-dns", NULL};
	const int fds[DNS_FDS] = {-1, -1, STDERR_FILENO, config_fd, far, udp, tcp, counts, log, refused};
	const struct child_plan plan = {.path = h->program,
					.arguments = arguments,
					.fds = fds,
					.n_fds = DNS_FDS,
					.clone_flags = isolate_clone_flags(),
					.die_with_parent = true};
	return child_start(&plan, &h->child, e);
}

static int serve(const struct host *h, struct err *e)
{
	struct pollfd polled[] = {{.fd = h->channel, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
	char byte;
	while (poll(polled, 2, -1) > 0) {
		if (polled[1].revents && read(0, &byte, 1) <= 0)
			return 0;
		if (!polled[0].revents)
			continue;
		struct chan_message m;
		int r = chan_receive(h->channel, &m, e);
		if (r == 0)
			return err_set(e, -EPIPE, "the forwarder has ended");
		if (r > 0)
			r = dial_answer(&h->resolvers, 0, h->channel, &m, e);
		if (r < 0)
			return r;
	}
	return err_sys(e, "wait");
}

static int parse(struct host *h, char **arguments, struct err *e)
{
	uint64_t port = 0;
	*h = (struct host){.program = arguments[0],
			   .listen.sin_family = AF_INET,
			   .log = arguments[4],
			   .channel = -1,
			   .child = CHILD_INIT};
	if (inet_pton(AF_INET, arguments[1], &h->listen.sin_addr) != 1 ||
	    inet_pton(AF_INET, arguments[2], &h->guest) != 1 ||
	    num_parse(arguments[3], 1, UINT16_MAX, &port) < 0)
		return err_set(e, -EINVAL, "no address");
	h->listen.sin_port = htons((uint16_t)port);
	for (arguments += 5; *arguments && h->resolvers.n < DIAL_TARGETS_MAX; arguments++) {
		struct sockaddr_in to = {.sin_family = AF_INET};
		char *colon = strchr(*arguments, ':');
		if (colon)
			*colon = '\0';
		if (!colon || inet_pton(AF_INET, *arguments, &to.sin_addr) != 1 ||
		    num_parse(colon + 1, 1, UINT16_MAX, &port) < 0)
			return err_set(e, -EINVAL, "no resolver");
		to.sin_port = htons((uint16_t)port);
		struct dial_target *target = &h->resolvers.items[h->resolvers.n++];
		memcpy(&target->address, &to, sizeof(to));
		target->n = sizeof(to);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct err e = ERR_INIT;
	struct host h = {0};
	struct child_end end = {0};
	int r = argc < 6 ? err_set(&e, -EINVAL,
				   "usage: dnshost PROGRAM LISTEN GUEST PORT LOG RESOLVER:PORT...")
			 : parse(&h, argv + 1, &e);
	if (r == 0)
		r = start(&h, &e);
	if (r == 0)
		r = serve(&h, &e);
	fd_close(&h.channel);
	if (r == 0)
		r = child_wait(&h.child, 2000, &end, &e);
	if (h.counts)
		(void)printf(
			"questions %llu forwarded %llu failed %llu refused %llu dropped %llu forged %llu\n",
			(unsigned long long)h.counts->questions, (unsigned long long)h.counts->forwarded,
			(unsigned long long)h.counts->failed, (unsigned long long)h.counts->refused,
			(unsigned long long)h.counts->dropped, (unsigned long long)h.counts->forged);
	if (r == 0 && (end.status != 0 || end.signal != 0))
		r = err_set(&e, -EPROTO, "it ended with status %d, signal %d", end.status, end.signal);
	if (r < 0)
		(void)fprintf(stderr, "dnshost: %s\n", e.msg);
	return r < 0;
}
