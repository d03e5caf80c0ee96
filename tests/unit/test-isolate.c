/* Needs root: the first thing that isolating does is to make mounts of its own. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "guard/isolate.h"

#define TEST_UID 987654

/* What the children below need to tell how it went. */
static const int calls[] = {SCMP_SYS(read),     SCMP_SYS(write),  SCMP_SYS(mmap),
			    SCMP_SYS(mprotect), SCMP_SYS(munmap), SCMP_SYS(exit_group)};

/* Descriptors of which only these may be closed: 9, and 32 to 63. */
static const struct isolate_rule rules[] = {
	{SCMP_SYS(close), 0, UINT32_MAX, 9},
	{SCMP_SYS(close), 0, UINT32_MAX & ~31u, 32},
};

static const struct isolate_plan plan = {
	.uid = TEST_UID,
	.syscalls = calls,
	.n_syscalls = sizeof(calls) / sizeof(calls[0]),
	.rules = rules,
	.n_rules = sizeof(rules) / sizeof(rules[0]),
	/* Much, since the address sanitizer reserves terabytes; still less than no limit. */
	.memory_bytes = UINT64_C(1) << 46,
	.files = 16,
};

/* Ends a child by the plain call: under the address sanitizer _exit() does more than the filter allows. */
static void leave(int status)
{
	(void)syscall(SYS_exit_group, status);
}

static pid_t fork_isolated(uint64_t flags)
{
	struct clone_args arguments = {.flags = flags, .exit_signal = SIGCHLD};
	return (pid_t)syscall(SYS_clone3, &arguments, sizeof(arguments));
}

static long try_openat(void)
{
	return openat(AT_FDCWD, "/", O_RDONLY);
}

static long try_socket(void)
{
	return socket(AF_INET, SOCK_STREAM, 0);
}

