/*
 * The capabilities that root has on this host, which may be fewer than its kernel has: a host that is a container.
 */
#ifndef ERMITE_ISOLATION_CONTAINER_CAPABILITIES_H
#define ERMITE_ISOLATION_CONTAINER_CAPABILITIES_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Reads this process's bounding set and all that the kernel has, a bit each. Returns 0 or a negative errno. */
[[nodiscard]] int capabilities_read(uint64_t *ret_have, uint64_t *ret_all, struct err *e);

/* "CAP_CHOWN", …, by number; NULL for one that has no name here. */
const char *capability_name(unsigned number);

/* Appends the names of a set, with commas between; one without a name as its number. */
void capabilities_names(uint64_t set, struct buf *out);

#endif
