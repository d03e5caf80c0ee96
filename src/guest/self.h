/*
 * What a process of ours does to itself at its start, and before it becomes a program of the image.
 */
#ifndef ERMITE_GUEST_SELF_H
#define ERMITE_GUEST_SELF_H

#include "base/err.h"

/* Default action for every signal, none blocked, umask 022, and no longer spared when memory is out (the last best
 * effort: the score that the executor has is for itself only). */
void self_reset(void);

/* Opens /dev/null for each of descriptors 0, 1 and 2 that is closed, so that none of ours gets such a number. Returns 0
 * or a negative errno. */
[[nodiscard]] int self_open_streams(struct err *e);

#endif
