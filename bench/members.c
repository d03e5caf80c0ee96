/*
 * Measures what a sandbox's network costs where others are: fills a gateway with members, then adds and removes one more.
 *
 *   members SANDBOXES ROUNDS PRESENT...
 *
 * SANDBOXES is the directory <state>/sandboxes, so that it joins the gateway of sandboxes that run there; without one it
 * makes the gateway. For each PRESENT, in ascending order, it adds members until there are so many, and prints a line:
 * that number, and medians of ROUNDS in microseconds, of adding one more and of removing it. Then it waits for the end of
 * standard input. The members stay until the namespaces end that all this happens in, which must not be the machine's own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/scope.h"
#include "net/gateway.h"
#include "net/members.h"
#include "net/plug.h"
#include "spec/config.h"
#include "spec/network.h"
#include "sys/host.h"
#include "sys/link.h"
#include "sys/netlink.h"

#define SLOT_FIRST  8000u /* beyond those that a runner beside this takes */
#define PRESENT_MAX 4000
#define ROUNDS_MAX  500

struct members {
	struct host host;
	struct config config;
	int gateway;
};

/* What a keeper does for its sandbox's network, from the lock to the link that is up. */
static int add(const struct members *m, uint32_t slot, int sandbox, struct err *e)
{
	static const struct network_allow allow;
	char link[NETWORK_LINK_SIZE];
	slot_link(ISOLATION_SYSTEM, slot, link);
	const struct member member = {.config = &m->config, .allow = &allow, .link = link, .slot = slot};
	const struct plug plug = {.gateway = m->gateway,
				  .sandbox = sandbox,
				  .link = link,
				  .slot = slot,
				  .gateway_address = slot_gateway(&m->config, slot),
				  .guest_address = slot_guest(&m->config, slot),
				  .mtu = 1500};
	scoped_fd int lock = -1;
	int r = gateway_lock(&m->host, &lock, e);
	if (r == 0)
		r = members_add(m->gateway, &member, e);
	fd_close(&lock);
	return r < 0 ? r : plug_in(&plug, e);
}

static int take_out(const struct members *m, uint32_t slot, struct err *e)
{
	char link[NETWORK_LINK_SIZE];
	scoped_fd int lock = -1;
	slot_link(ISOLATION_SYSTEM, slot, link);
	int r = gateway_lock(&m->host, &lock, e);
	return r < 0 ? r : members_remove(m->gateway, link, e);
}

/* In a sandbox the link goes with its namespace, which nobody waits for. */
static int remove_link(const struct members *m, uint32_t slot, struct err *e)
{
	char link[NETWORK_LINK_SIZE];
	struct netlink *n = NULL;
	slot_link(ISOLATION_SYSTEM, slot, link);
	int r = netlink_open(NETLINK_ROUTE, m->gateway, &n, e);
	if (r == 0)
		r = link_delete(n, link, e);
	netlink_close(n);
	return r;
}

static int open_gateway(struct members *m, const char *sandboxes, struct err *e)
{
	scoped_buf struct buf notes = BUF_INIT(8192);
	scoped_fd int lock = -1;
	scoped_fd int store = open(sandboxes, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store < 0)
		return err_sys(e, "open %s", sandboxes);
	config_defaults(&m->config);
	const struct gateway_plan plan = {
		.network = {.address = m->config.network_address, .bits = m->config.network_prefix},
		.store_fd = store};
	int r = host_open(&m->host, e);
	if (r == 0)
		r = gateway_lock(&m->host, &lock, e);
	return r < 0 ? r : gateway_ensure(&m->host, &plan, &m->gateway, &notes, e);
}

/* Adds members until there are present. Each one's namespace is held by a descriptor, which lives as long as this
 * process. */
static int fill(const struct members *m, uint32_t *n, uint64_t present, struct err *e)
{
	int r = 0;
	for (; *n < present && r == 0; ++*n) {
		int sandbox = -1;
		r = netns_make(&sandbox, e);
		if (r == 0)
			r = add(m, SLOT_FIRST + *n, sandbox, e);
	}
	return r;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static int measure(const struct members *m, uint32_t n, uint64_t rounds, struct err *e)
{
	const uint32_t slot = SLOT_FIRST + n;
	uint64_t adding[ROUNDS_MAX];
	uint64_t removing[ROUNDS_MAX];
	scoped_fd int sandbox = -1;
	int r = netns_make(&sandbox, e);
	for (uint64_t i = 0; i < rounds && r == 0; i++) {
		uint64_t start = clock_boot_ns();
		r = add(m, slot, sandbox, e);
		uint64_t added = clock_boot_ns();
		if (r == 0)
			r = take_out(m, slot, e);
		adding[i] = added - start;
		removing[i] = clock_boot_ns() - added;
		if (r == 0)
			r = remove_link(m, slot, e);
	}
	if (r < 0)
		return r;
	qsort(adding, rounds, sizeof(adding[0]), compare);
	qsort(removing, rounds, sizeof(removing[0]), compare);
	(void)printf("%u %llu %llu\n", n, (unsigned long long)adding[rounds / 2] / 1000,
		     (unsigned long long)removing[rounds / 2] / 1000);
	(void)fflush(stdout);
	return 0;
}

static int run(struct members *m, char **arguments, struct err *e)
{
	const struct rlimit files = {.rlim_cur = PRESENT_MAX + 64, .rlim_max = PRESENT_MAX + 64};
	uint64_t rounds = 0;
	uint64_t present = 0;
	uint32_t n = 0;
	char byte;
	if (num_parse(arguments[1], 1, ROUNDS_MAX, &rounds) < 0)
		return err_set(e, -EINVAL, "how many rounds?");
	if (setrlimit(RLIMIT_NOFILE, &files) < 0)
		return err_sys(e, "allow open files");
	int r = open_gateway(m, arguments[0], e);
	for (arguments += 2; *arguments && r == 0; arguments++) {
		if (num_parse(*arguments, 0, PRESENT_MAX, &present) < 0)
			return err_set(e, -EINVAL, "how many members?");
		r = fill(m, &n, present, e);
		if (r == 0)
			r = measure(m, n, rounds, e);
	}
	while (r == 0 && read(STDIN_FILENO, &byte, 1) > 0)
		;
	return r;
}

int main(int argc, char **argv)
{
	struct err e = ERR_INIT;
	struct members m = {.host = HOST_INIT, .gateway = -1};
	int r = argc < 4 ? err_set(&e, -EINVAL, "usage: members SANDBOXES ROUNDS PRESENT...")
			 : run(&m, argv + 1, &e);
	host_close(&m.host);
	fd_close(&m.gateway);
	if (r < 0)
		(void)fprintf(stderr, "members: %s\n", e.msg);
	return r < 0;
}
