/* Needs root, as a state directory does. Everything lies in a directory of the test's own. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fds.h"
#include "guardian.h"
#include "store.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"

#define MIB ((off_t)1 << 20)

static int store = -1;
static struct sandbox sandbox;
static const char *const names[] = {"scratch", NULL};

static int begin(struct sandbox *s, int store_fd, struct err *e)
{
	*s = (struct sandbox){.spec = &spec, .store_fd = store_fd};
	int r = record_create(store_fd, &spec, names, &s->record, e);
	if (r < 0)
		return r;
	s->id = record_info(s->record)->id;
	s->slot = record_info(s->record)->slot;
	return 0;
}

static int setup(void **)
{
	struct err e = ERR_INIT;
	store = store_open();
	spec.config.job_disk_mib = 1024;
	return begin(&sandbox, store, &e);
}

static int teardown(void **)
{
	struct err e = ERR_INIT;
	int r = record_remove(&sandbox.record, &e);
	fd_close(&store);
	return r;
}

static void make(struct sandbox *s)
{
	struct err e = ERR_INIT;
	if (resource_scratch.make(s, &e) < 0)
		fail_msg("%s", e.msg);
}

static struct stat look_at(int dir, const char *name)
{
	struct stat st = {0};
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		fail_msg("%s: %s", name, strerrordesc_np(errno));
	return st;
}

static void test_make_and_unmake(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	make(&sandbox);
	struct stat st = look_at(record_dir(sandbox.record), "scratch.ext4");
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_size, 1024 * MIB);
	/* Mostly a hole. */
	assert_true(st.st_blocks * 512 < 16 * MIB);
	/* One that is there is never written over. */
	assert_int_equal(resource_scratch.make(&sandbox, &e), -EEXIST);
	int fd = -1;
	assert_int_equal(scratch_open(&sandbox, &fd, &e), 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	struct stat opened;
	assert_int_equal(fstat(fd, &opened), 0);
	assert_int_equal(opened.st_ino, st.st_ino);
	fd_close(&fd);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), 0);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), 0);
	assert_int_equal(scratch_open(&sandbox, &fd, &e), -ENOENT);
	assert_int_equal(fd, -1);
	assert_int_equal(fds_open(), before);
}

/* A file system without a journal and without reserved blocks, nearly as large as the file. */
static void test_content(void **)
{
	struct err e = ERR_INIT;
	char device[LOOPDEV_PATH_MAX];
	struct statvfs fs;
	struct stat st;
	scoped_fd int file = -1;
	scoped_fd int loop = -1;
	make(&sandbox);
	assert_int_equal(scratch_open(&sandbox, &file, &e), 0);
	uint32_t features = 0;
	assert_int_equal(pread(file, &features, sizeof(features), 1024 + 0x5c), sizeof(features));
	assert_int_equal(features & 0x4u, 0);
	assert_int_equal(loopdev_attach(file, false, &loop, device, &e), 0);
	/* The path of the file is none of a sandbox's business, and /sys shows it. */
	char shown[64];
	char text[512];
	(void)snprintf(shown, sizeof(shown), "/sys/block/%s/loop/backing_file", strrchr(device, '/') + 1);
	assert_true(file_read_text(AT_FDCWD, shown, text, sizeof(text), &e) > 0);
	assert_string_equal(text, "/scratch.ext4");
	if (mount_ext4(device, "/mnt", false, &e) < 0)
		fail_msg("%s", e.msg);
	int r = statvfs("/mnt", &fs);
	assert_int_equal(stat("/mnt", &st), 0);
	assert_int_equal(umount("/mnt"), 0);
	assert_int_equal(r, 0);
	assert_true((off_t)(fs.f_blocks * fs.f_frsize) > 980 * MIB);
	/* What the kernel itself holds back; mkfs would give root 5 of 100 blocks. */
	assert_true(fs.f_bfree - fs.f_bavail <= 4096);
	assert_int_equal(st.st_uid, 0);
}

