/* Needs root. The whole test runs in a mount namespace of its own, which is the first thing that it tests: whatever
 * happens, nothing is left. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "io/child.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"
#include "sys/userns.h"

#define FIRST 965536u
#define PLACE "/run/ermite-test"

enum { IMAGE_BYTES = 8 << 20 };

static const char *const places[] = {PLACE,          PLACE "/a",       PLACE "/b",   PLACE "/c",
				     PLACE "/lower", PLACE "/scratch", PLACE "/root"};

/* A tmpfs of our own on /run holds the places, as it does for a sandbox. */
static int setup(void **)
{
	struct err e = ERR_INIT;
	int r = mount_tmpfs("/run", 1024, false, &e);
	for (size_t i = 0; r == 0 && i < sizeof(places) / sizeof(places[0]); i++)
		if (mkdir(places[i], 0755) < 0)
			r = -errno;
	if (r < 0)
		print_error("%s\n", e.msg);
	return r;
}

static int teardown(void **)
{
	return umount2("/run", MNT_DETACH);
}

static int run(const char *path, const char *const *arguments)
{
	struct err e = ERR_INIT;
	int r = child_run(path, arguments, -1, &e);
	if (r != 0)
		print_error("%s: %d %s\n", path, r, e.msg);
	return r;
}

/* A formatted file without a name. */
static int make_image(void)
{
	char path[64];
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, IMAGE_BYTES), 0);
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), fd);
	assert_int_equal(run("/sbin/mkfs.ext4", (const char *const[]){"mkfs.ext4", "-q", "-F", path, NULL}),
			 0);
	return fd;
}

static void mount_image(int image, const char *target, bool read_only)
{
	struct err e = ERR_INIT;
	char device[LOOPDEV_PATH_MAX];
	scoped_fd int loop = -1;
	int r = loopdev_attach(image, read_only, &loop, device, &e);
	if (r == 0)
		r = mount_ext4(device, target, read_only, &e);
	if (r < 0)
		fail_msg("%s", e.msg);
}

/* The options of the top mount at a path, those of the mount and of the file system. */
static const char *options_of(const char *path)
{
	static char found[512];
	scoped_file FILE *f = fopen("/proc/self/mountinfo", "re");
	scoped_free char *line = NULL;
	size_t size = 0;
	found[0] = '\0';
	while (f && getline(&line, &size, f) > 0) {
		char at[256];
		char own[128];
		char super[256];
		if (sscanf(line, "%*d %*d %*s %*s %255s %127s", at, own) != 2 || strcmp(at, path) != 0)
			continue;
		const char *tail = strstr(line, " - ");
		if (tail && sscanf(tail, " - %*s %*s %255s", super) == 1)
			(void)snprintf(found, sizeof(found), ",%s,%s,", own, super);
	}
	return found;
}

static void assert_option(const char *path, const char *option)
{
	char wanted[64];
	(void)snprintf(wanted, sizeof(wanted), ",%s,", option);
	if (!strstr(options_of(path), wanted))
		fail_msg("%s is mounted with %s, not with %s", path, options_of(path), option);
}

static bool is_mounted_for(const char *process, const char *path)
{
	char file[64];
	(void)snprintf(file, sizeof(file), "/proc/%s/mountinfo", process);
	scoped_file FILE *f = fopen(file, "re");
	scoped_free char *line = NULL;
	size_t size = 0;
	bool found = false;
	while (f && getline(&line, &size, f) > 0)
		found = found || strstr(line, path);
	return found;
}

static uid_t owner(const char *path)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		fail_msg("%s: %s", path, strerrordesc_np(errno));
	assert_int_equal(st.st_uid, st.st_gid);
	return st.st_uid;
}

static int try_write(const char *path)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return fd < 0 || write(fd, "x", 1) != 1 || fsync(fd) < 0 ? -errno : 0;
}

/* Nothing goes to the host's namespace, nor comes from there. */
static void test_own_namespace(void **)
{
	scoped_file FILE *f = fopen("/proc/self/mountinfo", "re");
	scoped_free char *line = NULL;
	size_t size = 0;
	assert_non_null(f);
	while (getline(&line, &size, f) > 0)
		if (strstr(line, " shared:") || strstr(line, " master:"))
			fail_msg("%s", line);
	struct err e = ERR_INIT;
	assert_int_equal(mount_tmpfs(PLACE "/a", 64, false, &e), 0);
	assert_true(is_mounted_for("self", " " PLACE "/a "));
	assert_false(is_mounted_for("1", PLACE));
}

