/* Needs root. The host's directories, as a process in a mount namespace of its own reaches them. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "sys/host.h"
#include "sys/netlink.h"
#include "sys/process.h"

static int setup(void **)
{
	lab_enter();
	return 0;
}

static void test_open(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct host h = HOST_INIT;
	struct stat st;
	struct stat same;
	mode_t mask = umask(0);
	lab_expect(host_open(&h, &e), 0, &e);
	umask(mask);
	assert_int_equal(stat(HOST_RUN_DIR, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(fstat(h.run, &same), 0);
	assert_int_equal(st.st_ino, same.st_ino);
	assert_true(fcntl(h.root, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(h.run, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(h.mounts, F_GETFD) & FD_CLOEXEC);
	host_close(&h);
	host_close(&h);
	/* It may be there. */
	lab_expect(host_open(&h, &e), 0, &e);
	host_close(&h);
	assert_int_equal(fds_open(), before);
}

/* What others could change is refused, and nothing stays open. */
static void test_unfit(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct host h = HOST_INIT;
	assert_int_equal(mkdir(HOST_RUN_DIR, 0755), 0);
	assert_int_equal(chmod(HOST_RUN_DIR, 0775), 0);
	assert_int_equal(host_open(&h, &e), -EPERM);
	assert_non_null(strstr(e.msg, HOST_RUN_DIR));
	assert_int_equal(chmod(HOST_RUN_DIR, 0755), 0);
	assert_int_equal(chown(HOST_RUN_DIR, 1, 0), 0);
	assert_int_equal(host_open(&h, &e), -EPERM);
	assert_int_equal(rmdir(HOST_RUN_DIR), 0);
	assert_int_equal(mkdir("/run/elsewhere", 0755), 0);
	assert_int_equal(symlink("elsewhere", HOST_RUN_DIR), 0);
	assert_true(host_open(&h, &e) < 0);
	assert_int_equal(h.run, -1);
	assert_int_equal(fds_open(), before);
}

static int mount_there(void *data, struct err *e)
{
	if (mkdir("/run/made", 0755) < 0 || mount("tmpfs", "/run/made", "tmpfs", 0, NULL) < 0 ||
	    mkdir("/run/made/inside", 0755) < 0)
		return err_sys(e, "mount");
	return *(const int *)data;
}

static int fail_there(void *, struct err *e)
{
	return err_set(e, -ENOTTY, "of fn");
}

static void test_with_mounts(void **)
{
	struct err e = ERR_INIT;
	struct host h = HOST_INIT;
	struct stat own;
	struct stat after;
	int result = 7;
	lab_expect(host_open(&h, &e), 0, &e);
	assert_int_equal(unshare(CLONE_NEWNS), 0);
	/* Hides the host's; the descriptors still lead there. */
	assert_int_equal(mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), 0);
	assert_int_equal(stat("/proc/self/ns/mnt", &own), 0);
	int before = fds_open();
	lab_expect(host_with_mounts(&h, mount_there, &result, &e), result, &e);
	assert_int_equal(host_with_mounts(&h, fail_there, NULL, &e), -ENOTTY);
	assert_string_equal(e.msg, "of fn");
	assert_int_equal(fds_open(), before);
	assert_int_equal(stat("/proc/self/ns/mnt", &after), 0);
	assert_int_equal(own.st_ino, after.st_ino);
	assert_int_equal(access("/run/made", F_OK), -1);
	assert_int_equal(faccessat(h.run, "../made", F_OK, 0), 0);
	assert_int_equal(faccessat(h.root, "run/made", F_OK, 0), 0);
	scoped_fd int back = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	assert_int_equal(setns(h.mounts, CLONE_NEWNS), 0);
	assert_int_equal(access("/run/made/inside", F_OK), 0);
	assert_int_equal(setns(back, CLONE_NEWNS), 0);
	/* What is no mount namespace is an error, and fn is not called. */
	const struct host wrong = {.root = -1, .run = -1, .mounts = h.run};
	assert_int_equal(host_with_mounts(&wrong, fail_there, NULL, &e), -EINVAL);
	const struct host none = HOST_INIT;
	assert_int_equal(host_with_mounts(&none, fail_there, NULL, &e), -EBADF);
	host_close(&h);
}

/* Who may enter no namespace cannot come back from one. */
static int become_nobody(void *, struct err *e)
{
	return setresuid(65534, 65534, 65534) < 0 ? err_sys(e, "setresuid") : 0;
}

static int lose_mounts(void)
{
	struct host h = HOST_INIT;
	return host_open(&h, NULL) < 0 ? -1 : host_with_mounts(&h, become_nobody, NULL, NULL);
}

static int lose_network(void)
{
	int fresh = -1;
	return netns_make(&fresh, NULL) < 0 ? -1 : netns_with(fresh, become_nobody, NULL, NULL);
}

/* It ends, and does nothing more in the wrong namespace. */
static void test_lost(void **)
{
	int (*const ways[])(void) = {lose_mounts, lose_network};
	for (size_t i = 0; i < 2; i++) {
		int status = 0;
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			(void)close(STDERR_FILENO);
			_exit(ways[i]() < 0 ? 1 : 0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), PROCESS_LOST_STATUS);
	}
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_open, setup),
		cmocka_unit_test_setup(test_unfit, setup),
		cmocka_unit_test_setup(test_with_mounts, setup),
		cmocka_unit_test_setup(test_lost, setup),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
