/* Needs root. Works in the hierarchies of this host, in a group that bears an id of its own. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "guardian.h"
#include "spec/id.h"
#include "sys/cgroup.h"

#define MIB ((uint64_t)1 << 20)

static char id[ID_SIZE];
static struct cgroup_host host;

static const struct cgroup_limits limits = {
	.memory_bytes = 64 * MIB + 4096, .cpus = 1, .pids = 20, .slot = 0};

static void clean(void)
{
	(void)!cgroup_remove(&host, id, NULL);
}

static int setup(void **)
{
	clean();
	return 0;
}

static int teardown(void **)
{
	struct err e = ERR_INIT;
	if (cgroup_remove(&host, id, &e) < 0)
		print_error("%s\n", e.msg);
	return e.code;
}

static const struct cgroup_hierarchy *with(unsigned controller)
{
	for (unsigned i = 0; i < host.n; i++)
		if (host.hierarchies[i].controllers & controller)
			return &host.hierarchies[i];
	return NULL;
}

/* The path of something in the group, "" for itself. */
static const char *in_group(const struct cgroup_hierarchy *h, const char *file)
{
	static char path[PATH_MAX];
	(void)snprintf(path, sizeof(path), "%s/ermite-runner/%s/%s", h->path, id, file);
	return path;
}

static const char *content(const struct cgroup_hierarchy *h, const char *file)
{
	static char text[1024];
	struct err e = ERR_INIT;
	if (file_read_text(AT_FDCWD, in_group(h, file), text, sizeof(text), &e) < 0)
		fail_msg("%s", e.msg);
	return text;
}

static void make_group(void)
{
	struct err e = ERR_INIT;
	if (cgroup_make(&host, id, &e) < 0 || cgroup_limit(&host, id, &limits, &e) < 0 ||
	    cgroup_delegate(&host, id, 965536, &e) < 0)
		fail_msg("%s", e.msg);
}

/* A process that does nothing until it is killed. */
static pid_t start_sleeper(void)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			(void)pause();
	}
	return pid;
}