/* Each size is formatted once; copies do not touch each other nor the template. */
static void test_templates(void **)
{
	struct err e = ERR_INIT;
	struct sandbox other;
	char byte = 0;
	make(&sandbox);
	struct stat first = look_at(store, "../templates/scratch-1024.ext4");
	assert_int_equal(begin(&other, store, &e), 0);
	make(&other);
	struct stat second = look_at(store, "../templates/scratch-1024.ext4");
	assert_int_equal(first.st_ino, second.st_ino);
	assert_int_equal(first.st_mtim.tv_nsec, second.st_mtim.tv_nsec);
	scoped_fd int a = -1;
	scoped_fd int b = -1;
	scoped_fd int template = openat(store, "../templates/scratch-1024.ext4", O_RDONLY | O_CLOEXEC);
	assert_int_equal(scratch_open(&sandbox, &a, &e), 0);
	assert_int_equal(scratch_open(&other, &b, &e), 0);
	assert_int_equal(pwrite(a, "A", 1, 500 * MIB), 1);
	assert_int_equal(pread(b, &byte, 1, 500 * MIB), 1);
	assert_int_equal(byte, 0);
	assert_int_equal(pread(template, &byte, 1, 500 * MIB), 1);
	assert_int_equal(byte, 0);
	/* Another size is another template. */
	assert_int_equal(resource_scratch.unmake(&other, &e), 0);
	spec.config.job_disk_mib = 1025;
	make(&other);
	assert_int_equal(look_at(record_dir(other.record), "scratch.ext4").st_size, 1025 * MIB);
	assert_int_equal(look_at(store, "../templates/scratch-1025.ext4").st_size, 1025 * MIB);
	assert_int_equal(record_remove(&other.record, &e), 0);
}

/* A template that a crash left half made is made anew. */
static void test_half_a_template(void **)
{
	struct err e = ERR_INIT;
	spec.config.job_disk_mib = 1026;
	make(&sandbox);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), 0);
	assert_int_equal(unlinkat(store, "../templates/scratch-1026.ext4", 0), 0);
	scoped_fd int half = openat(store, "../templates/scratch-1026.ext4.new",
				    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_int_equal(write(half, "half", 4), 4);
	make(&sandbox);
	assert_int_equal(look_at(record_dir(sandbox.record), "scratch.ext4").st_size, 1026 * MIB);
	assert_int_equal(faccessat(store, "../templates/scratch-1026.ext4.new", F_OK, 0), -1);
}

static int make_one(void)
{
	struct sandbox own;
	int fd = store_open();
	if (fd < 0 || begin(&own, fd, NULL) < 0 || resource_scratch.make(&own, NULL) < 0)
		return 1;
	struct stat st;
	if (fstatat(record_dir(own.record), "scratch.ext4", &st, 0) < 0 || st.st_size != 1027 * MIB)
		return 2;
	return record_remove(&own.record, NULL) < 0 ? 3 : 0;
}

static void test_first_ones_at_once(void **)
{
	enum { CHILDREN = 4 };
	pid_t pids[CHILDREN];
	spec.config.job_disk_mib = 1027;
	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0)
			_exit(make_one());
	}
	for (int i = 0; i < CHILDREN; i++) {
		int status = -1;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
}

/* A state directory on a small file system of this process's own mount namespace. */
static int open_small_store(const char *options)
{
	char path[64];
	struct err e = ERR_INIT;
	int fd = -1;
	(void)snprintf(path, sizeof(path), "%s/small", state_dir);
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(mount("none", path, "tmpfs", 0, options), 0);
	if (record_open_store(path, &fd, &e) < 0)
		fail_msg("%s", e.msg);
	return fd;
}

static void close_small_store(int fd)
{
	char path[64];
	(void)close(fd);
	(void)snprintf(path, sizeof(path), "%s/small", state_dir);
	assert_int_equal(umount2(path, MNT_DETACH), 0);
	assert_int_equal(rmdir(path), 0);
	spec.config.disk_overcommit = 1;
}

