/*
 * The program ermite-dns: forwards one sandbox's DNS questions to the host's resolvers.
 *
 * Unprivileged (guard/isolate.h): it reads what the sandbox sends, and what comes back from outside. It listens on two
 * sockets that the keeper opened on the gateway's address in the gateway namespace, and asks the host's resolvers
 * through sockets that the keeper makes (net/dial.h). It keeps no answers. When it dies the keeper starts it anew on
 * the same listeners.
 */
#ifndef ERMITE_NET_DNS_DNS_H
#define ERMITE_NET_DNS_DNS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/network.h"

enum dns_fd {
	DNS_FD_CONFIG = 3, /* memfd with a struct dns_config */
	DNS_FD_CHANNEL,    /* to the keeper: DIAL out, SOCKETS and RESOLVERS in */
	DNS_FD_UDP,        /* bound to gateway:port, and to the sandbox's link once that is there */
	DNS_FD_TCP,        /* listening on the same */
	DNS_FD_COUNTS,     /* memfd with a struct dns_counts, mapped shared; the keeper reads it at the end */
	DNS_FD_LOG,        /* pipe for JSON lines, if log */
	DNS_FD_REFUSED,    /* netlink log socket with the refused packets, if log */
	DNS_FDS,
};

#define DNS_CONFIG_MAGIC 0x31736e64u

struct dns_config {
	uint32_t magic;
	uint32_t uid;
	uint32_t guest, gateway; /* addresses, host order */
	uint32_t n_resolvers, generation;
	bool log;
	bool forge;           /* forge_name has the gateway's address */
	char forge_name[256]; /* as text, without a last dot */
	struct network_allow allow;

	/* Deadlines, as dns_config_init() sets them. */
	uint32_t udp_ms;        /* for a resolver to answer over UDP */
	uint32_t tcp_ms;        /* and then over TCP; the last resolver has until the end of the question */
	uint32_t question_ms;   /* for a question in all */
	uint32_t message_ms;    /* for a client to complete a message over TCP that it has begun */
	uint32_t connection_ms; /* life of a client's TCP connection */
};

struct dns_counts {
	uint64_t questions; /* well-formed ones, also those answered here */
	uint64_t forwarded; /* asked upstream: equal ones in flight once */
	uint64_t failed;    /* SERVFAIL for want of an answer */
	uint64_t refused;   /* answered with an error by rule, answers with denied addresses among them */
	uint64_t dropped;   /* not answered: malformed, too many in flight, not from the sandbox */
	uint64_t forged;    /* upstream's answers with a wrong id, port or question */
	uint64_t log_lost;  /* lines that did not fit the pipe */
};

/* Empties a configuration but for its magic number and the deadlines of the specification. */
void dns_config_init(struct dns_config *c);

/* Runs the program: isolates itself for good with what stands at the descriptors above, and answers until the keeper
 * closes the channel. Returns what it exits with. */
int dns_run(void);

#endif
