#include "guest-first.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "base/scope.h"
#include "guest/cgroups.h"
#include "guest/door.h"
#include "guest/lines.h"
#include "guest/root.h"

static void reads_the_list_of_hierarchies(void **)
{
	static const struct {
		const char *line, *name, *options;
		bool refused;
	} rows[] = {
		{"4:memory:/a/b", "memory", "memory", false},
		{"4:cpu,cpuacct:/", "cpu,cpuacct", "cpu,cpuacct", false},
		{"9:name=systemd:/", "systemd", "none,name=systemd", false},
		{"0::/", "", "", false},
		{"0::/a:b", "", "", false},
		{"1:memory:/a:b", "memory", "memory", false},
		{"", NULL, NULL, true},
		{"4", NULL, NULL, true},
		{"4:memory", NULL, NULL, true},
		{"4::/", NULL, NULL, true},
		{"0:memory:/", NULL, NULL, true},
		{"4:name=:/", NULL, NULL, true},
		{"4:name=..:/", NULL, NULL, true},
		{"4:name=a/b:/", NULL, NULL, true},
		{"4:../memory:/", NULL, NULL, true},
		/* 63 bytes, and one more. */
		{"4:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde:/",
		 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde",
		 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde", false},
		{"4:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef:/", NULL, NULL, true},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char line[128];
		struct cgroups_hierarchy h;
		(void)snprintf(line, sizeof(line), "%s", rows[i].line);
		print_message("%s\n", rows[i].line);
		int r = cgroups_parse(line, &h, NULL);
		assert_int_equal(r, rows[i].refused ? -EINVAL : 0);
		if (r < 0)
			continue;
		assert_string_equal(h.name, rows[i].name);
		assert_string_equal(h.options, rows[i].options);
	}
}

/* --- the door ------------------------------------------------------------------------------------------------- */

enum { SENT_MAX = DOOR_MOUNTS_MAX + 1 };

/* The host: answers one knock with a byte and n descriptors. */
static void answer(int door, size_t n)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(SENT_MAX * sizeof(int))];
	} control = {0};
	char byte = 'g';
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	scoped_fd int guest = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	CHECK(guest >= 0);
	if (n > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)),
						.cmsg_level = SOL_SOCKET,
						.cmsg_type = SCM_RIGHTS};
		int *fds = (int *)(void *)CMSG_DATA(&control.head);
		for (size_t i = 0; i < n; i++)
			fds[i] = memfd_create("mount", MFD_CLOEXEC);
	}
	CHECK(sendmsg(guest, &message, 0) == 1);
}

