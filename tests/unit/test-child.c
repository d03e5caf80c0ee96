#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "io/child.h"

/* Starts `sh -c script` with the descriptors given and waits for its end. */
static struct child_end run_shell(const char *script, const int *fds, size_t n_fds)
{
	struct err e = ERR_INIT;
	struct child c = CHILD_INIT;
	struct child_plan plan = {
		.path = "/bin/sh",
		.arguments = (const char *const[]){"sh", "-c", script, NULL},
		.fds = fds,
		.n_fds = n_fds,
	};
	if (child_start(&plan, &c, &e) < 0)
		fail_msg("%s", e.msg);
	assert_true(c.pid > 0);
	assert_true(fcntl(c.pidfd, F_GETFD) & FD_CLOEXEC);
	struct child_end end = {0};
	assert_int_equal(child_wait(&c, 10000, &end, &e), 0);
	assert_int_equal(c.pidfd, -1);
	return end;
}

static void test_ends(void **)
{
	int before = fds_open();
	const int null[] = {-1, -1, -1};
	struct {
		const char *script;
		int status, signal;
	} rows[] = {{"exit 0", 0, 0},
		    {"exit 37", 37, 0},
		    {"kill -TERM $$", -1, SIGTERM},
		    {"kill -KILL $$", -1, SIGKILL}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct child_end end = run_shell(rows[i].script, null, 3);
		assert_int_equal(end.status, rows[i].status);
		assert_int_equal(end.signal, rows[i].signal);
	}
	struct child none = CHILD_INIT;
	struct child_end end = {.status = 5};
	assert_int_equal(child_wait(&none, 0, &end, NULL), 0);
	assert_int_equal(end.status, 0);
	assert_int_equal(child_signal(&none, SIGTERM, NULL), 0);
	child_kill(&none);
	assert_int_equal(fds_open(), before);
}

/* Three descriptors that lie where the others must go, and one that is asked for twice. */
static void test_descriptors_overlap(void **)
{
	int pipes[3][2];
	for (int i = 0; i < 3; i++)
		assert_int_equal(pipe(pipes[i]), 0);
	int saved[4];
	for (int i = 0; i < 4; i++) {
		saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 20);
		if (i > 0)
			assert_int_equal(dup2(pipes[i - 1][1], i + 0), i);
	}
	const int fds[] = {-1, 3, 1, 2, 2};
	struct child_end end =
		run_shell("echo one >&1; echo two >&2; echo three >&3; echo four >&4; "
			  "test \"$(ls /proc/self/fd | tr '\\n' ' ')\" = \"0 1 2 3 4 5 \" && test ! -t 0",
			  fds, 5);
	for (int i = 0; i < 4; i++) {
		if (saved[i] >= 0) {
			assert_int_equal(dup2(saved[i], i), i);
			close(saved[i]);
		} else {
			close(i);
		}
	}
	assert_int_equal(end.status, 0);
	/* 3 was pipe 2, 1 was pipe 0, 2 was pipe 1. */
	const char *expected[] = {"two\n", "three\nfour\n", "one\n"};
	for (int i = 0; i < 3; i++) {
		char text[64] = "";
		close(pipes[i][1]);
		ssize_t n = read(pipes[i][0], text, sizeof(text) - 1);
		assert_true(n >= 0);
		text[n] = '\0';
		assert_string_equal(text, expected[i]);
		close(pipes[i][0]);
	}
}

static void test_nothing_else_is_open(void **)
{
	struct err e = ERR_INIT;
	/* Not close-on-exec on purpose. */
	int leak = open("/", O_RDONLY | O_DIRECTORY);
	int high = fcntl(leak, F_DUPFD, 500);
	int ends[2];
	assert_true(leak >= 0 && high >= 500);
	assert_int_equal(pipe(ends), 0);
	struct child c = CHILD_INIT;
	struct child_end end = {0};
	struct child_plan plan = {.path = "/bin/ls",
				  .arguments = (const char *const[]){"ls", "/proc/self/fd", NULL},
				  .fds = (const int[]){-1, ends[1], -1, -1},
				  .n_fds = 4};
	assert_int_equal(child_start(&plan, &c, &e), 0);
	assert_int_equal(child_wait(&c, 10000, &end, &e), 0);
	char text[256] = "";
	assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
	/* 4 is the directory that ls reads. */
	assert_string_equal(text, "0\n1\n2\n3\n4\n");
	close(ends[0]);
	close(ends[1]);
	close(leak);
	close(high);
}

