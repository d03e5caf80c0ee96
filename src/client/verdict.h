/*
 * How a run ended, out of what the keeper says of the job and what the client knows of its own half: whether the
 * outputs came, and what failed on this side.
 */
#ifndef ERMITE_CLIENT_VERDICT_H
#define ERMITE_CLIENT_VERDICT_H

#include <stdbool.h>

#include "spec/job.h"

/* What the client knows. The pointers are borrowed. */
struct verdict {
	const struct sandbox_spec *spec;
	const char *keeper_end; /* how the keeper ended that told no result; NULL when it told one */
	const char *fault;      /* what failed on this side, or "" */
	bool outputs_missing;   /* some were wanted that nobody came to copy, although the job succeeded */
	bool cancelled;
};

/* Completes the keeper's result, or makes one when there is none, and says what is wrong in one line each. */
void verdict_reach(const struct verdict *v, struct job_result *r,
		   void (*say)(const char *kind, const char *text));

#endif
