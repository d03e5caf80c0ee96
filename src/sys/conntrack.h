/*
 * The table of tracked connections of a network namespace.
 */
#ifndef ERMITE_SYS_CONNTRACK_H
#define ERMITE_SYS_CONNTRACK_H

#include <stdint.h>

#include "base/err.h"

/* Forgets every connection that this address, in host byte order, began, in the network namespace netns (-1: the
 * caller's): what still comes for it belongs to nobody. Returns how many there were, or a negative errno. */
[[nodiscard]] int conntrack_forget(int netns, uint32_t address, struct err *e);

#endif
