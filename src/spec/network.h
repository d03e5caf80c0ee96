/*
 * What a sandbox's network is: its addresses, names, and where its packets may go. Plain data and constant tables;
 * who enforces it is net/.
 *
 * Addresses are IPv4 in host byte order.
 */
#ifndef ERMITE_SPEC_NETWORK_H
#define ERMITE_SPEC_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/config.h"

struct cidr {
	uint32_t address;
	uint32_t bits; /* of the prefix, 0..32 */
};

/* An exception to the denied ranges. */
struct network_exception {
	struct cidr to;
	uint16_t port; /* of TCP and UDP; 0: every port and ICMP */
};

#define NETWORK_EXCEPTIONS_MAX 32

struct network_allow {
	uint32_t n;
	struct network_exception items[NETWORK_EXCEPTIONS_MAX];
};

#define NETWORK_MAC_BYTES    6
#define NETWORK_LINK_SIZE    16 /* bytes of a link's name with its end */
#define NETWORK_SLOT_BITS    30 /* of the prefix of a slot's network */
#define NETWORK_ADDRESS_TEXT 16

/* The ranges that no sandbox reaches, in ascending order; *ret_n is their number. Constant. */
const struct cidr *network_denied(size_t *ret_n);

/* True when the prefix holds the address. */
bool cidr_holds(const struct cidr *c, uint32_t address);

/* True when the address lies in a denied range and no exception of allow covers all of its ports or some. */
bool network_is_denied(uint32_t address, const struct network_allow *allow);

/* Reads ERMITE_RUNNER_NETWORK_ALLOW: prefixes ("10.1.0.0/16"), addresses and address:port pairs, separated by
 * commas or blanks; "" gives none. Returns 0 or -EINVAL with a sentence that names the part. */
[[nodiscard]] int network_allow_parse(const char *text, struct network_allow *ret, struct err *e);

/* Addresses of a slot: its gateway's, .1 of the slot-th /30 of the network, and its own, .2. */
uint32_t slot_gateway(const struct config *c, uint32_t slot);
uint32_t slot_guest(const struct config *c, uint32_t slot);
uint32_t slot_guest_in(const struct cidr *network, uint32_t slot);

/* Link-layer addresses of the two ends of a slot's link: locally administered, the same at every start. */
void slot_gateway_mac(uint32_t slot, uint8_t ret[static NETWORK_MAC_BYTES]);
void slot_guest_mac(uint32_t slot, uint8_t ret[static NETWORK_MAC_BYTES]);

/* Name of a slot's link in the gateway: "ertap7" for a VM, "erveth7" otherwise. */
void slot_link(enum isolation isolation, uint32_t slot, char ret[static NETWORK_LINK_SIZE]);

/* "10.200.0.1". */
void network_address_text(uint32_t address, char ret[static NETWORK_ADDRESS_TEXT]);

#endif
