#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "client/verdict.h"

#define CUT    "cancelled before all outputs were copied"
#define GONE   "the sandbox ended before all outputs were copied"
#define KEEPER "the keeper is gone and has not said how the job ended: "

static struct {
	char text[1024];
	unsigned n;
} said;

static void say(const char *kind, const char *text)
{
	assert_null(kind);
	(void)snprintf(said.text, sizeof(said.text), "%s", text);
	said.n++;
}

static void test_verdicts(void **)
{
	static const struct {
		struct verdict v;
		enum end_reason told; /* by the keeper */
		int told_status;
		enum end_reason reason;
		int status;
		const char *evidence;
		unsigned n_said;
	} rows[] = {
		{{.fault = ""}, END_EXITED, 0, END_EXITED, 0, "keeper's", 0},
		{{.fault = ""}, END_EXITED, 3, END_EXITED, 3, "keeper's", 0},
		{{.fault = "broken"}, END_EXITED, 0, END_RUNNER_FAILED, 125, "broken", 1},
		{{.fault = "broken"}, END_EXITED, 3, END_EXITED, 3, "keeper's", 1},
		{{.fault = "broken"}, END_RUNNER_FAILED, 125, END_RUNNER_FAILED, 125, "broken", 1},
		{{.fault = "broken"}, END_TIMEOUT, 124, END_TIMEOUT, 124, "keeper's", 1},
		/* Cancelled when the job was over. */
		{{.fault = "", .cancelled = true}, END_EXITED, 0, END_EXITED, 0, "keeper's", 0},
		{{.fault = "", .cancelled = true, .outputs_missing = true},
		 END_EXITED,
		 0,
		 END_CANCELLED,
		 130,
		 CUT,
		 1},
		/* And before. */
		{{.fault = "", .cancelled = true, .outputs_missing = true},
		 END_CANCELLED,
		 130,
		 END_CANCELLED,
		 130,
		 "keeper's",
		 0},
		{{.fault = "", .outputs_missing = true}, END_EXITED, 0, END_RUNNER_FAILED, 125, GONE, 1},
		{{.fault = "", .outputs_missing = true},
		 END_OUT_OF_MEMORY,
		 137,
		 END_OUT_OF_MEMORY,
		 137,
		 "keeper's",
		 0},
		{{.fault = "broken", .outputs_missing = true},
		 END_EXITED,
		 0,
		 END_RUNNER_FAILED,
		 125,
		 "broken",
		 1},
		{{.fault = "", .keeper_end = "signal 9"},
		 END_NONE,
		 0,
		 END_RUNNER_FAILED,
		 125,
		 KEEPER "signal 9",
		 1},
		{{.fault = "broken", .keeper_end = "signal 9", .outputs_missing = true, .cancelled = true},
		 END_NONE,
		 0,
		 END_RUNNER_FAILED,
		 125,
		 "broken",
		 2},
	};
	static struct sandbox_spec spec = {
		.config.isolation = ISOLATION_CONTAINER, .docker.sysbox = true, .job_id = "mine"};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job_result r = {
			.reason = rows[i].told, .exit_status = rows[i].told_status, .evidence = "keeper's"};
		struct verdict v = rows[i].v;
		v.spec = &spec;
		said.n = 0;
		verdict_reach(&v, &r, say);
		if (r.reason != rows[i].reason || r.exit_status != rows[i].status ||
		    strcmp(r.evidence, rows[i].evidence) != 0 || said.n != rows[i].n_said)
			fail_msg("row %zu: %d %d %s, said %u", i, (int)r.reason, r.exit_status, r.evidence,
				 said.n);
		if (!v.keeper_end)
			continue;
		assert_string_equal(r.job_id, "mine");
		assert_int_equal(r.isolation, ISOLATION_CONTAINER);
		assert_true(r.sysbox);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_verdicts)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
