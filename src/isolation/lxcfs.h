/*
 * An lxcfs of the sandbox's own, so that free, uptime and their like show the limits inside.
 *
 * It runs in the keeper's mount namespace, mounted nowhere else, and dies with the keeper: nobody shares it, nobody
 * can restart it under a running sandbox, nothing of it is left.
 */
#ifndef ERMITE_ISOLATION_LXCFS_H
#define ERMITE_ISOLATION_LXCFS_H

#include "base/err.h"
#include "io/child.h"

/* Starts it; it mounts itself at RUN_LXCFS a few milliseconds later. */
[[nodiscard]] int lxcfs_start(struct child *ret, struct err *e);

/* Waits until it is mounted. Returns 0 or -ETIMEDOUT, or -EIO when it ended instead. */
[[nodiscard]] int lxcfs_wait(struct child *c, struct err *e);

/* The path of the program on this host, or NULL when it is missing. */
const char *lxcfs_program(void);

#endif
