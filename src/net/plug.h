/*
 * Plugging a sandbox into the gateway: the pair of links between the two namespaces, with the gate before it from
 * before it is up.
 */
#ifndef ERMITE_NET_PLUG_H
#define ERMITE_NET_PLUG_H

#include <stdint.h>

#include "base/err.h"

/* What is plugged into what; descriptors are borrowed. */
struct plug {
	int gateway; /* network namespaces */
	int sandbox;
	const char *link; /* in the gateway */
	uint32_t slot;
	uint32_t gateway_address, guest_address;
	uint32_t mtu;
};

/* Makes the pair, link in the gateway and eth0 in the sandbox, with addresses, neighbours and the sandbox's default
 * route. IPv6 is off on both ends before they are up. Returns 0 or a negative errno, after which members_remove() and
 * link_delete() take back what is there. */
[[nodiscard]] int plug_in(const struct plug *p, struct err *e);

/* Bytes that the sandbox sent and received over its link. Returns 0 or -ENODEV. */
[[nodiscard]] int plug_bytes(int gateway, const char *link, uint64_t *ret_sent, uint64_t *ret_received,
			     struct err *e);

#endif
