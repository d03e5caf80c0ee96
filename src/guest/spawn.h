/*
 * Making a process for a Start: its pipes or pseudo terminal, and the fork.
 *
 * What the new process does until it is the program asked for stands in job.h. Nothing here waits for it: whether it
 * got that far is told by a pipe.
 */
#ifndef ERMITE_GUEST_SPAWN_H
#define ERMITE_GUEST_SPAWN_H

#include <sys/types.h>

#include "base/err.h"
#include "guest/job.h"

/* Our ends, each -1 where there is none, all non-blocking and owned by whoever holds the struct. */
struct spawned {
	pid_t pid; /* leads a session and process group of its own */
	int pidfd;
	int report; /* ends when the job runs, or holds one struct job_failure */
	int in, out, err;
};

#define SPAWNED_INIT ((struct spawned){.pid = -1, .pidfd = -1, .report = -1, .in = -1, .out = -1, .err = -1})

/* Starts a process; it is not yet the program asked for when this returns. Returns 0 or a negative errno. */
[[nodiscard]] int spawn_start(const struct job *job, struct spawned *ret, struct err *e);

#endif