static void test_signals_are_reset(void **)
{
	const int null[] = {-1, -1, -1};
	sigset_t set;
	sigset_t before;
	sigset_t after;
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, &before);
	signal(SIGPIPE, SIG_IGN);
	struct child_end end = run_shell("while read -r name value; do case $name in "
					 "SigBlk:|SigIgn:) test $value = 0000000000000000 || exit 1;; esac; "
					 "done < /proc/$$/status",
					 null, 3);
	assert_int_equal(end.status, 0);
	sigprocmask(SIG_SETMASK, &before, &after);
	assert_true(sigismember(&after, SIGHUP));
	assert_false(sigismember(&after, SIGTERM));
	signal(SIGPIPE, SIG_DFL);
}

static void test_environment(void **)
{
	struct err e = ERR_INIT;
	const char *script = "test \"$(cat /proc/$$/environ | tr '\\0' ' ')\" = \"$1\"";
	const char *const environment[] = {"A=1", "B=2", NULL};
	struct {
		const char *const *environment;
		const char *expected;
	} rows[] = {{NULL, ""}, {environment, "A=1 B=2 "}};
	for (size_t i = 0; i < 2; i++) {
		struct child c = CHILD_INIT;
		struct child_end end = {0};
		struct child_plan plan = {
			.path = "/bin/sh",
			.arguments = (const char *const[]){"sh", "-c", script, "sh", rows[i].expected, NULL},
			.environment = rows[i].environment,
			.fds = (const int[]){-1, 1, 2},
			.n_fds = 3,
			.new_session = true,
		};
		assert_int_equal(child_start(&plan, &c, &e), 0);
		assert_int_equal(getsid(c.pid), c.pid);
		assert_int_equal(child_wait(&c, 10000, &end, &e), 0);
		assert_int_equal(end.status, 0);
	}
}