/* What is promised beyond the free space is refused with the figures; so is everything when next to nothing is free. */
static void test_room(void **)
{
	struct err e = ERR_INIT;
	struct sandbox s;
	int small = open_small_store("mode=700,size=100m");
	assert_int_equal(begin(&s, small, &e), 0);
	assert_int_equal(resource_scratch.make(&s, &e), -ENOSPC);
	unsigned asked = 0;
	unsigned available = 0;
	unsigned others = 0;
	assert_int_equal(
		sscanf(e.msg,
		       "%u MiB of disk are asked for, but %u MiB are free in the state directory, 64 MiB of "
		       "them must stay free, and %u MiB are promised",
		       &asked, &available, &others),
		3);
	assert_int_equal(asked, 1024);
	assert_true(available > 80 && available <= 100);
	assert_int_equal(others, 0);
	assert_non_null(strstr(e.msg, "ERMITE_RUNNER_DISK_OVERCOMMIT above 1 would do"));
	/* The second one finds what the first was promised. */
	struct sandbox second;
	spec.config.disk_overcommit = 40;
	make(&s);
	assert_int_equal(begin(&second, small, &e), 0);
	assert_int_equal(resource_scratch.make(&second, &e), -ENOSPC);
	assert_int_equal(sscanf(strstr(e.msg, "and "), "and %u MiB are promised", &others), 1);
	assert_true(others > 1000 && others <= 1024);
	assert_int_equal(record_remove(&s.record, &e), 0);
	make(&second);
	assert_int_equal(resource_scratch.unmake(&second, &e), 0);
	scoped_fd int filler = openat(small, "filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(posix_fallocate(filler, 0, 40 * MIB), 0);
	assert_int_equal(resource_scratch.make(&second, &e), -ENOSPC);
	assert_non_null(
		strstr(e.msg, " MiB are free in the state directory, of which 64 MiB must stay free"));
	assert_int_equal(record_remove(&second.record, &e), 0);
	fd_close(&filler);
	close_small_store(small);
}

/* A disk that something still uses stays, and its record with it. */
static void test_disk_in_use(void **)
{
	struct err e = ERR_INIT;
	char device[LOOPDEV_PATH_MAX];
	scoped_fd int file = -1;
	int loop = -1;
	make(&sandbox);
	assert_int_equal(scratch_open(&sandbox, &file, &e), 0);
	assert_int_equal(loopdev_attach(file, false, &loop, device, &e), 0);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), -EBUSY);
	assert_string_equal(e.msg, "something keeps the disk mounted");
	assert_int_equal(look_at(record_dir(sandbox.record), "scratch.ext4").st_size, 1024 * MIB);
	(void)close(loop);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), 0);
}

static unsigned sweep(bool dry_run, struct buf *said)
{
	struct err e = ERR_INIT;
	struct reap r = {.store_fd = store, .dry_run = dry_run, .tell = store_tell, .data = said};
	buf_clear(said);
	if (resource_scratch.sweep(&r, &e) < 0)
		fail_msg("%s", e.msg);
	return r.n_left;
}

/* Half a template is left behind unless somebody is making it. */
static void test_sweep_templates(void **)
{
	scoped_buf struct buf said = BUF_INIT(4096);
	make(&sandbox);
	scoped_fd int half =
		openat(store, "../templates/scratch-7.ext4.new", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(half >= 0);
	scoped_fd int templates = openat(store, "../templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(flock(templates, LOCK_EX), 0);
	assert_int_equal(sweep(false, &said), 0);
	assert_int_equal(said.n, 0);
	assert_int_equal(flock(templates, LOCK_UN), 0);
	assert_int_equal(sweep(true, &said), 1);
	assert_int_equal(faccessat(templates, "scratch-7.ext4.new", F_OK, 0), 0);
	assert_int_equal(sweep(false, &said), 0);
	assert_string_equal(buf_text(&said), "removed template scratch-7.ext4.new\n");
	assert_int_equal(faccessat(templates, "scratch-7.ext4.new", F_OK, 0), -1);
	assert_int_equal(faccessat(templates, "scratch-1024.ext4", F_OK, 0), 0);
}

/* Whoever may write there could put a file system of his own into every sandbox. */
static void test_templates_of_others(void **)
{
	struct err e = ERR_INIT;
	make(&sandbox);
	assert_int_equal(resource_scratch.unmake(&sandbox, &e), 0);
	assert_int_equal(fchmodat(store, "../templates", 0777, 0), 0);
	assert_int_equal(resource_scratch.make(&sandbox, &e), -EPERM);
	assert_string_equal(e.msg, "the directory of templates must not be writable by group or others");
	assert_int_equal(fchmodat(store, "../templates", 0700, 0), 0);
	make(&sandbox);
}

int main(void)
{
	struct err e = ERR_INIT;
	if (geteuid() != 0 || access("/dev/loop-control", R_OK | W_OK) < 0)
		return 77;
	if (store_make() < 0 || !guardian_start(store_clean) || mount_own_namespace(&e) < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_make_and_unmake, setup, teardown),
		cmocka_unit_test_setup_teardown(test_content, setup, teardown),
		cmocka_unit_test_setup_teardown(test_templates, setup, teardown),
		cmocka_unit_test_setup_teardown(test_half_a_template, setup, teardown),
		cmocka_unit_test_setup_teardown(test_first_ones_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(test_room, setup, teardown),
		cmocka_unit_test_setup_teardown(test_disk_in_use, setup, teardown),
		cmocka_unit_test_setup_teardown(test_sweep_templates, setup, teardown),
		cmocka_unit_test_setup_teardown(test_templates_of_others, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
