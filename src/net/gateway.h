/*
 * The gateway: a network namespace through which every sandbox's packets go, made with the first sandbox and gone
 * with the last. It hangs at HOST_RUN_DIR/gateway, so that whoever flushes the host's firewall does not reach its
 * rules.
 *
 * One pair leads out of it: "up" inside, "erup" in the host's namespace. Neither end has an address; each knows the
 * other's link-layer address, and nothing is ever asked by ARP there. Behind the rules stands a second layer of
 * routes: packets of sandboxes are routed by a table of their own in which denied ranges are prohibited.
 *
 * Everything here is called with the lock held, by any of several processes, and accepts what a killed one left
 * half made: the file gateway.conf, written last, says that all of it is there.
 */
#ifndef ERMITE_NET_GATEWAY_H
#define ERMITE_NET_GATEWAY_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/network.h"
#include "sys/host.h"

/* Waits for the lock on the gateway and its rules. Returns 0 and a descriptor that holds it (caller's). */
[[nodiscard]] int gateway_lock(const struct host *h, int *ret_fd, struct err *e);

/* What a gateway is for. */
struct gateway_plan {
	struct cidr network;
	int store_fd; /* <state>/sandboxes whose records its members stand in */
};

/* Opens the gateway, made first when it is not there. Returns 0 and its network namespace (caller's); -EBUSY when one
 * serves sandboxes of another network or another state directory. What was made on the host is a line in notes. */
[[nodiscard]] int gateway_ensure(const struct host *h, const struct gateway_plan *plan, int *ret_netns,
				 struct buf *notes, struct err *e);

enum gateway_state {
	GATEWAY_NONE, /* none, or another state directory's */
	GATEWAY_TORN, /* a killed process has left it half made or half removed */
	GATEWAY_OURS,
};

/* Looks whether there is a gateway for the sandboxes of this directory, and for OURS opens its network namespace
 * (caller's). */
enum gateway_state gateway_look(const struct host *h, int store_fd, int *ret_netns);

/* Reads which network the gateway is for. Returns 0 or a negative errno. */
[[nodiscard]] int gateway_network(const struct host *h, struct cidr *ret, struct err *e);

/* Makes right what of the gateway is in the host's namespace, the caller's: the pair, its route, the table,
 * forwarding; and the set of the host's addresses. What was wrong is a line each in mended. */
[[nodiscard]] int gateway_mend(int netns, const struct cidr *network, struct buf *mended, struct err *e);

/* Removes the gateway and everything on the host that belongs to it. Returns 0, also when there was none. */
[[nodiscard]] int gateway_remove(const struct host *h, struct err *e);

/* Appends a line for each table of the host that drops forwarded packets by default and does not name erup, with the
 * command that allows them. */
void gateway_foreign(struct buf *notes);

#endif
