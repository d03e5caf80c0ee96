/*
 * A netlink socket of a network namespace: requests with their answers, and the namespaces themselves.
 *
 * A socket belongs for ever to the namespace in which it was opened, so one process can arrange several.
 */
#ifndef ERMITE_SYS_NETLINK_H
#define ERMITE_SYS_NETLINK_H

#include <linux/netlink.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct netlink;

/* Called with each message of an answer. Returns 0, or a negative errno that ends the request. */
typedef int netlink_fn(void *data, const struct nlmsghdr *message);

/* Opens a socket of a protocol (NETLINK_ROUTE, NETLINK_NETFILTER) in the network namespace netns (-1: the caller's).
 * Returns 0 and the socket (caller's), or a negative errno. */
[[nodiscard]] int netlink_open(int protocol, int netns, struct netlink **ret, struct err *e);

/* Closes it; NULL is fine. */
void netlink_close(struct netlink *n);

/* Sends a request, whose sequence number and acknowledgement flag are set here, and waits for its end. fn may be
 * NULL; of a list (NLM_F_DUMP) it sees one state, whatever changes meanwhile. Returns 0, or the negative errno of
 * the kernel's answer, which message then names without a subject. */
[[nodiscard]] int netlink_ask(struct netlink *n, struct nlmsghdr *request, netlink_fn *fn, void *data,
			      struct err *e);

/* Sends a batch of bytes messages, the last of which has the sequence number last, and waits for the answers to all
 * that ask for one. Returns 0 or the first error. */
[[nodiscard]] int netlink_send_batch(struct netlink *n, const void *batch, size_t bytes, uint32_t last,
				     struct err *e);

/* Takes a fresh sequence number. */
uint32_t netlink_sequence(struct netlink *n);

/* Opens a socket that hears groups of a protocol (bits, 1 << (group - 1)) in the caller's network namespace and does
 * not block. Returns 0 and the descriptor (caller's), or a negative errno. */
[[nodiscard]] int netlink_listen(int protocol, uint32_t groups, int *ret_fd, struct err *e);

/* Reads and forgets whatever a listening socket has. What was lost counts as heard. */
void netlink_drain(int fd);

/* Opens the caller's network namespace. Returns 0 and a descriptor, or a negative errno. */
[[nodiscard]] int netns_open(int *ret_fd, struct err *e);

/* Makes a fresh network namespace; the caller stays where it is, or is lost. Returns 0 and a descriptor, or a negative
 * errno. */
[[nodiscard]] int netns_make(int *ret_fd, struct err *e);

/* Moves the caller, a process of one thread, into a network namespace. Returns 0 or a negative errno. */
[[nodiscard]] int netns_enter(int netns, struct err *e);

/* Calls fn in a network namespace (-1: the caller's) and comes back. Returns what fn returned, or a negative errno.
 * A caller that cannot come back is lost (process_lost()). */
typedef int netns_fn(void *data, struct err *e);
[[nodiscard]] int netns_with(int netns, netns_fn *fn, void *data, struct err *e);

#endif
