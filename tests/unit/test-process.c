#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fds.h"
#include "sys/process.h"

static pid_t start_sleeper(const char *name)
{
	int ends[2];
	char byte;
	assert_int_equal(pipe(ends), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)prctl(PR_SET_NAME, name);
		(void)!write(ends[1], "n", 1);
		for (;;)
			(void)pause();
	}
	assert_int_equal(read(ends[0], &byte, 1), 1);
	(void)close(ends[0]);
	(void)close(ends[1]);
	return pid;
}

static void end(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* A process chooses its name, and the kernel writes it in front of the field that is read. */
static void test_start_time(void **)
{
	static const char *const names[] = {"sleeper",         "a b c", ") R 1 1 1 1", "(", ")",
					    "1 2 3 4 5 6 7 8", ""};
	int before = fds_open();
	struct err e = ERR_INIT;
	uint64_t own = 0;
	assert_int_equal(process_start_time(getpid(), &own, &e), 0);
	assert_true(own > 0);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t first = 0;
		uint64_t second = 1;
		pid_t pid = start_sleeper(names[i]);
		assert_int_equal(process_start_time(pid, &first, &e), 0);
		assert_int_equal(process_start_time(pid, &second, &e), 0);
		assert_int_equal(first, second);
		/* Started after us and within the minute, in ticks of 10 ms. */
		assert_true(first >= own && first < own + 60 * 100);
		end(pid);
	}
	uint64_t kept = 4711;
	pid_t gone = start_sleeper("gone");
	end(gone);
	assert_int_equal(process_start_time(gone, &kept, &e), -ENOENT);
	assert_int_equal(kept, 4711);
	assert_int_equal(fds_open(), before);
}

static void test_kill(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	uint64_t start = 0;
	int status = 0;
	pid_t pid = start_sleeper("victim");
	assert_int_equal(process_start_time(pid, &start, &e), 0);
	/* The number is another's when the time differs: nothing is done to it. */
	assert_int_equal(process_kill(pid, start + 1, 1000, &e), 0);
	assert_int_equal(process_kill(pid, start - 1, 1000, &e), 0);
	assert_int_equal(process_kill(pid, 0, 1000, &e), 0);
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	assert_int_equal(process_kill(pid, start, 1000, &e), 0);
	/* It is over by the time the call returns. */
	assert_int_equal(waitpid(pid, &status, WNOHANG), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* And again, when it is gone. */
	assert_int_equal(process_kill(pid, start, 1000, &e), 0);
	assert_int_equal(fds_open(), before);
}

/* A number that names no process, one that cannot be one, and a zombie: nothing to kill, no error. */
static void test_kill_nothing(void **)
{
	struct err e = ERR_INIT;
	static const pid_t pids[] = {0, -1, INT32_MAX};
	for (size_t i = 0; i < sizeof(pids) / sizeof(pids[0]); i++)
		assert_int_equal(process_kill(pids[i], 1, 10, &e), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(0);
	siginfo_t info;
	uint64_t start = 0;
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(process_start_time(pid, &start, &e), 0);
	assert_int_equal(process_kill(pid, start, 1000, &e), 0);
	end(pid);
}

/* Trouble of our own is not taken for the end of the process. */
static void test_kill_without_descriptors(void **)
{
	struct err e = ERR_INIT;
	uint64_t start = 0;
	struct rlimit limit;
	struct rlimit none;
	pid_t pid = start_sleeper("victim");
	assert_int_equal(process_start_time(pid, &start, &e), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int r = process_kill(pid, start, 1000, &e);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(r, -EMFILE);
	assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
	end(pid);
}

static void test_boot_id(void **)
{
	struct err e = ERR_INIT;
	char first[37];
	char second[37];
	assert_int_equal(process_boot_id(first, &e), 0);
	assert_int_equal(process_boot_id(second, &e), 0);
	assert_int_equal(strlen(first), 36);
	assert_int_equal(strspn(first, "0123456789abcdef-"), 36);
	assert_string_equal(first, second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start_time),   cmocka_unit_test(test_kill),
		cmocka_unit_test(test_kill_nothing), cmocka_unit_test(test_kill_without_descriptors),
		cmocka_unit_test(test_boot_id),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
