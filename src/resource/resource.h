/*
 * Resources: everything that a sandbox needs on the host and that outlives a killed keeper.
 *
 * Each kind is one file with make, unmake and sweep. make() is called when the record, synced, names the kind already;
 * unmake() accepts what never existed or is half there, and needs nothing but the record; sweep() removes what bears
 * our mark and stands in no record. Starting walks a list of kinds forwards, ending walks the record backwards, after
 * a crash just the same. Mounts, loop devices and unix sockets of a system sandbox are no resources: they stand in the
 * keeper's own mount namespace and go with its last process.
 */
#ifndef ERMITE_RESOURCE_RESOURCE_H
#define ERMITE_RESOURCE_RESOURCE_H

#include "base/buf.h"
#include "base/err.h"
#include "resource/record.h"
#include "spec/job.h"
#include "spec/network.h"
#include "sys/host.h"

/* The network of a sandbox, once its resource was made. Without one netns is -1. */
struct sandbox_network {
	int netns; /* the gateway's; owned by whoever owns the sandbox */
	uint32_t gateway, guest, mtu;
	char link[NETWORK_LINK_SIZE];
};

/* What the resources of one sandbox are made for. Owned by the keeper; the pointers are borrowed. */
struct sandbox {
	const struct sandbox_spec *spec; /* NULL when an orphan is taken down */
	struct record *record;
	const char *id;
	uint32_t slot;
	int store_fd;            /* <state>/sandboxes */
	const struct host *host; /* NULL: where no sandbox has a network */
	struct sandbox_network network;
	struct buf *notes; /* where a kind says in a line what it changed on the host for good; may be NULL */
};

struct resource {
	const char *name;
	int (*make)(struct sandbox *s, struct err *e);
	int (*unmake)(struct sandbox *s, struct err *e);
	/* Removes what belongs to the store and stands in none of its records. NULL where nothing can be left. */
	int (*sweep)(int store_fd, const struct host *host, struct err *e);
};

extern const struct resource resource_processes; /* the keeper's helpers, by pid and start time */
extern const struct resource resource_cgroup;
extern const struct resource resource_scratch; /* the file behind the writable layer */
extern const struct resource resource_network; /* its place in the gateway, and its link there */

/* Makes the kinds of a NULL-ended list in order; on failure what was made stays for resources_unmake(). */
[[nodiscard]] int resources_make(struct sandbox *s, const struct resource *const *list, struct err *e);

/* Takes down what the record names, last first, all of it even when one fails. Returns 0 or the first error. */
[[nodiscard]] int resources_unmake(struct sandbox *s, struct err *e);

/* Takes down every record without a keeper and sweeps what has no record. What stays is a sentence each in left.
 * Returns the number of records that stayed, or a negative errno. host as in struct sandbox. */
[[nodiscard]] int resources_reap(int store_fd, const struct host *host, struct buf *left, struct err *e);

/* Opens the scratch file of a sandbox, in the mount namespace that the caller is in. Returns 0 and a descriptor. */
[[nodiscard]] int scratch_open(const struct sandbox *s, int *ret_fd, struct err *e);

#endif
