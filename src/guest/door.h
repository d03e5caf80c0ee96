/*
 * The door of a system sandbox: nothing runs inside before the host has put its first process under the limits.
 */
#ifndef ERMITE_GUEST_DOOR_H
#define ERMITE_GUEST_DOOR_H

#include "base/err.h"

/* Connects to the socket of the host beside the executor's, waits for its answer, and gives this process a cgroup
 * namespace whose root is where the host has put it. Returns 1; 0 where there is no such socket and nothing happened:
 * that sandbox was born under its limits; or a negative errno. */
[[nodiscard]] int door_knock(struct err *e);

#endif
