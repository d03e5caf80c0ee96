/*
 * The unprivileged helpers of one sandbox's network, ermite-dns and with guest forge access ermite-relay: started,
 * served with sockets, and started anew when they die. Lives in the keeper, whose current network namespace is the
 * host's: that is where their sockets lead.
 */
#ifndef ERMITE_NET_SERVICES_H
#define ERMITE_NET_SERVICES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "io/loop.h"
#include "net/dns/dns.h"
#include "spec/config.h"

struct services;

struct services_plan {
	const struct config *config; /* borrowed for the life of the services, as everything here */
	const char *id;
	uint32_t slot;
	int gateway_fd; /* the gateway's network namespace: the listeners are opened there */
	int root_fd;    /* the host's root directory, where etc/resolv.conf is looked up */
	int log_fd;     /* pipe for the JSON lines of --network-log, -1: none */
	const char *
		programs; /* the directory of ermite-dns and ermite-relay; NULL: where libexec_path() finds them */

	/* Called with every process that is started; its number goes into the record. */
	int (*started)(void *data, const char *name, pid_t pid, struct err *e);
	/* Called with a sentence that a person should read. */
	void (*warn)(void *data, const char *sentence);
	void *data;
};

/* Opens the listeners and starts the helpers. Nothing reaches them before the gateway's address is there, on the link
 * that services_bind() is to be called with first. Returns 0 and the services (caller's), or a negative errno with a
 * sentence, also when the target of guest forge access cannot be resolved. loop may be run later. Enters the gateway's
 * network namespace and the host's root directory for a moment: for a process without threads. */
[[nodiscard]] int services_start(const struct services_plan *plan, struct loop *loop, struct services **ret,
				 struct err *e);

/* Binds the listeners to the sandbox's link, which is there now: nothing that came in elsewhere is answered. */
[[nodiscard]] int services_bind(struct services *s, const char *link, struct err *e);

/* What the forwarder counted so far, over all its lives. */
void services_counts(const struct services *s, struct dns_counts *ret);

/* Ends the helpers and frees everything; NULL is fine. Call it before loop_free(). */
void services_end(struct services *s);

#endif