/* Whether a process is gone, as one that was killed; reaps it. */
static void assert_killed(pid_t pid)
{
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Runs fn in a child that has entered the group first; returns its exit status. */
static int run_inside(int (*fn)(void))
{
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		char byte;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(read(ends[0], &byte, 1) == 1 ? fn() : 99);
	}
	struct err e = ERR_INIT;
	if (cgroup_enter(&host, id, pid, &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(write(ends[1], "g", 1), 1);
	(void)close(ends[0]);
	(void)close(ends[1]);
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_host(void **)
{
	const unsigned needed = CGROUP_MEMORY | CGROUP_CPU | CGROUP_PIDS;
	assert_true(host.n > 0);
	assert_int_equal(cgroup_controllers(&host) & needed, needed);
	for (unsigned i = 0; i < host.n; i++) {
		const struct cgroup_hierarchy *h = &host.hierarchies[i];
		char path[CGROUP_PATH_MAX + 32];
		(void)snprintf(path, sizeof(path), "%s/cgroup.controllers", h->path);
		assert_int_equal(access(path, F_OK) == 0, h->v2);
		for (unsigned k = i + 1; k < host.n; k++)
			assert_int_equal(h->controllers & host.hierarchies[k].controllers, 0);
	}
	const struct cgroup_host none = {0};
	assert_int_equal(cgroup_controllers(&none), 0);
}

static void test_limits_are_in_force(void **)
{
	const struct cgroup_hierarchy *memory = with(CGROUP_MEMORY);
	const struct cgroup_hierarchy *cpu = with(CGROUP_CPU);
	make_group();
	assert_string_equal(content(memory, memory->v2 ? "memory.max" : "memory.limit_in_bytes"), "67112960");
	if (memory->v2)
		assert_string_equal(content(memory, "memory.swap.max"), "0");
	else if (access(in_group(memory, "memory.memsw.limit_in_bytes"), F_OK) == 0)
		assert_string_equal(content(memory, "memory.memsw.limit_in_bytes"), "67112960");
	assert_string_equal(content(cpu, cpu->v2 ? "cpu.max" : "cpu.cfs_quota_us"),
			    cpu->v2 ? "100000 100000" : "100000");
	assert_string_equal(content(with(CGROUP_PIDS), "pids.max"), "20");
	const struct cgroup_hierarchy *devices = with(CGROUP_DEVICES);
	if (devices)
		assert_string_equal(content(devices, "devices.list"),
				    "c 1:3 rwm\nc 1:5 rwm\nc 1:7 rwm\nc 1:8 rwm\nc 1:9 rwm\nc 5:0 rwm\n"
				    "c 5:1 rwm\nc 5:2 rwm\nc 136:* rwm\nc 10:229 rwm\nc 10:200 rwm");
}

/* Where root inside is root of the host, it has the devices that this one has. */
static void test_all_devices(void **)
{
	struct err e = ERR_INIT;
	struct cgroup_limits all = limits;
	const struct cgroup_hierarchy *devices = with(CGROUP_DEVICES);
	all.all_devices = true;
	assert_int_equal(cgroup_make(&host, id, &e), 0);
	assert_int_equal(cgroup_limit(&host, id, &all, &e), 0);
	assert_string_equal(content(with(CGROUP_PIDS), "pids.max"), "20");
	if (devices) {
		char own[1024];
		(void)snprintf(own, sizeof(own), "%s", content(devices, "devices.list"));
		assert_string_equal(own, content(devices, "../devices.list"));
	}
}

/* One that is there already may be another's: it is never taken over. */
static void test_make_twice(void **)
{
	struct err e = ERR_INIT;
	assert_int_equal(cgroup_make(&host, id, &e), 0);
	assert_int_equal(cgroup_make(&host, id, &e), -EEXIST);
	assert_non_null(strstr(e.msg, id));
}

static void test_cpuset(void **)
{
	const struct cgroup_hierarchy *cpuset = with(CGROUP_CPUSET);
	struct err e = ERR_INIT;
	long n = sysconf(_SC_NPROCESSORS_ONLN);
	if (!cpuset || n < 2)
		return;
	/* Slots take turns. */
	for (uint32_t slot = 0; slot < 3; slot++) {
		struct cgroup_limits one = limits;
		char expected[16];
		one.slot = slot;
		assert_int_equal(cgroup_make(&host, id, &e), 0);
		assert_int_equal(cgroup_limit(&host, id, &one, &e), 0);
		(void)snprintf(expected, sizeof(expected), "%ld", (long)slot % n);
		assert_string_equal(content(cpuset, "cpuset.cpus"), expected);
		assert_int_equal(cgroup_delegate(&host, id, 965536, &e), 0);
		if (!cpuset->v2) {
			assert_string_equal(content(cpuset, "guest/cpuset.cpus"), expected);
			assert_true(strlen(content(cpuset, "guest/cpuset.mems")) > 0);
		}
		assert_int_equal(cgroup_remove(&host, id, &e), 1);
	}
	/* One as large as the host gets all. */
	struct cgroup_limits all = limits;
	all.cpus = (uint32_t)n;
	assert_int_equal(cgroup_make(&host, id, &e), 0);
	assert_int_equal(cgroup_limit(&host, id, &all, &e), 0);
	assert_string_not_equal(content(cpuset, cpuset->v2 ? "cpuset.cpus.effective" : "cpuset.cpus"), "0");
}

/* Root inside owns its group and its way into it, and nothing that holds a limit. */
static void test_delegation(void **)
{
	static const char *const owned[] = {"guest", "guest/cgroup.procs"};
	static const char *const not_owned[] = {"",
						"cgroup.procs",
						"guest/notify_on_release",
						"guest/memory.max",
						"guest/memory.limit_in_bytes",
						"memory.max",
						"pids.max",
						"memory.limit_in_bytes",
						"guest/pids.max"};
	struct stat st;
	make_group();
	for (unsigned i = 0; i < host.n; i++) {
		const struct cgroup_hierarchy *h = &host.hierarchies[i];
		for (size_t f = 0; f < sizeof(owned) / sizeof(owned[0]); f++) {
			assert_int_equal(lstat(in_group(h, owned[f]), &st), 0);
			assert_int_equal(st.st_uid, 965536);
			assert_int_equal(st.st_gid, 965536);
		}
		for (size_t f = 0; f < sizeof(not_owned) / sizeof(not_owned[0]); f++) {
			if (lstat(in_group(h, not_owned[f]), &st) < 0)
				continue;
			assert_int_equal(st.st_uid, 0);
			assert_false(st.st_mode & S_IWOTH);
		}
	}
}

static void test_enter_and_remove(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	pid_t sleepers[3];
	make_group();
	for (size_t i = 0; i < 3; i++) {
		char pid[16];
		sleepers[i] = start_sleeper();
		assert_int_equal(cgroup_enter(&host, id, sleepers[i], &e), 0);
		(void)snprintf(pid, sizeof(pid), "%d", sleepers[i]);
		for (unsigned k = 0; k < host.n; k++)
			assert_non_null(strstr(content(&host.hierarchies[k], "guest/cgroup.procs"), pid));
	}
	/* A group that the sandbox made goes too, with what is in it. */
	char group[64];
	(void)snprintf(group, sizeof(group), "guest/system.slice");
	for (unsigned k = 0; k < host.n; k++)
		assert_int_equal(mkdir(in_group(&host.hierarchies[k], group), 0755), 0);
	(void)snprintf(group, sizeof(group), "%d", sleepers[2]);
	assert_int_equal(
		file_put(AT_FDCWD, in_group(with(CGROUP_PIDS), "guest/system.slice/cgroup.procs"), group, &e),
		0);
	assert_int_equal(cgroup_remove(&host, id, &e), 1);
	for (size_t i = 0; i < 3; i++)
		assert_killed(sleepers[i]);
	for (unsigned k = 0; k < host.n; k++)
		assert_int_equal(access(in_group(&host.hierarchies[k], ""), F_OK), -1);
	/* What is not there any more is fine, and a process that is not there either is an error. */
	assert_int_equal(cgroup_remove(&host, id, &e), 0);
	assert_true(cgroup_enter(&host, id, getpid(), &e) < 0);
	assert_int_equal(fds_open(), before);
}

/* Half a group, as a crash leaves it. */
static void test_remove_half(void **)
{
	struct err e = ERR_INIT;
	struct cgroup_host half = host;
	half.n = (host.n + 1) / 2;
	assert_int_equal(cgroup_make(&half, id, &e), 0);
	assert_int_equal(cgroup_remove(&host, id, &e), 1);
	for (unsigned k = 0; k < host.n; k++)
		assert_int_equal(access(in_group(&host.hierarchies[k], ""), F_OK), -1);
}

/* Makes a chain of groups below each other and returns the last one, open. */
static int make_deep(const struct cgroup_hierarchy *h, const char *name, unsigned depth)
{
	int at = open(in_group(h, "guest"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(at >= 0);
	for (unsigned i = 0; i < depth; i++) {
		assert_int_equal(mkdirat(at, name, 0755), 0);
		int below = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		assert_true(below >= 0);
		(void)close(at);
		at = below;
	}
	return at;
}

/* A sandbox can make groups whose paths are longer than any buffer, in deeper chains than there are descriptors, and
 * more of them than anybody counts; all of them go, and with them what runs there. */
static void test_remove_hostile(void **)
{
	const struct cgroup_hierarchy *h = with(CGROUP_PIDS);
	struct err e = ERR_INIT;
	char name[201];
	char pid[16];
	make_group();
	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	scoped_fd int last = make_deep(h, name, 8);
	pid_t sleeper = start_sleeper();
	(void)snprintf(pid, sizeof(pid), "%d", sleeper);
	assert_int_equal(file_put(last, "cgroup.procs", pid, &e), 0);
	(void)close(make_deep(h, "d", 1500));
	for (unsigned i = 0; i < 500; i++) {
		char wide[32];
		(void)snprintf(wide, sizeof(wide), "guest/wide%u", i);
		assert_int_equal(mkdir(in_group(h, wide), 0755), 0);
	}
	assert_int_equal(mkdir(in_group(h, "guest/.hidden"), 0755), 0);
	struct cgroup_usage usage;
	cgroup_usage(&host, id, &usage);
	if (cgroup_remove(&host, id, &e) < 0)
		fail_msg("%s", e.msg);
	assert_killed(sleeper);
}

static int use_much(void)
{
	/* The kernel kills a child of ours: the one that uses most. */
	pid_t pid = fork();
	if (pid == 0) {
		const size_t n = 200 * MIB;
		char *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (size_t i = 0; p != MAP_FAILED && i < n; i += 4096)
			((volatile char *)p)[i] = 1;
		_exit(0);
	}
	int status = 0;
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) ? 0 : 1;
}

static int fork_much(void)
{
	int refused = 0;
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();
		if (pid == 0)
			for (;;)
				(void)pause();
		refused += pid < 0 && errno == EAGAIN;
	}
	return refused;
}

static int do_nothing(void)
{
	return 0;
}

static void test_usage(void **)
{
	struct cgroup_usage usage;
	memset(&usage, 0xff, sizeof(usage));
	cgroup_usage(&host, id, &usage);
	const struct cgroup_usage none = {0};
	assert_memory_equal(&usage, &none, sizeof(none));

	make_group();
	assert_int_equal(run_inside(do_nothing), 0);
	cgroup_usage(&host, id, &usage);
	assert_true(usage.cpu_ns > 0);
	assert_int_equal(usage.oom_kills, 0);
	assert_int_equal(usage.memory_fails, 0);
	assert_int_equal(usage.pids_refused, 0);

	assert_int_equal(run_inside(use_much), 0);
	cgroup_usage(&host, id, &usage);
	assert_int_equal(usage.oom_kills, 1);
	assert_true(usage.memory_fails > 0);
	assert_true(usage.memory_peak_bytes > 60 * MIB && usage.memory_peak_bytes <= 64 * MIB + 4096);
	assert_int_equal(usage.pids_refused, 0);

	int refused = run_inside(fork_much);
	assert_int_equal(refused, 21);
	cgroup_usage(&host, id, &usage);
	assert_int_equal(usage.pids_refused, refused);
	assert_int_equal(usage.oom_kills, 1);
}

/* A limit that a nested container set itself, and met, is not the sandbox's. */
static void test_usage_of_nested_limits(void **)
{
	const struct cgroup_hierarchy *h = with(CGROUP_PIDS);
	struct err e = ERR_INIT;
	struct cgroup_usage usage;
	make_group();
	assert_int_equal(mkdir(in_group(h, "guest/nested"), 0755), 0);
	assert_int_equal(file_put(AT_FDCWD, in_group(h, "guest/nested/pids.max"), "3", &e), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open(in_group(h, "guest/nested/cgroup.procs"), O_WRONLY | O_CLOEXEC);
		_exit(write(fd, "0", 1) == 1 && fork_much() == 38 ? 0 : 1);
	}
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	cgroup_usage(&host, id, &usage);
	assert_int_equal(usage.pids_refused, 0);
}

static void test_usage_of_nested_memory_limits(void **)
{
	const struct cgroup_hierarchy *h = with(CGROUP_MEMORY);
	struct err e = ERR_INIT;
	struct cgroup_usage usage;
	make_group();
	assert_int_equal(mkdir(in_group(h, "guest/nested"), 0755), 0);
	assert_int_equal(file_put(AT_FDCWD,
				  in_group(h, h->v2 ? "guest/nested/memory.max"
						    : "guest/nested/memory.limit_in_bytes"),
				  "8M", &e),
			 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open(in_group(h, "guest/nested/cgroup.procs"), O_WRONLY | O_CLOEXEC);
		_exit(write(fd, "0", 1) == 1 ? use_much() : 1);
	}
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	cgroup_usage(&host, id, &usage);
	assert_int_equal(usage.oom_kills, 1);
	assert_int_equal(usage.memory_fails, 0);
}

/* Each limit whose controller this host does not have is refused with a sentence that names it. */
static void test_missing_controllers(void **)
{
	static const struct {
		unsigned controllers;
		const char *message;
	} rows[] = {
		{CGROUP_MEMORY,
		 "the memory limit cannot be enforced on this host: no memory cgroup controller"},
		{CGROUP_CPU, "the CPU limit cannot be enforced on this host: no cpu cgroup controller"},
		{CGROUP_PIDS, "the process limit cannot be enforced on this host: no pids cgroup controller"},
	};
	struct err e = ERR_INIT;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct cgroup_host less = host;
		for (unsigned k = 0; k < less.n; k++)
			less.hierarchies[k].controllers &= ~rows[i].controllers;
		assert_int_equal(cgroup_make(&less, id, &e), 0);
		assert_int_equal(cgroup_limit(&less, id, &limits, &e), -ENOTSUP);
		assert_string_equal(e.msg, rows[i].message);
		assert_int_equal(cgroup_remove(&host, id, &e), 1);
	}
	/* Devices need the v1 controller or any v2 hierarchy. */
	struct cgroup_host less = {0};
	for (unsigned k = 0; k < host.n; k++)
		if (!host.hierarchies[k].v2 && !(host.hierarchies[k].controllers & CGROUP_DEVICES))
			less.hierarchies[less.n++] = host.hierarchies[k];
	if ((cgroup_controllers(&less) & (CGROUP_MEMORY | CGROUP_CPU | CGROUP_PIDS)) !=
	    (CGROUP_MEMORY | CGROUP_CPU | CGROUP_PIDS))
		return;
	assert_int_equal(cgroup_make(&less, id, &e), 0);
	assert_int_equal(cgroup_limit(&less, id, &limits, &e), -ENOTSUP);
	assert_string_equal(e.msg,
			    "the device limit cannot be enforced on this host: no devices cgroup controller");
}

static void test_disk_rate(void **)
{
	const struct cgroup_hierarchy *io = with(CGROUP_IO);
	struct err e = ERR_INIT;
	assert_int_equal(cgroup_make(&host, id, &e), 0);
	/* Off is always possible. */
	assert_int_equal(cgroup_limit_disk(&host, id, makedev(7, 0), 0, 0, &e), 0);
	if (io && io->v2)
		return;
	assert_int_equal(cgroup_limit_disk(&host, id, makedev(7, 0), MIB, 0, &e), -ENOTSUP);
	assert_int_equal(cgroup_limit_disk(&host, id, makedev(7, 0), 0, 100, &e), -ENOTSUP);
	assert_string_equal(e.msg, "the disk rate limit cannot be enforced on this host: it needs the io "
				   "controller of cgroup v2, v1 does not see buffered writes");
}

/* A node of our own on a file system that allows devices: what is asked is the device list, not the host's /dev. */
static int open_node(mode_t kind, unsigned major_number, unsigned minor_number)
{
	static const char path[] = "/run/ermite-test-node";
	(void)unlink(path);
	if (mknod(path, kind | 0600, makedev(major_number, minor_number)) < 0)
		return -errno;
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	return fd < 0 ? -errno : 0;
}

static int try_devices(void)
{
	/* The list is what a sandbox's /dev has; the nodes are opened where the host has the device. */
	static const struct {
		mode_t kind;
		unsigned major, minor;
		bool allowed;
	} rows[] = {
		{S_IFCHR, 1, 3, true},     {S_IFCHR, 1, 5, true},     {S_IFCHR, 1, 7, true},
		{S_IFCHR, 1, 8, true},     {S_IFCHR, 1, 9, true},     {S_IFCHR, 5, 2, true},
		{S_IFCHR, 10, 229, true},  {S_IFCHR, 10, 200, true},  {S_IFCHR, 1, 1, false},
		{S_IFCHR, 1, 11, false},   {S_IFCHR, 10, 237, false}, {S_IFCHR, 10, 232, false},
		{S_IFCHR, 10, 235, false}, {S_IFBLK, 7, 0, false},    {S_IFBLK, 1, 3, false},
		{S_IFBLK, 259, 0, false},  {S_IFCHR, 13, 63, false},  {S_IFCHR, 136, 65535, true},
	};
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("x", "/run", "tmpfs", 0, "size=64k") < 0)
		return 98;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int r = open_node(rows[i].kind, rows[i].major, rows[i].minor);
		if ((r == -EPERM) == rows[i].allowed)
			return (int)i + 1;
	}
	return 0;
}

