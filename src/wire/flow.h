/*
 * Refused packets as the kernel's packet log tells of them: netlink messages with the head of the packet in them.
 *
 * The netlink part is the kernel's, the packet is a sandbox's: both are read as bytes from outside. Pure bytes, no
 * descriptor, no clock.
 */
#ifndef ERMITE_WIRE_FLOW_H
#define ERMITE_WIRE_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rd.h"

#define FLOW_ADDRESS_MAX  16
#define FLOW_ADDRESS_TEXT 46
#define FLOW_PROTOCOL_MAX 16

/* What a packet belongs to. Without padding that is not zero: two are equal when their bytes are. */
struct flow {
	uint32_t mark;       /* on the packet: the kind of refusal */
	uint16_t ether_type; /* 0x0800 for IPv4 */
	uint16_t source_port, port;
	uint8_t protocol;  /* of IP; 0 for what is not IP */
	uint8_t address_n; /* bytes of an address: 4, 16, or 0 where none could be read */
	uint8_t has_ports;
	uint8_t zero[3];
	uint8_t source[FLOW_ADDRESS_MAX];
	uint8_t address[FLOW_ADDRESS_MAX]; /* that it was sent to */
};

/* Reads on in what one receive from a netlink log socket gave, up to the next packet in it. Returns true and the flow;
 * false at the end, which is also where something is no message. */
[[nodiscard]] bool flow_next(struct rd *r, struct flow *ret);

/* An address of a flow as text: "10.0.0.1", "fe80::1", or "" where there is none. */
void flow_address_text(const struct flow *f, const uint8_t *address, char ret[static FLOW_ADDRESS_TEXT]);

/* "tcp", "udp", "icmp", "arp", "ipv6", "ip-47" for other protocols of IP, "ether-0x8100" for what is not IP. */
void flow_protocol_text(const struct flow *f, char ret[static FLOW_PROTOCOL_MAX]);

#endif