static void test_tmpfs(void **)
{
	struct err e = ERR_INIT;
	struct statvfs fs;
	struct stat st;
	assert_int_equal(mount_tmpfs(PLACE "/a", 64, false, &e), 0);
	assert_option(PLACE "/a", "nosuid");
	assert_option(PLACE "/a", "nodev");
	assert_option(PLACE "/a", "noexec");
	assert_int_equal(statvfs(PLACE "/a", &fs), 0);
	assert_int_equal(fs.f_blocks * fs.f_frsize, 65536);
	assert_int_equal(stat(PLACE "/a", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(mknod(PLACE "/a/null", S_IFCHR | 0666, makedev(1, 3)), 0);
	assert_int_equal(open(PLACE "/a/null", O_RDONLY | O_CLOEXEC), -1);
	assert_int_equal(errno, EACCES);
	/* Devices, where they are asked for. */
	assert_int_equal(mount_tmpfs(PLACE "/b", 64, true, &e), 0);
	assert_int_equal(mknod(PLACE "/b/null", S_IFCHR | 0666, makedev(1, 3)), 0);
	scoped_fd int null = open(PLACE "/b/null", O_RDONLY | O_CLOEXEC);
	assert_true(null >= 0);
	assert_int_equal(mount_tmpfs(PLACE "/none", 64, false, &e), -ENOENT);
	assert_string_equal(e.msg, "mount a tmpfs on " PLACE "/none: No such file or directory");
}

static void test_ext4(void **)
{
	int before = fds_open();
	int image = make_image();
	char path[64];
	/* What the superblock asks for must not happen. */
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), image);
	assert_int_equal(run("/sbin/tune2fs", (const char *const[]){"tune2fs", "-e", "panic", path, NULL}),
			 0);
	mount_image(image, PLACE "/a", false);
	assert_option(PLACE "/a", "nodev");
	assert_option(PLACE "/a", "noatime");
	assert_option(PLACE "/a", "errors=remount-ro");
	assert_option(PLACE "/a", "nobarrier");
	assert_int_equal(try_write(PLACE "/a/file"), 0);
	assert_int_equal(umount(PLACE "/a"), 0);
	/* Reading changes not a byte. */
	static char first[IMAGE_BYTES];
	static char second[IMAGE_BYTES];
	assert_int_equal(pread(image, first, IMAGE_BYTES, 0), IMAGE_BYTES);
	mount_image(image, PLACE "/a", true);
	assert_option(PLACE "/a", "ro");
	assert_option(PLACE "/a", "errors=remount-ro");
	assert_int_equal(access(PLACE "/a/file", F_OK), 0);
	assert_int_equal(try_write(PLACE "/a/file"), -EROFS);
	assert_int_equal(mount(NULL, PLACE "/a", NULL, MS_REMOUNT, NULL), -1);
	assert_int_equal(umount(PLACE "/a"), 0);
	assert_int_equal(pread(image, second, IMAGE_BYTES, 0), IMAGE_BYTES);
	assert_memory_equal(first, second, IMAGE_BYTES);
	(void)close(image);
	assert_int_equal(fds_open(), before);
}

/* The type is never guessed. */
static void test_ext4_of_something_else(void **)
{
	struct err e = ERR_INIT;
	char device[LOOPDEV_PATH_MAX];
	scoped_fd int image = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	scoped_fd int loop = -1;
	assert_int_equal(ftruncate(image, IMAGE_BYTES), 0);
	assert_int_equal(loopdev_attach(image, false, &loop, device, &e), 0);
	assert_true(mount_ext4(device, PLACE "/a", false, &e) < 0);
	assert_non_null(strstr(e.msg, "mount /dev/loop"));
	assert_false(is_mounted_for("self", " " PLACE "/a "));
}

static int make_ids(void)
{
	struct err e = ERR_INIT;
	int ids = -1;
	if (userns_make(FIRST, 65536, &ids, &e) < 0)
		fail_msg("%s", e.msg);
	return ids;
}

