/*
 * The system isolation: a whole Linux system container in its own user namespace, through liblxc.
 *
 * The keeper gives itself a mount namespace and a private tmpfs on /run, and builds everything there: the base image,
 * the scratch file system, the overlay of both, the job's directory with its sockets, an lxcfs of its own. liblxc runs
 * in a program of its own, ermite-lxc, which sees that namespace; when its processes are gone, so is all of it.
 *
 * Control groups are the keeper's business (resource/control_group.c), not liblxc's: the first program inside, our
 * own, knocks at a socket and waits; the keeper moves it under the limits and answers; then it takes a cgroup
 * namespace and becomes the image's init. So no limit depends on what liblxc finds, and the slow part, entering the
 * hierarchies, happens once.
 */
#ifndef ERMITE_ISOLATION_SYSTEM_SYSTEM_H
#define ERMITE_ISOLATION_SYSTEM_SYSTEM_H

#include "isolation/isolation.h"

extern const struct isolation_ops isolation_system;

#endif
