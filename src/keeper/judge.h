/*
 * How a job ended: the end reason, its evidence in words, and the exit status, from what the sandbox used and met.
 */
#ifndef ERMITE_KEEPER_JUDGE_H
#define ERMITE_KEEPER_JUDGE_H

#include <stdbool.h>
#include <stdint.h>

#include "isolation/isolation.h"
#include "spec/job.h"
#include "sys/cgroup.h"

/* What was seen of the limits by the time the job ended. */
struct judge_facts {
	struct cgroup_usage usage;
	struct isolated_disk disk;
	uint64_t disk_least_free_bytes; /* while the job ran */
	bool inodes_ran_out;
	const char *oom_victim; /* name of the process killed for memory, or "" */
};

/* The job exited with a status (signal 0) or was ended by a signal. A limit that was met explains a bad end; a good
 * one is a good one whatever was met on the way. */
void judge_end(struct job_result *r, const struct judge_facts *f, int status, int signal);

/* The sandbox ended under the job; why in words. A limit may explain that too. */
void judge_death(struct job_result *r, const struct judge_facts *f, const char *why);

/* Sets a reason that needs no facts, with a sentence and the exit status that goes with the reason: 124 for a timeout,
 * 130 for a cancelled job, 125 where the runner or the sandbox failed. */
[[gnu::format(printf, 3, 4)]] void judge_set(struct job_result *r, enum end_reason reason, const char *format,
					     ...);

#endif
