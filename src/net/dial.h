/*
 * Sockets to where a helper's packets may go, made by the keeper in the host's network namespace.
 *
 * The helpers that read what a sandbox sends (ermite-dns, ermite-relay) live in an empty network namespace and cannot
 * make a socket that leads anywhere. They ask the keeper with DIAL for sockets to a target by its number; the keeper
 * connects them and hands them over with SOCKETS. Only the keeper knows addresses: the targets come from the host's
 * resolv.conf and from the configuration, never from the helper. A UDP socket is connected, and on a random port of the
 * upper half of all; it is used for one question. A TCP socket is connecting (EINPROGRESS) when it is handed over.
 * None of them blocks.
 */
#ifndef ERMITE_NET_DIAL_H
#define ERMITE_NET_DIAL_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/err.h"
#include "io/chan.h"
#include "spec/network.h"

#define DIAL_TARGETS_MAX 3 /* as many resolvers as a C library uses */

enum dial_kind { DIAL_UDP = 0, DIAL_TCP = 1 };

struct dial_target {
	struct sockaddr_storage address;
	socklen_t n;
};

/* Where a helper's sockets may lead. Plain data. */
struct dial_targets {
	uint32_t n;
	struct dial_target items[DIAL_TARGETS_MAX];
};

/* Reads the name servers of a resolv.conf text, as many as there is room for; takes an address that is named twice
 * once. What is no address, and addresses that own holds (the sandboxes' own network: a loop), are left out with a line
 * each in notes. Never fails: without a server it is 127.0.0.1, as the C library says. */
void dial_read_resolvers(const char *text, uint16_t port, const struct cidr *own, struct dial_targets *ret,
			 struct buf *notes);

/* True for the same addresses in the same order. */
bool dial_targets_are_same(const struct dial_targets *a, const struct dial_targets *b);

/* Answers one DIAL of a helper on its channel: m->id is the target's number, m->a how many sockets, m->b the kind. A
 * target that is not there, or a socket that cannot be made, is answered with SOCKETS without descriptors, or with
 * fewer. Returns 0, -EPROTO for a message that asks for what is not allowed, or a negative errno of the channel. */
[[nodiscard]] int dial_answer(const struct dial_targets *targets, uint32_t generation, int channel,
			      const struct chan_message *m, struct err *e);

#endif
