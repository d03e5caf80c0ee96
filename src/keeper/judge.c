#include "keeper/judge.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Less than this is full: a file system keeps a few blocks that no file gets. */
enum { DISK_FULL_BYTES = 1 << 20 };

void judge_set(struct job_result *r, enum end_reason reason, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	(void)vsnprintf(r->evidence, sizeof(r->evidence), format, args);
	va_end(args);
	r->reason = reason;
	if (reason == END_TIMEOUT)
		r->exit_status = 124;
	else if (reason == END_CANCELLED)
		r->exit_status = 128 + SIGINT;
	else if (reason >= END_START_FAILED)
		r->exit_status = 125;
}

static unsigned long long mib(uint64_t bytes)
{
	return (unsigned long long)((bytes + (1u << 19)) >> 20);
}

/* A limit that explains a bad end. Returns false when none was met. */
static bool judge_limits(struct job_result *r, const struct judge_facts *f)
{
	if (f->usage.oom_kills > 0 && f->usage.memory_fails > 0) {
		judge_set(r, END_OUT_OF_MEMORY,
			  "memory limit %llu MiB, peak %llu MiB, %llu process%s killed%s%s%s",
			  (unsigned long long)r->memory_limit_mib, mib(f->usage.memory_peak_bytes),
			  (unsigned long long)f->usage.oom_kills, f->usage.oom_kills == 1 ? "" : "es",
			  f->oom_victim[0] ? " (" : "", f->oom_victim, f->oom_victim[0] ? ")" : "");
		return true;
	}
	if (f->usage.pids_refused > 0) {
		judge_set(r, END_PIDS_LIMIT, "limit of %u processes, %llu forks refused", r->pids_limit,
			  (unsigned long long)f->usage.pids_refused);
		return true;
	}
	if (f->disk.size_bytes > 0 && (f->disk_least_free_bytes < DISK_FULL_BYTES || f->inodes_ran_out)) {
		judge_set(r, END_DISK_FULL, "disk limit %llu MiB, %s were left at the worst moment",
			  (unsigned long long)r->disk_limit_mib,
			  f->inodes_ran_out ? "no inodes" : "no free blocks");
		return true;
	}
	return false;
}

void judge_end(struct job_result *r, const struct judge_facts *f, int status, int signal)
{
	r->exit_status = signal ? 128 + signal : status;
	r->signal = signal;
	if (r->exit_status != 0 && judge_limits(r, f))
		return;
	if (signal)
		judge_set(r, END_SIGNALLED, "the job was ended by signal %d (SIG%s)", signal,
			  sigabbrev_np(signal) ? sigabbrev_np(signal) : "?");
	else
		judge_set(r, END_EXITED, "the job exited with status %d", status);
}

void judge_death(struct job_result *r, const struct judge_facts *f, const char *why)
{
	if (judge_limits(r, f)) {
		size_t n = strlen(r->evidence);
		(void)snprintf(r->evidence + n, sizeof(r->evidence) - n, "; then %s", why);
		r->exit_status = 125;
		return;
	}
	judge_set(r, END_SANDBOX_DIED, "%s", why);
}
