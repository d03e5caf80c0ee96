/*
 * Links, addresses, neighbours, routes and routing rules of a network namespace, over a NETLINK_ROUTE socket of it.
 *
 * Addresses are IPv4 in host byte order; MAC addresses have 6 bytes. Names of links are shorter than IFNAMSIZ.
 */
#ifndef ERMITE_SYS_LINK_H
#define ERMITE_SYS_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sys/netlink.h"

#define LINK_MAC_BYTES 6

/* One end of a pair. */
struct link_end {
	const char *name;
	const uint8_t *mac;
};

/* Makes a pair of virtual Ethernet links, both down: near in the socket's namespace, far in the namespace far_netns.
 * Returns 0, -EEXIST, or a negative errno. */
[[nodiscard]] int link_add_pair(struct netlink *n, const struct link_end *near, const struct link_end *far,
				int far_netns, uint32_t mtu, struct err *e);

/* Index of a link. Returns 0 or -ENODEV. */
[[nodiscard]] int link_index(struct netlink *n, const char *name, uint32_t *ret, struct err *e);

/* Removes a link, and with it the other end of a pair. Returns 0, also when there is none. */
[[nodiscard]] int link_delete(struct netlink *n, const char *name, struct err *e);

/* Sets a link up, and its MTU (0: as it is). */
[[nodiscard]] int link_up(struct netlink *n, const char *name, uint32_t mtu, struct err *e);

/* MTU of a link, and the bytes that came in and went out. Any pointer may be NULL. Returns 0 or -ENODEV. */
[[nodiscard]] int link_read(struct netlink *n, const char *name, uint32_t *ret_mtu, uint64_t *ret_in,
			    uint64_t *ret_out, struct err *e);

/* Calls fn with the name of every link. */
typedef int link_name_fn(void *data, const char *name);
[[nodiscard]] int link_each(struct netlink *n, link_name_fn *fn, void *data, struct err *e);

/* Gives a link an address. Returns 0, also when it has it. */
[[nodiscard]] int address_add(struct netlink *n, uint32_t link, uint32_t address, uint32_t bits,
			      struct err *e);

/* Reads all IPv4 addresses to which the namespace listens but those of 127/8, first and last addresses of its
 * networks (broadcasts) among them: at most max, in *ret; returns how many there are, or a negative errno. One may
 * come twice. */
[[nodiscard]] int address_list(struct netlink *n, uint32_t *ret, size_t max, struct err *e);

/* Makes a neighbour known for good. Returns 0, also when it was. */
[[nodiscard]] int neighbour_add(struct netlink *n, uint32_t link, uint32_t address,
				const uint8_t mac[static LINK_MAC_BYTES], struct err *e);

/* A route to a prefix. */
struct route {
	uint32_t table; /* 254: main */
	uint32_t to, bits;
	uint32_t link;   /* 0: prohibited */
	uint32_t via;    /* next hop on that link, whatever its prefixes are; 0: the destination itself */
	uint32_t source; /* preferred source address; 0: the kernel's choice */
};

/* Adds a route, in place of one to the same prefix. */
[[nodiscard]] int route_add(struct netlink *n, const struct route *route, struct err *e);

/* The MTU of the default route of the main table: its own, or its link's. Returns 0, or -ENETUNREACH without one. */
[[nodiscard]] int route_default_mtu(struct netlink *n, uint32_t *ret, struct err *e);

/* What a routing rule does with the packets that it is for. */
enum route_action {
	ROUTE_TABLE,     /* looks into a table */
	ROUTE_GOTO,      /* goes on with the rule of another priority, a later one */
	ROUTE_NOP,       /* nothing */
	ROUTE_BLACKHOLE, /* drops them */
};

/* A routing rule; without link and mark it is for every packet. */
struct route_rule {
	uint32_t priority;
	const char *in_link; /* "lo": packets of the namespace itself; NULL: any */
	uint32_t mark, mask; /* the mark's bits under the mask; 0: any */
	enum route_action action;
	uint32_t table, to; /* of ROUTE_TABLE, of ROUTE_GOTO */
};

/* Adds a rule. Returns 0, -EEXIST for one that is there, or a negative errno. */
[[nodiscard]] int route_rule_add(struct netlink *n, const struct route_rule *rule, struct err *e);

/* Removes a rule. Returns 0, -ENOENT when there is none, or a negative errno. */
[[nodiscard]] int route_rule_delete(struct netlink *n, const struct route_rule *rule, struct err *e);

#endif
