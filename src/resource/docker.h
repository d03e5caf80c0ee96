/*
 * Calls of the program ermite-docker, which says everything that is said to Docker's daemon.
 */
#ifndef ERMITE_RESOURCE_DOCKER_H
#define ERMITE_RESOURCE_DOCKER_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/config.h"

struct docker_call {
	const char *const *arguments; /* NULL-ended, from the name of the program on */
	int mounts;                   /* the mount namespace that it enters first; -1: ours */
	uint64_t ms;                  /* it is killed when it takes longer; UINT64_MAX: for ever */
	struct buf *output;           /* gets what it prints; NULL: nobody does */
	bool progress;                /* its standard error is ours; else the reason of a failure */
};

/* Runs it to its end. Returns 0; -ETIMEDOUT; -EIO with the sentence that it ended with; or another negative errno. */
[[nodiscard]] int docker_call(const struct docker_call *call, struct err *e);

/* Writes the path of the state directory whose store this is, as Docker's objects bear it in a label. Returns 0 or a
 * negative errno. */
[[nodiscard]] int docker_store(int store_fd, char ret[static CONFIG_PATH_MAX], struct err *e);

#endif
