/*
 * The container isolation: the same sandbox as the system isolation's, only booted by the host's Docker Engine.
 *
 * What limits it is ours and the same: the control group, entered at the door; the link to the gateway; the scratch
 * file, mounted in the keeper's own mount namespace; an lxcfs. Docker makes a container with a read-only root, no
 * network and the guest program as its first; ermite-docker, a program of its own, tells it to. When the guest
 * program has knocked and is under the limits, the keeper hands it its mounts, detached, and it builds its root of
 * them: so the writable layer lies on the scratch file, and nothing of ours is ever mounted where the host sees it.
 *
 * Two forms, one after the other in strength: with the runtime sysbox-runc, and privileged.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_CONTAINER_H
#define ERMITE_ISOLATION_CONTAINER_CONTAINER_H

#include "isolation/isolation.h"

extern const struct isolation_ops isolation_container_sysbox;
extern const struct isolation_ops isolation_container_privileged;

#endif
