/*
 * The lock of the host's one daemon, on a file that only root can change.
 *
 * It is a record lock (fcntl), which belongs to the process alone: the kernel drops it with the process, however
 * that ends, no child inherits it, and the kernel itself knows who holds it. What stands in the file, process id
 * and command, is for people.
 */
#ifndef ERMITE_CMD_DAEMON_LOCK_H
#define ERMITE_CMD_DAEMON_LOCK_H

#include "base/err.h"

/* Takes the lock; the file is made when it is missing. path must be absolute, a plain file of root's that nobody
 * else may open, in a directory that nobody but root can change or replace. Returns 0 and a descriptor that the
 * caller owns and that must be the only one of this file in the process; -EBUSY with the holder's process id and
 * command; or another negative errno with the path that is unfit. */
[[nodiscard]] int daemon_lock_take(const char *path, int *ret_fd, struct err *e);

/* Empties the file, closes it and so gives up the lock; *fd becomes -1. An empty one is fine. */
void daemon_lock_drop(int *fd);

#endif