/* With the list in v1, or in v2 where the host has only that. */
static void test_devices_of_the_group(void **)
{
	make_group();
	assert_int_equal(run_inside(try_devices), 0);
}

/* The filter of v2, whatever the host uses. */
static void test_devices_v2(void **)
{
	struct err e = ERR_INIT;
	const struct cgroup_hierarchy *v2 = NULL;
	for (unsigned i = 0; i < host.n; i++)
		if (host.hierarchies[i].v2)
			v2 = &host.hierarchies[i];
	if (!v2)
		return;
	struct cgroup_host only = {.n = 1, .hierarchies = {*v2}};
	assert_int_equal(cgroup_make(&only, id, &e), 0);
	assert_int_equal(cgroup_delegate(&only, id, 965536, &e), 0);
	char path[PATH_MAX];
	(void)snprintf(path, sizeof(path), "%s", in_group(v2, ""));
	if (cgroup_allow_devices(path, true, &e) < 0)
		fail_msg("%s", e.msg);
	struct cgroup_host all = host;
	host = only;
	int status = run_inside(try_devices);
	host = all;
	assert_int_equal(status, 0);
	assert_int_equal(cgroup_allow_devices("/sys/fs/cgroup/ermite-none", true, &e), -ENOENT);
	assert_int_equal(cgroup_allow_devices("/sys/fs/cgroup/ermite-none", false, &e), -ENOENT);
}