static long try_ptrace(void)
{
	return ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static long try_setuid(void)
{
	return syscall(SYS_setuid, 0);
}

static long try_execve(void)
{
	return execve("/bin/true", (char *const[]){NULL}, (char *const[]){NULL});
}

static long try_fork(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static long try_unshare(void)
{
	return unshare(CLONE_NEWUSER);
}

static long try_mount(void)
{
	return mount("x", "/", "tmpfs", 0, NULL);
}

static long try_kill(void)
{
	return kill(1, SIGKILL);
}

static long try_prctl(void)
{
	return prctl(PR_SET_DUMPABLE, 1);
}

static long try_io_uring(void)
{
	return syscall(SYS_io_uring_setup, 1, NULL);
}

static long try_mmap_exec(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

static long try_mprotect_exec(void)
{
	void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? 0 : mprotect(p, 4096, PROT_READ | PROT_EXEC);
}

/* write() by the numbers of the x32 architecture, where there is one; an unknown number elsewhere. */
static long try_other_architecture(void)
{
	return syscall(0x40000000 | SYS_write, 1, "", 0);
}

/* None of these is open: what is allowed to ask is told so. */
static long close_says_no(unsigned long fd)
{
	return syscall(SYS_close, fd) == -1 && errno == EBADF ? 0 : 1;
}

static long try_close_allowed(void)
{
	/* The kernel does not look at the upper half of the register. */
	return close_says_no(9) + close_says_no(32) + close_says_no(63) +
	       close_says_no(UINT64_C(1) << 32 | 9);
}

static long try_close_below(void)
{
	return close_says_no(8);
}

static long try_close_under_range(void)
{
	return close_says_no(31);
}

static long try_close_over_range(void)
{
	return close_says_no(64);
}

static long try_close_upper_half(void)
{
	return close_says_no(UINT64_C(32) << 32 | 8);
}

static long try_mmap(void)
{
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return 1;
	p[0] = 1;
	return mprotect(p, 4096, PROT_READ) + munmap(p, 4096);
}

static void test_attempts(void **)
{
	struct {
		const char *name;
		long (*attempt)(void);
		int signal; /* that it ends with; 0: the attempt returns 0 */
	} rows[] = {
		{"openat", try_openat, SIGSYS},
		{"socket", try_socket, SIGSYS},
		{"ptrace", try_ptrace, SIGSYS},
		{"setuid", try_setuid, SIGSYS},
		{"execve", try_execve, SIGSYS},
		{"fork", try_fork, SIGSYS},
		{"unshare", try_unshare, SIGSYS},
		{"mount", try_mount, SIGSYS},
		{"kill", try_kill, SIGSYS},
		{"prctl", try_prctl, SIGSYS},
		{"io_uring", try_io_uring, SIGSYS},
		{"mmap executable", try_mmap_exec, SIGSYS},
		{"mprotect executable", try_mprotect_exec, SIGSYS},
		{"other architecture", try_other_architecture, SIGSYS},
		{"mmap", try_mmap, 0},
		{"close allowed", try_close_allowed, 0},
		{"close below", try_close_below, SIGSYS},
		{"close under the range", try_close_under_range, SIGSYS},
		{"close over the range", try_close_over_range, SIGSYS},
		{"close with bits above", try_close_upper_half, SIGSYS},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		pid_t pid = fork_isolated(isolate_clone_flags());
		assert_true(pid >= 0);
		if (pid == 0) {
			if (isolate_enter(&plan, NULL) < 0)
				leave(2);
			leave(rows[i].attempt() == 0 ? 0 : 1);
		}
		int status = -1;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		int expected = rows[i].signal ? rows[i].signal : 0;
		if ((status & 0x7f) != expected || (!expected && status != 0))
			fail_msg("%s: status %#x", rows[i].name, (unsigned)status);
	}
}

/* What the kernel denies by itself, should the filter have a hole: the filter of this child lets these through. */
static void test_without_the_filter(void **)
{
	const int open_calls[] = {SCMP_SYS(openat), SCMP_SYS(clone), SCMP_SYS(setuid),
				  SCMP_SYS(prctl),  SCMP_SYS(mount), SCMP_SYS(exit_group)};
	struct isolate_plan wide = plan;
	wide.syscalls = open_calls;
	wide.n_syscalls = sizeof(open_calls) / sizeof(open_calls[0]);
	pid_t pid = fork_isolated(isolate_clone_flags());
	assert_true(pid >= 0);
	if (pid == 0) {
		int end_signal = 0;
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || isolate_enter(&wide, NULL) < 0)
			leave(1);
		if (open("/proc/self/status", O_RDONLY) >= 0 || open("/x", O_CREAT | O_WRONLY, 0600) >= 0)
			leave(2);
		if (try_fork() >= 0 || try_setuid() == 0 || try_mount() == 0)
			leave(3);
		if (prctl(PR_GET_PDEATHSIG, &end_signal) < 0 || end_signal != SIGKILL)
			leave(4);
		leave(0);
	}
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void read_proc(pid_t pid, const char *name, char *text, size_t size)
{
	char path[64];
	assert_true(snprintf(path, sizeof(path), "/proc/%d/%s", pid, name) < (int)sizeof(path));
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	size_t n = 0;
	ssize_t got;
	while ((got = read(fd, text + n, size - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(fd);
}

static void assert_contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("\"%s\" is not in:\n%s", part, text);
}

static void check_status(pid_t pid)
{
	char text[8192];
	read_proc(pid, "status", text, sizeof(text));
	const char *const lines[] = {
		"Uid:\t987654\t987654\t987654\t987654\n",
		"Gid:\t987654\t987654\t987654\t987654\n",
		"Groups:\t \n",
		"CapInh:\t0000000000000000\n",
		"CapPrm:\t0000000000000000\n",
		"CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n",
		"CapAmb:\t0000000000000000\n",
		"NoNewPrivs:\t1\n",
		"Seccomp:\t2\n",
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		assert_contains(text, lines[i]);
	read_proc(pid, "limits", text, sizeof(text));
	const char *const limits[] = {
		"Max processes             0                    0                    processes \n",
		"Max file size             0                    0                    bytes     \n",
		"Max core file size        0                    0                    bytes     \n",
		"Max open files            16                   16                   files     \n",
		"Max address space         70368744177664       70368744177664       bytes     \n",
	};
	for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
		assert_contains(text, limits[i]);
}

static void check_root(pid_t pid)
{
	char text[8192];
	char path[64];
	/* One mount, and nothing in it. */
	read_proc(pid, "mountinfo", text, sizeof(text));
	assert_contains(text, " / / ro,nosuid,nodev,noexec,relatime - tmpfs empty ro,");
	assert_ptr_equal(strchr(text, '\n') + 1, text + strlen(text));
	assert_true(snprintf(path, sizeof(path), "/proc/%d/root", pid) < (int)sizeof(path));
	DIR *root = opendir(path);
	assert_non_null(root);
	int entries = 0;
	while (readdir(root))
		entries++;
	closedir(root);
	assert_int_equal(entries, 2);
	assert_true(snprintf(path, sizeof(path), "/proc/%d/cwd", pid) < (int)sizeof(path));
	ssize_t n = readlink(path, text, sizeof(text) - 1);
	assert_int_equal(n, 1);
	assert_int_equal(text[0], '/');
	/* Not dumpable: its /proc belongs to root. */
	struct stat st;
	assert_true(snprintf(path, sizeof(path), "/proc/%d/status", pid) < (int)sizeof(path));
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_uid, 0);
}

static void check_namespaces(pid_t pid)
{
	const char *const names[] = {"pid", "mnt", "net", "ipc", "uts", "cgroup"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[64];
		struct stat ours;
		struct stat its;
		assert_true(snprintf(path, sizeof(path), "/proc/self/ns/%s", names[i]) < (int)sizeof(path));
		assert_int_equal(stat(path, &ours), 0);
		assert_true(snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, names[i]) <
			    (int)sizeof(path));
		assert_int_equal(stat(path, &its), 0);
		assert_int_not_equal(ours.st_ino, its.st_ino);
	}
}

static void test_posture(void **)
{
	int up[2];
	int down[2];
	assert_int_equal(pipe(up), 0);
	assert_int_equal(pipe(down), 0);
	pid_t pid = fork_isolated(isolate_clone_flags());
	assert_true(pid >= 0);
	if (pid == 0) {
		char byte = 'x';
		if (isolate_enter(&plan, NULL) < 0)
			leave(1);
		/* Writing to a pipe works although no file may grow. */
		if (write(up[1], &byte, 1) != 1 || read(down[0], &byte, 1) != 1)
			leave(2);
		leave(0);
	}
	char byte = 0;
	close(up[1]);
	assert_int_equal(read(up[0], &byte, 1), 1);
	check_status(pid);
	check_root(pid);
	check_namespaces(pid);
	assert_int_equal(write(down[1], "x", 1), 1);
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	close(up[0]);
	close(down[0]);
	close(down[1]);
}

static void test_refusals(void **)
{
	struct err e = ERR_INIT;
	struct isolate_plan root = plan;
	root.uid = 0;
	assert_int_equal(isolate_enter(&root, &e), -EINVAL);
	assert_string_equal(e.msg, "isolate: uid 0 is no isolation");

	/* Without the rights to it, the step is named and nothing goes on. */
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct err err = ERR_INIT;
		if (syscall(SYS_setresuid, TEST_UID, TEST_UID, TEST_UID) < 0 ||
		    isolate_enter(&plan, &err) != -EPERM)
			leave(1);
		leave(strcmp(err.msg, "isolate: empty root: make mounts private: Operation not permitted") !=
		      0);
	}
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attempts),
		cmocka_unit_test(test_without_the_filter),
		cmocka_unit_test(test_posture),
		cmocka_unit_test(test_refusals),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
