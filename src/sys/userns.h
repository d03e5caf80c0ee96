/*
 * A user namespace as a table of ids: made for its map only, nothing runs in it.
 */
#ifndef ERMITE_SYS_USERNS_H
#define ERMITE_SYS_USERNS_H

#include <stdint.h>

#include "base/err.h"

/* Makes a user namespace that maps the ids 0..count-1 to first..first+count-1 of the host, and belongs to first.
 * Returns 0 and a descriptor of it that the caller owns; -EMFILE when its owner has no inotify instance left, without
 * which nothing could run there; or another negative errno. A map that holds host id 0 is refused. */
[[nodiscard]] int userns_make(uint32_t first, uint32_t count, int *ret_fd, struct err *e);

/* Makes a user namespace in which every id is itself and which belongs to owner: what the kernel limits for each user
 * (inotify instances, namespaces) is counted, for all that is made in it, on owner and not on host root. Returns the
 * same as userns_make(). */
[[nodiscard]] int userns_make_owned(uint32_t owner, int *ret_fd, struct err *e);

#endif
