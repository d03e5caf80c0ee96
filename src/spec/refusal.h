/*
 * Why a packet of a sandbox is refused: the rule that did it, as the rules mark it, the log names it and the result
 * counts it.
 */
#ifndef ERMITE_SPEC_REFUSAL_H
#define ERMITE_SPEC_REFUSAL_H

#include <stdint.h>

enum refusal {
	REFUSAL_NONE,
	REFUSAL_LINK,     /* ether type other than IPv4 and ARP: IPv6, VLAN tags; another MAC; IP options */
	REFUSAL_SPOOF,    /* another source address or ARP claim than its own */
	REFUSAL_HOST,     /* the host, whichever of its addresses, the gateway, another sandbox's gateway */
	REFUSAL_PRIVATE,  /* a denied range, another sandbox among them */
	REFUSAL_PROTOCOL, /* neither TCP, UDP nor ICMP */
	REFUSAL_CAST,     /* broadcast and multicast, and what is no unicast address */
	REFUSAL_FLOWS,    /* more flows than the limit */
	REFUSAL_INVALID,  /* belongs to no flow */
	REFUSAL_RATE,     /* more bytes than the limit, either direction */
	REFUSAL_ROUTE,    /* leads to no way out */
	REFUSALS,
};

/* "spoof", "private", …: names of JSON; "none" for 0 and what is no kind. Never NULL. */
const char *refusal_name(uint32_t kind);

#endif
