/*
 * The root of a container: an overlay of the image, which Docker mounts read-only, and the scratch file system, with
 * everything else moved into it. Then Docker's own root goes away: nothing of the host's file systems stays in sight,
 * and all that is written inside counts against the sandbox's disk.
 *
 * A system sandbox gets the same from liblxc; what is masked is the same there.
 */
#ifndef ERMITE_GUEST_ROOT_H
#define ERMITE_GUEST_ROOT_H

#include <stdbool.h>

#include "base/err.h"
#include "guest/door.h"

/* Builds the root from the mounts and makes it this process's; the current directory is "/" then. The descriptors are
 * closed. To be called once, by the first process and before there are others, in the mount and cgroup namespaces that
 * everything inside will have. Returns 0 or a negative errno. */
[[nodiscard]] int root_build(struct door_mounts *mounts, struct err *e);

/* Whether root here is root of the host: this is the first user namespace, as in a privileged container. */
bool root_is_hosts(void);

#endif
