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

#include <stdbool.h>

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
	uid_t root_uid;          /* host id of root inside */
	bool all_devices;        /* root inside is root of this host: no list of devices would hold */
	struct sandbox_network network;
	struct buf *notes; /* where a kind says in a line what it changed on the host for good; may be NULL */
};

/* Something that was left behind, and what became of it. */
struct leftover {
	const char *kind; /* "sandbox", "cgroup" … */
	const char *name;
	const char *reason; /* why it stays, a sentence; NULL: it was removed or, in a dry run, would be */
};

/* One look for what was left behind. The pointers are borrowed. */
struct reap {
	int store_fd;
	const struct host *host;   /* NULL: where no sandbox has a network */
	const char *docker_socket; /* of the daemon to look at for containers without a record; NULL: none */
	bool dry_run;              /* nothing is removed */
	void (*tell)(void *data, const struct leftover *l);
	void *data;
	unsigned n_left; /* things that are there still; in a dry run all that were found */
};

struct resource {
	const char *name;
	int (*make)(struct sandbox *s, struct err *e);
	int (*unmake)(struct sandbox *s, struct err *e);
	/* Removes what belongs to the store and stands in none of its records, one by one, and tells each by
	 * reap_tell(). An error is for what could not even be looked at. NULL where nothing can be left. */
	int (*sweep)(struct reap *r, struct err *e);
};

/* What is made last is unmade first: the processes of a sandbox go before what they use. */
extern const struct resource resource_network;   /* its place in the gateway, and its link there */
extern const struct resource resource_scratch;   /* the file behind the writable layer */
extern const struct resource resource_docker;    /* the container and what Docker keeps of it */
extern const struct resource resource_processes; /* the keeper's helpers, by pid and start time */
extern const struct resource resource_cgroup;

/* Makes the kinds of a NULL-ended list in order; on failure what was made stays for resources_unmake(). */
[[nodiscard]] int resources_make(struct sandbox *s, const struct resource *const *list, struct err *e);

/* Takes down what the record names, last first, all of it even when one fails. Returns 0 or the first error, which is
 * then in the record, too. */
[[nodiscard]] int resources_unmake(struct sandbox *s, struct err *e);

/* Takes down every record without a keeper and sweeps what has no record. Several may do that at once, beside sandboxes
 * that start, live and end. Returns 0, also when something stays (reap->n_left), or a negative errno when not all could
 * be looked at. */
[[nodiscard]] int resources_reap(struct reap *reap, struct err *e);

/* Tells one thing and counts it. */
void reap_tell(struct reap *r, const char *kind, const char *name, const char *reason);

/* The sentence about a leftover of a reap that was none of dry run. */
void leftover_text(const struct leftover *l, struct buf *text);

/* Opens the scratch file of a sandbox, in the mount namespace that the caller is in. Returns 0 and a descriptor. */
[[nodiscard]] int scratch_open(const struct sandbox *s, int *ret_fd, struct err *e);

#endif
