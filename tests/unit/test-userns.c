/* Needs root: the map holds ids that are not the caller's own. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "fds.h"
#include "sys/userns.h"

/* Numbers only, whatever blanks are between them. */
static void read_map(const char *path, unsigned ret[static 3])
{
	char text[128];
	struct err e = ERR_INIT;
	if (file_read_text(AT_FDCWD, path, text, sizeof(text), &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(sscanf(text, "%u %u %u", &ret[0], &ret[1], &ret[2]), 3);
	assert_null(strchr(text, '\n'));
}

static void test_map(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct stat own, made;
	int fd = -1;
	assert_int_equal(userns_make(965536, 65536, &fd, &e), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fstat(fd, &made), 0);
	assert_int_equal(stat("/proc/self/ns/user", &own), 0);
	assert_true(made.st_ino != own.st_ino);
	/* It holds nothing and lives as long as the descriptor: the map is read by a child that enters it. */
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)alarm(10);
		_exit(setns(fd, CLONE_NEWUSER) < 0 ? 1 : pause());
	}
	char path[64];
	unsigned map[3] = {0};
	for (int i = 0; i < 1000 && map[1] != 965536; i++) {
		(void)snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
		read_map(path, map);
		(void)usleep(1000);
	}
	assert_int_equal(map[0], 0);
	assert_int_equal(map[1], 965536);
	assert_int_equal(map[2], 65536);
	(void)snprintf(path, sizeof(path), "/proc/%d/gid_map", pid);
	read_map(path, map);
	assert_int_equal(map[0], 0);
	assert_int_equal(map[1], 965536);
	assert_int_equal(map[2], 65536);
	(void)kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	(void)close(fd);
	assert_int_equal(fds_open(), before);
	/* No process of ours is left behind. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

static void test_refusals(void **)
{
	static const struct {
		uint32_t first, count;
	} rows[] = {
		{0, 65536},          {0, 1},          {965536, 0}, {0, 0}, {UINT32_MAX, 2},
		{4294901761, 65536}, {1, UINT32_MAX},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		int fd = -7;
		int r = userns_make(rows[i].first, rows[i].count, &fd, &e);
		if (r >= 0)
			fail_msg("%u ids from %u on were mapped", rows[i].count, rows[i].first);
		assert_int_equal(fd, -7);
		assert_true(strlen(e.msg) > 0);
	}
	assert_int_equal(fds_open(), before);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* Makes inotify instances in a namespace until there are no more, says how many, and stays until it is killed. */
static pid_t use_up(int ns, int *ret_count)
{
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int n = -1;
		(void)alarm(60);
		if (setns(ns, CLONE_NEWUSER) == 0)
			for (n = 0; inotify_init1(IN_CLOEXEC) >= 0;)
				n++;
		(void)!write(ends[1], &n, sizeof(n));
		(void)pause();
		_exit(0);
	}
	(void)close(ends[1]);
	assert_int_equal(read(ends[0], ret_count, sizeof(*ret_count)), sizeof(*ret_count));
	(void)close(ends[0]);
	return pid;
}

/* What one owner has used up, another one still has; and one owner has it only once. */
static void test_owned(void **)
{
	struct err e = ERR_INIT;
	struct rlimit files;
	uint64_t most = 0;
	int ns[3] = {-1, -1, -1};
	int counts[3];
	pid_t pids[3];
	static const uint32_t owners[3] = {3999800001, 3999800002, 3999800001};
	assert_int_equal(file_read_u64(AT_FDCWD, "/proc/sys/fs/inotify/max_user_instances", &most, &e), 0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	if (userns_make_owned(owners[2], &ns[2], &e) < 0)
		fail_msg("%s", e.msg);
	for (size_t i = 0; i < 3; i++) {
		if (i < 2 && userns_make_owned(owners[i], &ns[i], &e) < 0)
			fail_msg("%s", e.msg);
		pids[i] = use_up(ns[i], &counts[i]);
	}
	if (most + 64 < files.rlim_cur) {
		int more = -1;
		assert_int_equal(counts[0], most);
		assert_int_equal(counts[1], most);
		assert_int_equal(counts[2], 0);
		assert_int_equal(userns_make_owned(owners[0], &more, &e), -EMFILE);
		assert_non_null(strstr(e.msg, "user 3999800001 of the host"));
		assert_non_null(strstr(e.msg, "fs.inotify.max_user_instances"));
		assert_int_equal(more, -1);
	}
	char path[64];
	unsigned map[3] = {0};
	(void)snprintf(path, sizeof(path), "/proc/%d/uid_map", pids[0]);
	read_map(path, map);
	assert_int_equal(map[0], 0);
	assert_int_equal(map[1], 0);
	assert_int_equal(map[2], UINT32_MAX);
	for (size_t i = 0; i < 3; i++) {
		(void)kill(pids[i], SIGKILL);
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
		(void)close(ns[i]);
	}
}

/* Whoever makes a namespace for another stays who he was. */
static void test_maker_is_unchanged(void **)
{
	struct err e = ERR_INIT;
	int before = fds_open();
	int ns = -1;
	assert_int_equal(userns_make_owned(3999800003, &ns, &e), 0);
	assert_int_equal(geteuid(), 0);
	assert_int_equal(getegid(), 0);
	assert_int_equal(prctl(PR_GET_SECUREBITS), 0);
	(void)close(ns);
	assert_int_equal(fds_open(), before);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_map),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_owned),
		cmocka_unit_test(test_maker_is_unchanged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
