/*
 * Watching the host's network namespace for changes that concern the gateway: a flushed firewall, a lost link,
 * another address. What is wrong is made right within a second, by the first of all keepers that sees it.
 */
#ifndef ERMITE_NET_WATCH_H
#define ERMITE_NET_WATCH_H

#include "base/err.h"
#include "io/loop.h"
#include "spec/network.h"
#include "sys/host.h"

struct watch;

struct watch_plan {
	const struct host *host; /* borrowed for the life of the watch, as data */
	struct cidr network;
	int gateway; /* the gateway's network namespace; borrowed */
	/* Called with a sentence that a person should read: what was mended, or what another table blocks. */
	void (*warn)(void *data, const char *sentence);
	void *data;
};

/* Begins to watch. Returns 0 and the watch (caller's), or a negative errno. */
[[nodiscard]] int watch_start(const struct watch_plan *plan, struct loop *loop, struct watch **ret,
			      struct err *e);

/* Ends it; NULL is fine. Call it before loop_free(). */
void watch_end(struct watch *w);

#endif
