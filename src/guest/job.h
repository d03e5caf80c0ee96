/*
 * The life of a new process until it is the program that was asked for: user, directory, environment, exec; or, for
 * trees of files, to its end.
 */
#ifndef ERMITE_GUEST_JOB_H
#define ERMITE_GUEST_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "stream.pb.h"

#define JOB_TEXT_MAX 256

/* What to start; all borrowed. */
struct job {
	const ermite_Start *start;
	const char *strings; /* as many, each ended by a zero, as start counts: arguments, then environment */
	size_t strings_n;
};

/* Why a job could not be started, as it goes through the report pipe. */
struct job_failure {
	uint32_t status; /* what a shell would exit with, or 125 */
	char text[JOB_TEXT_MAX];
};

/* Becomes the job. Standard streams are in place, nothing else is open but report (close-on-exec), which gets a struct
 * job_failure when the job cannot be started. */
_Noreturn void job_run(const struct job *job, int report);

/* Reports a failure with status 125 and ends this process. */
_Noreturn void job_fail(int report, uint32_t status, const char *text);

#endif