static void make_owned(const char *path, uid_t uid)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fchown(fd, uid, uid), 0);
}

static void test_idmap(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int image = make_image();
	scoped_fd int ids = make_ids();
	mount_image(image, PLACE "/a", false);
	assert_int_equal(mount_bind(PLACE "/a", PLACE "/b", false, &e), 0);
	make_owned(PLACE "/a/root", 0);
	make_owned(PLACE "/a/runner", 1000);
	make_owned(PLACE "/a/beyond", 70000);
	if (mount_idmap(PLACE "/a", ids, &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(owner(PLACE "/a/root"), FIRST);
	assert_int_equal(owner(PLACE "/a/runner"), FIRST + 1000);
	/* Who is not in the map is nobody; the plain mount is as it was. */
	assert_int_equal(owner(PLACE "/a/beyond"), 65534);
	assert_int_equal(owner(PLACE "/b/root"), 0);
	assert_int_equal(owner(PLACE "/b/beyond"), 70000);
	/* An owner that is set there is set on disk as the one that it is inside. */
	assert_int_equal(chown(PLACE "/a/root", FIRST + 7, FIRST + 7), 0);
	assert_int_equal(owner(PLACE "/b/root"), 7);
	/* Host root is nobody there and makes nothing. */
	assert_int_equal(open(PLACE "/a/new", O_WRONLY | O_CREAT | O_CLOEXEC, 0644), -1);
	assert_int_equal(errno, EOVERFLOW);
	assert_int_equal(mount_idmap(PLACE "/c", -1, &e), -EINVAL);
}

static uint64_t effective_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	assert_int_equal(syscall(SYS_capget, &header, data), 0);
	return (uint64_t)data[1].effective << 32 | data[0].effective;
}

/* The root of a sandbox: a base that is only read, a scratch above it, both with mapped ids. */
static void test_overlay(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int base = make_image();
	scoped_fd int scratch = make_image();
	scoped_fd int ids = make_ids();
	mount_image(base, PLACE "/lower", false);
	make_owned(PLACE "/lower/of-root", 0);
	make_owned(PLACE "/lower/of-runner", 1000);
	assert_int_equal(mkdir(PLACE "/lower/dir", 0755), 0);
	assert_int_equal(umount(PLACE "/lower"), 0);
	mount_image(base, PLACE "/lower", true);
	mount_image(scratch, PLACE "/scratch", false);
	assert_int_equal(mkdir(PLACE "/scratch/upper", 0755), 0);
	assert_int_equal(mkdir(PLACE "/scratch/work", 0755), 0);
	assert_int_equal(mount_bind(PLACE "/scratch", PLACE "/c", false, &e), 0);
	assert_int_equal(mount_idmap(PLACE "/lower", ids, &e), 0);
	assert_int_equal(mount_idmap(PLACE "/scratch", ids, &e), 0);
	uint64_t capabilities = effective_capabilities();
	if (mount_overlay(PLACE "/lower", PLACE "/scratch/upper", PLACE "/scratch/work", PLACE "/root", FIRST,
			  &e) < 0)
		fail_msg("%s", e.msg);
	/* The caller is who it was. */
	assert_int_equal(setfsuid((uid_t)-1), 0);
	assert_int_equal(setfsgid((gid_t)-1), 0);
	assert_int_equal(effective_capabilities(), capabilities);

	assert_option(PLACE "/root", "nodev");
	assert_int_equal(owner(PLACE "/root/of-root"), FIRST);
	assert_int_equal(owner(PLACE "/root/of-runner"), FIRST + 1000);
	/* Root inside writes: a new file, one that is copied up, and a removed one. */
	setfsgid(FIRST);
	setfsuid(FIRST);
	int new_file = try_write(PLACE "/root/dir/new");
	int copied = try_write(PLACE "/root/of-root");
	int removed = unlink(PLACE "/root/of-runner");
	setfsuid(0);
	setfsgid(0);
	assert_int_equal(new_file, 0);
	assert_int_equal(copied, 0);
	assert_int_equal(removed, 0);
	assert_int_equal(owner(PLACE "/root/dir/new"), FIRST);
	assert_int_equal(owner(PLACE "/c/upper/dir/new"), 0);
	assert_int_equal(owner(PLACE "/c/upper/of-root"), 0);
	assert_int_equal(access(PLACE "/lower/of-runner", F_OK), 0);
	assert_int_equal(access(PLACE "/root/of-runner", F_OK), -1);
}

static void test_overlay_refused(void **)
{
	struct err e = ERR_INIT;
	uint64_t capabilities = effective_capabilities();
	assert_true(mount_overlay(PLACE "/none", PLACE "/a", PLACE "/b", PLACE "/root", FIRST, &e) < 0);
	assert_non_null(strstr(e.msg, "mount an overlay on " PLACE "/root: "));
	assert_int_equal(setfsuid((uid_t)-1), 0);
	assert_int_equal(setfsgid((gid_t)-1), 0);
	assert_int_equal(effective_capabilities(), capabilities);
}

static void test_bind(void **)
{
	struct err e = ERR_INIT;
	assert_int_equal(mount_bind(PLACE "/a", PLACE "/b", true, &e), 0);
	assert_int_equal(try_write(PLACE "/b/file"), -EROFS);
	assert_option(PLACE "/b", "nosuid");
	assert_option(PLACE "/b", "nodev");
	/* Only the bind is read-only. */
	assert_int_equal(try_write(PLACE "/a/file"), 0);
	assert_int_equal(access(PLACE "/b/file", F_OK), 0);
	assert_int_equal(mount_bind(PLACE "/a", PLACE "/c", false, &e), 0);
	assert_int_equal(try_write(PLACE "/c/other"), 0);
	assert_int_equal(mount_bind(PLACE "/none", PLACE "/c", false, &e), -ENOENT);
}

/* One place where programs run, on a file system where none do. */
static void test_program(void **)
{
	struct err e = ERR_INIT;
	static const char *const copy[] = {"cp", "/bin/true", PLACE "/a/true", NULL};
	static const char *const arguments[] = {"true", NULL};
	assert_int_equal(run("/bin/cp", copy), 0);
	assert_int_equal(child_run(PLACE "/a/true", arguments, -1, &e), -EACCES);
	assert_int_equal(mount_program(PLACE "/a/true", &e), 0);
	assert_int_equal(child_run(PLACE "/a/true", arguments, -1, &e), 0);
	assert_int_equal(try_write(PLACE "/a/true"), -EROFS);
	assert_option(PLACE "/a/true", "nosuid");
	assert_option(PLACE "/a/true", "nodev");
	assert_int_equal(mount_program(PLACE "/none", &e), -ENOENT);
}

/* A copy that is mounted nowhere, with what is mounted below, can be put anywhere. */
static void test_detached(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	int fd = -1;
	assert_int_equal(mkdir(PLACE "/a/below", 0755), 0);
	assert_int_equal(mount_tmpfs(PLACE "/a/below", 64, false, &e), 0);
	assert_int_equal(try_write(PLACE "/a/below/file"), 0);
	assert_int_equal(mount_detached(PLACE "/a", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, &fd, &e), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(try_write(PLACE "/a/still"), 0);
	assert_int_equal(move_mount(fd, "", AT_FDCWD, PLACE "/b", MOVE_MOUNT_F_EMPTY_PATH), 0);
	assert_int_equal(access(PLACE "/b/still", F_OK), 0);
	assert_int_equal(access(PLACE "/b/below/file", F_OK), 0);
	assert_int_equal(try_write(PLACE "/b/file"), -EROFS);
	assert_int_equal(try_write(PLACE "/b/below/other"), -EROFS);
	assert_option(PLACE "/b", "nosuid");
	fd_close(&fd);
	assert_int_equal(mount_detached(PLACE "/none", 0, &fd, &e), -ENOENT);
	assert_int_equal(fd, -1);
	assert_int_equal(mount_detached(PLACE "/a/below", 0, &fd, &e), 0);
	assert_int_equal(move_mount(fd, "", AT_FDCWD, PLACE "/c", MOVE_MOUNT_F_EMPTY_PATH), 0);
	assert_int_equal(try_write(PLACE "/c/other"), 0);
	fd_close(&fd);
	assert_int_equal(fds_open(), before);
}

/* What is opened so has no path that tells where it lies. */
static void test_open_unnamed(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	char link[64];
	char path[256] = "";
	int fd = -1;
	assert_int_equal(try_write(PLACE "/a/file"), 0);
	assert_int_equal(mount_open_unnamed(PLACE "/a", "file", O_RDWR, &fd, &e), 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	assert_true(readlink(link, path, sizeof(path) - 1) > 0);
	assert_null(strstr(path, PLACE));
	assert_int_equal(pwrite(fd, "yes", 3, 0), 3);
	fd_close(&fd);
	scoped_fd int again = open(PLACE "/a/file", O_RDONLY | O_CLOEXEC);
	assert_int_equal(pread(again, path, 3, 0), 3);
	assert_memory_equal(path, "yes", 3);
	fd_close(&again);
	/* Never through a link, nor out of the directory. */
	assert_int_equal(symlink("file", PLACE "/a/link"), 0);
	assert_int_equal(mount_open_unnamed(PLACE "/a", "link", O_RDONLY, &fd, &e), -ELOOP);
	assert_int_equal(mount_open_unnamed(PLACE "/a", "../b", O_RDONLY, &fd, &e), -EXDEV);
	assert_int_equal(mount_open_unnamed(PLACE "/none", "file", O_RDONLY, &fd, &e), -ENOENT);
	/* The kernel reads no disk that anybody else could write. */
	assert_int_equal(chown(PLACE "/a/file", 1000, 0), 0);
	assert_int_equal(mount_open_unnamed(PLACE "/a", "file", O_RDONLY, &fd, &e), -EPERM);
	assert_string_equal(e.msg, PLACE "/a: file must belong to root, not to user 1000");
	assert_int_equal(chown(PLACE "/a/file", 0, 0), 0);
	assert_int_equal(chmod(PLACE "/a/file", 0620), 0);
	assert_int_equal(mount_open_unnamed(PLACE "/a", "file", O_RDONLY, &fd, &e), -EPERM);
	assert_int_equal(fd, -1);
	assert_int_equal(fds_open(), before);
}

/* Whether the file holds these bytes anywhere. */
static bool image_holds(int image, const char *text)
{
	static char bytes[IMAGE_BYTES];
	assert_int_equal(pread(image, bytes, IMAGE_BYTES, 0), IMAGE_BYTES);
	return memmem(bytes, IMAGE_BYTES, text, strlen(text)) != NULL;
}

static void test_ext4_stop(void **)
{
	scoped_fd int image = make_image();
	mount_image(image, PLACE "/a", false);
	scoped_fd int fd = open(PLACE "/a/file", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_int_equal(write(fd, "kept-for-good", 13), 13);
	assert_int_equal(fsync(fd), 0);
	assert_true(image_holds(image, "kept-for-good"));
	assert_int_equal(pwrite(fd, "never-written", 13, 65536), 13);
	mount_ext4_stop(PLACE "/a");
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EIO);
	fd_close(&fd);
	assert_int_equal(umount(PLACE "/a"), 0);
	assert_false(image_holds(image, "never-written"));
	/* Nothing, and another file system, are fine. */
	mount_ext4_stop(PLACE "/none");
	mount_ext4_stop(PLACE "/a");
	assert_int_equal(try_write(PLACE "/a/file"), 0);
}

int main(void)
{
	struct err e = ERR_INIT;
	if (geteuid() != 0 || access("/dev/loop-control", R_OK | W_OK) < 0)
		return 77;
	if (mount_own_namespace(&e) < 0) {
		print_error("%s\n", e.msg);
		return 1;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_own_namespace, setup, teardown),
		cmocka_unit_test_setup_teardown(test_tmpfs, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ext4, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ext4_of_something_else, setup, teardown),
		cmocka_unit_test_setup_teardown(test_idmap, setup, teardown),
		cmocka_unit_test_setup_teardown(test_overlay, setup, teardown),
		cmocka_unit_test_setup_teardown(test_overlay_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bind, setup, teardown),
		cmocka_unit_test_setup_teardown(test_program, setup, teardown),
		cmocka_unit_test_setup_teardown(test_detached, setup, teardown),
		cmocka_unit_test_setup_teardown(test_open_unnamed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ext4_stop, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
