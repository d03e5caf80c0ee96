/*
 * The rules as text for nft(8): what is the same for all sandboxes. What is per sandbox are elements of the sets
 * and maps in them (net/members.h).
 */
#ifndef ERMITE_NET_RULESET_H
#define ERMITE_NET_RULESET_H

#include "base/buf.h"
#include "spec/network.h"

#define RULESET_TABLE      "ermite_runner"
#define RULESET_UP         "up"   /* the gateway's link to the host */
#define RULESET_ERUP       "erup" /* its other end, in the host's namespace */
#define RULESET_GATE       "gate" /* chain of the netdev table that every link's ingress goes to */
#define RULESET_HOST_RULES 10     /* how many rules the host's table has */

/* Marks: below REFUSALS a packet that is refused has the kind; RULESET_EXCEPTION goes to a range that is denied but
 * for an exception. */
#define RULESET_EXCEPTION 0x100u

/* What the host's table marks packets with on their way from the gateway: only such are routed there, so without the
 * table, which translates their addresses, nothing goes out. */
#define RULESET_TRANSLATED      0x65720000u
#define RULESET_TRANSLATED_MASK 0xffff0000u

/* Appends the tables of the gateway: network is the sandboxes' own. */
void ruleset_gateway(const struct cidr *network, struct buf *out);

/* Appends the table of the host's namespace, in place of one that is there. */
void ruleset_host(const struct cidr *network, struct buf *out);

#endif
