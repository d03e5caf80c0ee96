/*
 * The members of the gateway: what stands in its sets and maps for one sandbox. Constant in cost, however many
 * there are.
 *
 * A member is known by its link's name, from before the link is there until after it is gone.
 */
#ifndef ERMITE_NET_MEMBERS_H
#define ERMITE_NET_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "spec/config.h"
#include "spec/network.h"
#include "spec/refusal.h"
#include "sys/nft.h"

struct member {
	const struct config *config;
	const struct network_allow *allow;
	const char *link;
	uint32_t slot;
	uint16_t forge_port; /* 0: no guest forge access */
	bool log;            /* refused packets go to members_log_group() */
};

/* Group of the netlink log of a slot. */
uint16_t members_log_group(uint32_t slot);

/* Adds a sandbox: from here on its link, still to come, may send what its rules allow. One transaction. Returns 0
 * or a negative errno. */
[[nodiscard]] int members_add(int netns, const struct member *m, struct err *e);

/* Puts the gate before a link that is there and still down. */
[[nodiscard]] int members_gate(int netns, const char *link, struct err *e);

/* Removes a sandbox of which nothing runs any more; also one that never was, or is half there. Returns 0 or a
 * negative errno. */
[[nodiscard]] int members_remove(int netns, const char *link, struct err *e);

/* Calls fn with the link of every member. */
typedef int members_fn(void *data, const char *link);
[[nodiscard]] int members_each(int netns, members_fn *fn, void *data, struct err *e);

/* What the rules counted. */
struct member_counts {
	uint64_t flows;
	uint64_t refused[REFUSALS];
};

/* Reads the counts of a member. Returns 0 or a negative errno. */
[[nodiscard]] int members_counts(int netns, const char *link, struct member_counts *ret, struct err *e);

#endif
