#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "keeper/judge.h"

#define MIB ((uint64_t)1 << 20)

static const struct job_result limits = {
	.memory_limit_mib = 512, .disk_limit_mib = 1024, .cpus_limit = 2, .pids_limit = 100};

/* Facts of a sandbox that met no limit. */
static const struct judge_facts quiet = {
	.usage = {.memory_peak_bytes = 300 * MIB},
	.disk = {.size_bytes = 1000 * MIB, .free_bytes = 900 * MIB},
	.disk_least_free_bytes = 900 * MIB,
	.oom_victim = "",
};

static struct judge_facts with_oom(uint64_t kills, uint64_t fails, const char *victim)
{
	struct judge_facts f = quiet;
	f.usage.oom_kills = kills;
	f.usage.memory_fails = fails;
	f.usage.memory_peak_bytes = 512 * MIB;
	f.oom_victim = victim;
	return f;
}

static struct judge_facts with_pids(uint64_t refused)
{
	struct judge_facts f = quiet;
	f.usage.pids_refused = refused;
	return f;
}

static struct judge_facts with_disk(uint64_t least, bool inodes)
{
	struct judge_facts f = quiet;
	f.disk_least_free_bytes = least;
	f.inodes_ran_out = inodes;
	return f;
}

static void test_end(void **)
{
	struct judge_facts no_disk = with_disk(0, false);
	no_disk.disk = (struct isolated_disk){0};
	struct judge_facts all = with_oom(1, 1, "");
	all.usage.pids_refused = 1;
	all.inodes_ran_out = true;
	const struct {
		struct judge_facts facts;
		int status, signal;
		enum end_reason reason;
		int exit_status;
		const char *evidence;
	} rows[] = {
		{quiet, 0, 0, END_EXITED, 0, "the job exited with status 0"},
		{quiet, 3, 0, END_EXITED, 3, "the job exited with status 3"},
		{quiet, 255, 0, END_EXITED, 255, "the job exited with status 255"},
		{quiet, 0, SIGKILL, END_SIGNALLED, 137, "the job was ended by signal 9 (SIGKILL)"},
		{quiet, 0, SIGSEGV, END_SIGNALLED, 139, "the job was ended by signal 11 (SIGSEGV)"},
		{quiet, 0, 64, END_SIGNALLED, 192, "the job was ended by signal 64 (SIG?)"},
		/* A good end is a good one whatever was met on the way. */
		{with_oom(3, 9, "cc1"), 0, 0, END_EXITED, 0, "the job exited with status 0"},
		{with_pids(7), 0, 0, END_EXITED, 0, "the job exited with status 0"},
		{with_disk(0, true), 0, 0, END_EXITED, 0, "the job exited with status 0"},
		/* A bad one is explained by a limit, and keeps its status. */
		{with_oom(1, 9, "cc1"), 2, 0, END_OUT_OF_MEMORY, 2,
		 "memory limit 512 MiB, peak 512 MiB, 1 process killed (cc1)"},
		{with_oom(3, 9, ""), 0, SIGKILL, END_OUT_OF_MEMORY, 137,
		 "memory limit 512 MiB, peak 512 MiB, 3 processes killed"},
		/* Killed for the limit of a nested container; and a limit that was met without a kill. */
		{with_oom(1, 0, ""), 1, 0, END_EXITED, 1, "the job exited with status 1"},
		{with_oom(0, 9, ""), 1, 0, END_EXITED, 1, "the job exited with status 1"},
		{with_pids(7), 1, 0, END_PIDS_LIMIT, 1, "limit of 100 processes, 7 forks refused"},
		{with_disk(MIB - 1, false), 1, 0, END_DISK_FULL, 1,
		 "disk limit 1024 MiB, no free blocks were left at the worst moment"},
		{with_disk(MIB, false), 1, 0, END_EXITED, 1, "the job exited with status 1"},
		{with_disk(900 * MIB, true), 1, 0, END_DISK_FULL, 1,
		 "disk limit 1024 MiB, no inodes were left at the worst moment"},
		/* A disk that could not be looked at is not a full one. */
		{no_disk, 1, 0, END_EXITED, 1, "the job exited with status 1"},
		/* Memory explains before processes, and they before the disk. */
		{all, 1, 0, END_OUT_OF_MEMORY, 1, "memory limit 512 MiB, peak 512 MiB, 1 process killed"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job_result r = limits;
		judge_end(&r, &rows[i].facts, rows[i].status, rows[i].signal);
		assert_string_equal(r.evidence, rows[i].evidence);
		assert_int_equal(r.reason, rows[i].reason);
		assert_int_equal(r.exit_status, rows[i].exit_status);
		assert_int_equal(r.signal, rows[i].signal);
	}
}

static void test_death(void **)
{
	const struct {
		struct judge_facts facts;
		enum end_reason reason;
		const char *evidence;
	} rows[] = {
		{quiet, END_SANDBOX_DIED, "the system inside ended"},
		{with_oom(1, 1, "systemd"), END_OUT_OF_MEMORY,
		 "memory limit 512 MiB, peak 512 MiB, 1 process killed (systemd); then the system inside "
		 "ended"},
		{with_pids(1), END_PIDS_LIMIT,
		 "limit of 100 processes, 1 forks refused; then the system inside ended"},
		{with_disk(0, false), END_DISK_FULL,
		 "disk limit 1024 MiB, no free blocks were left at the worst moment; then the system inside "
		 "ended"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job_result r = limits;
		judge_death(&r, &rows[i].facts, "the system inside ended");
		assert_string_equal(r.evidence, rows[i].evidence);
		assert_int_equal(r.reason, rows[i].reason);
		assert_int_equal(r.exit_status, 125);
	}
}

static void test_set(void **)
{
	static const struct {
		enum end_reason reason;
		int exit_status;
	} rows[] = {
		{END_TIMEOUT, 124},
		{END_CANCELLED, 130},
		{END_START_FAILED, 125},
		{END_SANDBOX_DIED, 125},
		{END_PROTOCOL_ERROR, 125},
		{END_RUNNER_FAILED, 125},
		/* These leave the status that the job had. */
		{END_EXITED, 7},
		{END_SIGNALLED, 7},
		{END_OUT_OF_MEMORY, 7},
		{END_DISK_FULL, 7},
		{END_PIDS_LIMIT, 7},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job_result r = {.exit_status = 7};
		judge_set(&r, rows[i].reason, "%s %d", "why", 1);
		assert_int_equal(r.reason, rows[i].reason);
		assert_int_equal(r.exit_status, rows[i].exit_status);
		assert_string_equal(r.evidence, "why 1");
	}
}

/* A sentence that is too long is cut, also where one is added behind another. */
static void test_long_evidence(void **)
{
	char why[2 * EVIDENCE_MAX];
	memset(why, 'x', sizeof(why) - 1);
	why[sizeof(why) - 1] = '\0';
	struct job_result r = limits;
	judge_death(&r, &quiet, why);
	assert_int_equal(strlen(r.evidence), EVIDENCE_MAX - 1);
	struct judge_facts f = with_pids(1);
	judge_death(&r, &f, why);
	assert_int_equal(strlen(r.evidence), EVIDENCE_MAX - 1);
	assert_memory_equal(r.evidence, "limit of 100 processes, 1 forks refused; then xxx", 48);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_end),
		cmocka_unit_test(test_death),
		cmocka_unit_test(test_set),
		cmocka_unit_test(test_long_evidence),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