static unsigned open_descriptors(void)
{
	unsigned n = 0;
	for (int fd = 0; fd < 64; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void knock_for(size_t n, int want)
{
	struct door_mounts mounts = DOOR_MOUNTS_INIT;
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/ermite/init.sock"};
	scoped_fd int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(door, (const struct sockaddr *)&address, sizeof(address)) == 0 && listen(door, 1) == 0);
	unsigned before = open_descriptors();
	pid_t host = fork();
	if (host == 0) {
		answer(door, n);
		_exit(0);
	}
	int connection = -1;
	CHECK(door_knock(&mounts, &connection, NULL) == want && (connection >= 0) == (want == 1));
	fd_close(&connection);
	CHECK(waitpid(host, NULL, 0) == host);
	CHECK(unlink(address.sun_path) == 0);
	size_t got = want == 1 ? n : 0;
	CHECK(mounts.n == got && open_descriptors() == before + got);
	for (size_t i = 0; i < DOOR_MOUNTS_MAX; i++)
		CHECK(i < got ? fcntl(mounts.fds[i], F_GETFD) == FD_CLOEXEC : mounts.fds[i] == -1);
	door_mounts_done(&mounts);
	door_mounts_done(&mounts);
	CHECK(mounts.n == 0 && open_descriptors() == before);
}

static void knock(void)
{
	struct door_mounts mounts = DOOR_MOUNTS_INIT;
	int connection = -1;
	CHECK(door_knock(&mounts, &connection, NULL) == 0 && mounts.n == 0 && connection == -1);
	knock_for(0, 1);
	knock_for(1, -EPROTO);
	knock_for(DOOR_LXCFS, -EPROTO);
	knock_for(DOOR_EXTERNALS, 1);
	knock_for(DOOR_MOUNTS_MAX, 1);
	knock_for(DOOR_MOUNTS_MAX + 1, -EPROTO);
}

static void takes_mounts_at_the_door(void **)
{
	as_first_process(knock);
}

/* --- the root ------------------------------------------------------------------------------------------------- */

/* A tmpfs as the host sends it: with these directories, and "file" in the last one. */
static int make_mount(const char *const *directories, const char *file)
{
	char path[128];
	CHECK(mkdir("/run/make", 0755) == 0);
	CHECK(mount("made", "/run/make", "tmpfs", 0, NULL) == 0);
	for (; *directories; directories++) {
		(void)snprintf(path, sizeof(path), "/run/make/%s", *directories);
		CHECK(mkdir(path, 0755) == 0);
	}
	(void)snprintf(path, sizeof(path), "/run/make/%s", file);
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	CHECK(fd >= 0 && write(fd, "sent\n", 5) == 5);
	int tree = open_tree(AT_FDCWD, "/run/make", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	CHECK(tree >= 0 && umount2("/run/make", MNT_DETACH) == 0 && rmdir("/run/make") == 0);
	return tree;
}

/* As Docker leaves it: views of the kernel of this sandbox's own, and nothing of the host's devices. */
static void play_docker(void)
{
	CHECK(mount("sys", "/sys", "sysfs", MS_RDONLY, NULL) == 0);
	CHECK(mount("dev", "/dev", "tmpfs", 0, "mode=755") == 0);
	CHECK(mknod("/dev/null", S_IFCHR | 0666, makedev(1, 3)) == 0);
}

static struct door_mounts make_mounts(bool externals)
{
	static const char *const scratch[] = {"upper",      "work", "docker",    "containerd",
					      "containers", "data", "upper/etc", NULL};
	static const char *const none[] = {NULL};
	static const char *const proc[] = {"proc", NULL};
	struct door_mounts m = {
		.fds = {make_mount(scratch, "upper/etc/hostname"), make_mount(none, "ermite-runner"),
			make_mount(none, "exec.sock"), make_mount(proc, "proc/uptime"),
			externals ? make_mount(none, "node") : -1},
		.n = externals ? DOOR_MOUNTS_MAX : DOOR_EXTERNALS,
	};
	return m;
}

static void expect_text(const char *path, const char *expected)
{
	char text[64];
	CHECK(file_read_text(AT_FDCWD, path, text, sizeof(text), NULL) >= 0);
	if (strcmp(text, expected) != 0)
		(void)dprintf(2, "%s: %s\n", path, text);
	CHECK(strcmp(text, expected) == 0);
}

/* Every mount is one of ours by its kind: a bind of the host's file systems is none. */
static void expect_only_ours(void)
{
	static const char *const kinds[] = {"tmpfs", "proc", "sysfs", "overlay"};
	scoped_fd int fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	struct lines lines;
	char *line;
	unsigned n = 0;
	lines_init(&lines, fd);
	for (; lines_next(&lines, &line, NULL) > 0; n++) {
		const char *kind = strstr(line, " - ");
		bool ours = false;
		for (size_t i = 0; kind && i < sizeof(kinds) / sizeof(kinds[0]); i++)
			ours |= strncmp(kind + 3, kinds[i], strlen(kinds[i])) == 0;
		if (!ours)
			(void)dprintf(2, "%s\n", line);
		CHECK(ours);
	}
	CHECK(n > 15);
}

static void expect_refused(const char *path)
{
	bool refused = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) < 0 && errno == EROFS;
	if (!refused)
		(void)dprintf(2, "%s: %s\n", path, err_text(errno));
	CHECK(refused);
}

static void build_root(bool externals)
{
	struct err e = ERR_INIT;
	struct stat st;
	char cwd[8];
	struct door_mounts mounts = make_mounts(externals);
	play_docker();
	unsigned before = open_descriptors();
	int r = root_build(&mounts, &e);
	if (r < 0)
		(void)dprintf(2, "%s\n", e.msg);
	CHECK(r == 0);
	CHECK(open_descriptors() == before - (externals ? 5 : 4));
	CHECK(getcwd(cwd, sizeof(cwd)) && strcmp(cwd, "/") == 0);
	expect_only_ours();
	/* The upper layer covers the image, what the host sent is there and read-only, what it did not is not. */
	expect_text("/etc/hostname", "sent");
	expect_text("/opt/ermite/ermite-runner", "sent");
	expect_text("/run/ermite/exec.sock", "sent");
	expect_text("/proc/uptime", "sent");
	expect_refused("/opt/ermite/x");
	expect_refused("/run/ermite/x");
	if (externals) {
		expect_text("/opt/externals/node", "sent");
		expect_refused("/opt/externals/x");
	} else {
		CHECK(access("/opt/externals/node", F_OK) < 0);
	}
	CHECK(access("/run/scratch", F_OK) < 0 && access("/run/root", F_OK) < 0);
	/* Writable, and on the scratch file system. */
	CHECK(mkdir("/new", 0755) == 0 && mkdir("/scratch/new", 0755) == 0);
	CHECK(mkdir("/var/lib/docker/new", 0755) == 0 && mkdir("/run/lock/new", 0755) == 0);
	CHECK(stat("/dev/fuse", &st) == 0 && st.st_rdev == makedev(10, 229) && (st.st_mode & 0777) == 0666);
	CHECK(stat("/dev/net/tun", &st) == 0 && st.st_rdev == makedev(10, 200) &&
	      (st.st_mode & 0777) == 0666);
	expect_text("/proc/keys", "");
	expect_refused("/proc/sys/kernel/hostname");
	CHECK(file_put(AT_FDCWD, "/proc/sys/net/ipv4/ip_forward", "0", NULL) == 0);
	expect_refused("/sys/kernel/uevent_helper");
	scoped_fd int flags = open("/sys/devices/virtual/net/lo/ifalias", O_WRONLY | O_CLOEXEC);
	CHECK(flags >= 0);
}

static void build_without_externals(void)
{
	build_root(false);
}

static void build_with_externals(void)
{
	build_root(true);
}

static void builds_the_root(void **)
{
	as_first_process(build_without_externals);
	as_first_process(build_with_externals);
	assert_int_equal(access("/new", F_OK), -1);
}

static void build_from_nothing(void)
{
	struct err e = ERR_INIT;
	static const char *const none[] = {NULL};
	struct door_mounts mounts = {.fds = {make_mount(none, "a"), make_mount(none, "b"),
					     make_mount(none, "c"), make_mount(none, "d"), -1},
				     .n = DOOR_EXTERNALS};
	unsigned before = open_descriptors();
	CHECK(root_build(&mounts, &e) == -ENOENT);
	CHECK(strcmp(e.msg, "mount the overlay: No such file or directory") == 0);
	CHECK(open_descriptors() == before - 4);
}

static void names_what_is_missing(void **)
{
	as_first_process(build_from_nothing);
}

static void in_another_user_namespace(void)
{
	CHECK(root_is_hosts());
	CHECK(unshare(CLONE_NEWUSER) == 0);
	CHECK(!root_is_hosts());
	CHECK(file_put(AT_FDCWD, "/proc/self/uid_map", "0 0 1\n", NULL) == 0);
	CHECK(!root_is_hosts());
}

static void knows_the_first_user_namespace(void **)
{
	as_first_process(in_another_user_namespace);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	(void)signal(SIGPIPE, SIG_IGN);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reads_the_list_of_hierarchies),
		cmocka_unit_test(takes_mounts_at_the_door),
		cmocka_unit_test(builds_the_root),
		cmocka_unit_test(names_what_is_missing),
		cmocka_unit_test(knows_the_first_user_namespace),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