static void test_cannot_start(void **)
{
	int before = fds_open();
	struct {
		const char *path;
		int result;
		const char *message;
	} rows[] = {
		{"/nowhere/program", -ENOENT, "start /nowhere/program: execute: No such file or directory"},
		{"/etc/passwd", -EACCES, "start /etc/passwd: execute: Permission denied"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		struct child c = CHILD_INIT;
		struct child_plan plan = {.path = rows[i].path,
					  .arguments = (const char *const[]){"x", NULL}};
		assert_int_equal(child_start(&plan, &c, &e), rows[i].result);
		assert_string_equal(e.msg, rows[i].message);
		assert_int_equal(c.pidfd, -1);
	}
	struct err e = ERR_INIT;
	struct child c = CHILD_INIT;
	struct child_plan plan = {.path = "/bin/true",
				  .arguments = (const char *const[]){"true", NULL},
				  .fds = (const int[]){900},
				  .n_fds = 1};
	assert_int_equal(child_start(&plan, &c, &e), -EBADF);
	assert_string_equal(e.msg, "start /bin/true: place descriptors: Bad file descriptor");
	plan.n_fds = CHILD_FDS_MAX + 1;
	assert_int_equal(child_start(&plan, &c, &e), -EINVAL);
	plan.n_fds = 0;
	plan.clone_flags = CLONE_NEWNS | CLONE_FS;
	assert_int_equal(child_start(&plan, &c, &e), -EINVAL);
	assert_string_equal(e.msg, "start /bin/true: clone: Invalid argument");
	assert_int_equal(fds_open(), before);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* 0, or 1 and more for what went wrong. */
static int start_one_too_many(void)
{
	struct err e = ERR_INIT;
	struct child c = CHILD_INIT;
	struct child_plan plan = {.path = "/bin/true", .arguments = (const char *const[]){"true", NULL}};
	const struct rlimit none = {0};
	if (setrlimit(RLIMIT_NPROC, &none) < 0 || setresuid(1234, 1234, 1234) < 0)
		return 1;
	if (child_start(&plan, &c, &e) != -EAGAIN)
		return 2;
	return strcmp(e.msg, "start /bin/true: no more processes are allowed: see ulimit -u, and pids.max of "
			     "the control group") != 0
		       ? 3
		       : 0;
}

static void test_no_more_processes(void **)
{
	int status = -1;
	if (geteuid() != 0)
		skip();
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(start_one_too_many());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_wait_and_signal(void **)
{
	struct err e = ERR_INIT;
	struct child c = CHILD_INIT;
	struct child_end end = {0};
	struct child_plan plan = {.path = "/bin/sleep",
				  .arguments = (const char *const[]){"sleep", "100", NULL},
				  .fds = (const int[]){-1, -1, -1},
				  .n_fds = 3};
	assert_int_equal(child_start(&plan, &c, &e), 0);
	assert_int_equal(child_wait(&c, 20, &end, &e), -ETIMEDOUT);
	assert_int_equal(child_signal(&c, SIGTERM, &e), 0);
	assert_int_equal(child_wait(&c, UINT64_MAX, &end, &e), 0);
	assert_int_equal(end.signal, SIGTERM);
	assert_int_equal(child_start(&plan, &c, &e), 0);
	child_kill(&c);
	assert_int_equal(c.pid, -1);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* A parent in between starts a child that shall die with it, tells its number and ends. */
static void middle(int report, uint64_t clone_flags)
{
	struct child c = CHILD_INIT;
	struct child_plan plan = {
		.path = "/bin/sh",
		.arguments = (const char *const[]){"sh", "-c", "echo up; exec sleep 100", NULL},
		.fds = (const int[]){-1, report, -1},
		.n_fds = 3,
		.clone_flags = clone_flags,
		.die_with_parent = true,
	};
	if (child_start(&plan, &c, NULL) < 0)
		_exit(1);
	_exit(0);
}

static void test_dies_with_parent(void **)
{
	const uint64_t flags[] = {0, CLONE_NEWPID};
	for (size_t i = 0; i < 2; i++) {
		if (flags[i] && geteuid() != 0)
			continue;
		int ends[2];
		assert_int_equal(pipe(ends), 0);
		pid_t pid = fork();
		if (pid == 0)
			middle(ends[1], flags[i]);
		close(ends[1]);
		int status = -1;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		/* The end of the pipe comes when its last holder, the child, is gone: at once, not after 100 s. */
		char text[16];
		alarm(20);
		while (read(ends[0], text, sizeof(text)) > 0)
			continue;
		alarm(0);
		close(ends[0]);
	}
}

static void test_run(void **)
{
	struct err e = ERR_INIT;
	int ends[2];
	assert_int_equal(pipe(ends), 0);
	const char *const shout[] = {"sh", "-c", "echo out; echo err >&2; exit 3", NULL};
	assert_int_equal(child_run("/bin/sh", shout, ends[1], &e), 3);
	close(ends[1]);
	char text[32] = "";
	assert_int_equal(read(ends[0], text, sizeof(text) - 1), 8);
	assert_string_equal(text, "out\nerr\n");
	close(ends[0]);
	assert_int_equal(child_run("/bin/sh", (const char *const[]){"sh", "-c", "kill -9 $$", NULL}, -1, &e),
			 137);
	assert_int_equal(child_run("/nowhere", (const char *const[]){"x", NULL}, -1, &e), -ENOENT);
}

static void test_adopts_and_reaps_orphans(void **)
{
	struct err e = ERR_INIT;
	const char *const orphan[] = {"sh", "-c", "sleep 0.05 & exit 7", NULL};
	assert_int_equal(child_adopt_orphans(&e), 0);
	assert_int_equal(child_run("/bin/sh", orphan, -1, &e), 7);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), 0); /* it is ours now */
	child_reap_orphans(10000);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	child_reap_orphans(10000); /* there is none */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_descriptors_overlap),
		cmocka_unit_test(test_nothing_else_is_open),
		cmocka_unit_test(test_signals_are_reset),
		cmocka_unit_test(test_environment),
		cmocka_unit_test(test_cannot_start),
		cmocka_unit_test(test_no_more_processes),
		cmocka_unit_test(test_wait_and_signal),
		cmocka_unit_test(test_dies_with_parent),
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_adopts_and_reaps_orphans),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
