/*
 * What more than one isolation needs of a host, and how what is missing is told.
 */
#ifndef ERMITE_ISOLATION_NEEDS_H
#define ERMITE_ISOLATION_NEEDS_H

#include <stdbool.h>

#include "base/buf.h"
#include "spec/config.h"

/* Appends a sentence to the reasons when something is missing. Returns how many that are: 0 or 1. */
unsigned needs_miss(struct buf *reasons, bool is_missing, const char *sentence);

/* True when nothing is at path. */
bool needs_file_missing(const char *path);

/* Appends a sentence for each thing that this host misses of what every isolation with a scratch file, limits of our
 * own and an lxcfs needs. Returns how many. */
unsigned needs_common(const struct config *c, struct buf *reasons);

#endif