static int prepare(void)
{
	struct err e = ERR_INIT;
	if (id_make(id, &e) < 0 || cgroup_host_read(&host, &e) < 0 || !guardian_start(clean)) {
		print_error("%s\n", e.msg);
		return -1;
	}
	return 0;
}

/* The group above all was made by another process that has not come to its cpuset yet. */
static void test_above_is_half_made(void **)
{
	char above[PATH_MAX];
	const struct cgroup_hierarchy *cpuset = with(CGROUP_CPUSET);
	if (cpuset) {
		(void)snprintf(above, sizeof(above), "%s/ermite-runner", cpuset->path);
		assert_true(mkdir(above, 0755) == 0 || errno == EEXIST);
	}
	make_group();
	assert_int_equal(run_inside(do_nothing), 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_host),
		cmocka_unit_test_setup_teardown(test_above_is_half_made, setup, teardown),
		cmocka_unit_test_setup_teardown(test_limits_are_in_force, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_devices, setup, teardown),
		cmocka_unit_test_setup_teardown(test_make_twice, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cpuset, setup, teardown),
		cmocka_unit_test_setup_teardown(test_delegation, setup, teardown),
		cmocka_unit_test_setup_teardown(test_enter_and_remove, setup, teardown),
		cmocka_unit_test_setup_teardown(test_remove_half, setup, teardown),
		cmocka_unit_test_setup_teardown(test_remove_hostile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_usage, setup, teardown),
		cmocka_unit_test_setup_teardown(test_usage_of_nested_limits, setup, teardown),
		cmocka_unit_test_setup_teardown(test_usage_of_nested_memory_limits, setup, teardown),
		cmocka_unit_test_setup_teardown(test_missing_controllers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_disk_rate, setup, teardown),
		cmocka_unit_test_setup_teardown(test_devices_of_the_group, setup, teardown),
		cmocka_unit_test_setup_teardown(test_devices_v2, setup, teardown),
	};
	return prepare() < 0 ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
