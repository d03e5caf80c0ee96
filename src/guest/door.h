/*
 * The door of a sandbox: nothing runs inside before the host has put its first process under the limits.
 *
 * Through it a container also gets what its root is made of (guest/root.h), as descriptors of detached mounts.
 */
#ifndef ERMITE_GUEST_DOOR_H
#define ERMITE_GUEST_DOOR_H

#include <stddef.h>

#include "base/err.h"

/* The order in which they come. */
enum door_mount { DOOR_SCRATCH, DOOR_GUEST, DOOR_JOB, DOOR_LXCFS, DOOR_EXTERNALS, DOOR_MOUNTS_MAX };

/* What came with the answer: none, all, or all but the last. The descriptors are the holder's, each -1 where there is
 * none. */
struct door_mounts {
	int fds[DOOR_MOUNTS_MAX];
	size_t n;
};

#define DOOR_MOUNTS_INIT ((struct door_mounts){.fds = {-1, -1, -1, -1, -1}})

/* Connects to the socket of the host beside the executor's, waits for its answer, and gives this process a cgroup
 * namespace whose root is where the host has put it. Returns 1, the mounts, and the connection, the caller's, over
 * which the host hears why nothing comes of it; 0 where there is no such socket and nothing happened: that sandbox was
 * born under its limits; or a negative errno. */
[[nodiscard]] int door_knock(struct door_mounts *ret, int *ret_host, struct err *e);

/* Closes the descriptors; can be called twice. */
void door_mounts_done(struct door_mounts *m);

#endif
