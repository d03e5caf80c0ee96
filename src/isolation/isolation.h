/*
 * What every isolation is to the keeper: a list of resources, and how to boot a sandbox, reach its executor and end
 * it.
 *
 * One sandbox a process. The keeper calls prepare, makes the resources, calls boot, and from then on watches two
 * descriptors: the door, where the first program inside knocks once before anything else runs there, and the one
 * that tells that the sandbox is gone. Adding an isolation is a file with one of these structs and a row in
 * isolation.c.
 */
#ifndef ERMITE_ISOLATION_ISOLATION_H
#define ERMITE_ISOLATION_ISOLATION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "isolation/container/docker.h"
#include "resource/resource.h"
#include "spec/config.h"

/* What is found out about this host once and asked for by several isolations. All zero at first; before
 * provide() the caller adds what it knows of <state>/image. */
struct isolation_host {
	char image_source[65]; /* SHA-256 of its base.ext4, from its image.json; empty: there is none */
	bool docker_asked;
	char docker_socket[DOCKER_SOCKET_SIZE];
	struct docker_facts docker;
};

/* A live sandbox of one isolation; private to it. */
struct isolated;

/* What the keeper needs to know of a live sandbox. Descriptors but the first stay the isolation's. */
struct isolated_view {
	int listen_fd;  /* where the executor will connect: the keeper's, for the conduit */
	uid_t peer_uid; /* host id of the executor */
	int door_fd;    /* readable when the first program inside knocks; -1 where there is no door */
	int gone_fd;    /* readable when the sandbox has ended */
	int weaker_fd; /* readable when the sandbox goes on but lost something, told by weaker; -1: nothing to lose */
	const char *weaker;
	bool has_init; /* somebody inside says when the system is up */
};

struct isolated_disk {
	uint64_t used_bytes;
	uint64_t free_bytes;
	uint64_t size_bytes;
	bool no_inodes; /* none is left */
};

struct isolation_ops {
	enum isolation kind;
	bool sysbox; /* of ISOLATION_CONTAINER: with the runtime sysbox-runc, else privileged */
	const struct resource *const *resources; /* NULL-ended, in the order of making */

	/* Appends a sentence for each prerequisite that this host misses. Returns how many. */
	unsigned (*missing)(const struct config *c, struct isolation_host *host, struct buf *reasons);

	/* In the client, when nothing is missing: gets what can be got, an image for one, with progress on standard
	 * error, and settles in the specification what was found out. Appends to warnings, a sentence a line, what
	 * whoever runs a job must know. NULL: nothing to do. */
	int (*provide)(struct isolation_host *host, struct sandbox_spec *spec, struct buf *warnings,
		       struct err *e);

	/* Starts what can start before the resources are there; its processes are named in the record. */
	int (*prepare)(struct sandbox *s, struct isolated **ret, struct isolated_view *view, struct err *e);

	/* Boots the sandbox from its resources. Returns when the boot is under way. */
	int (*boot)(struct isolated *i, struct err *e);

	/* Takes the knock at the door and puts the sandbox under its limits. *ret_netns is its network namespace
	 * (caller's). */
	int (*knock)(struct isolated *i, int *ret_netns, struct err *e);

	/* Lets in what knocked: it goes on. */
	int (*admit)(struct isolated *i, struct err *e);

	/* How the sandbox ended, in words, once gone_fd was readable: a failed start or an end of its own. */
	void (*why_gone)(struct isolated *i, bool *ret_start_failed, struct buf *reason);

	void (*disk)(struct isolated *i, struct isolated_disk *ret);

	/* Ends the sandbox whatever state it is in and frees it: no process of it is left, nothing is mounted.
	 * keep_disk: what was written must be on the scratch file. */
	int (*end)(struct isolated *i, bool keep_disk, struct err *e);
};

/* The isolation of this kind, or NULL when this build has none (vm: not yet). */
const struct isolation_ops *isolation_find(enum isolation kind, bool sysbox);

/* Chooses for a configuration: a named isolation must be there with all its prerequisites; auto takes the strongest.
 * Appends to notes why stronger ones were passed over and what was chosen, a sentence a line. Returns 0 or -ENOTSUP
 * with everything that is missing in the message. */
[[nodiscard]] int isolation_select(const struct config *c, struct isolation_host *host,
				   const struct isolation_ops **ret, struct buf *notes, struct err *e);

#endif
