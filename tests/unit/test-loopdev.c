/* Needs root. Devices go by themselves with their last user, so nothing is left whatever happens. */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "sys/loopdev.h"

#define SIZE ((off_t)1 << 20)

/* A file without a name, on a file system that loop devices take. */
static int make_file(void)
{
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, SIZE), 0);
	return fd;
}

static struct loop_info64 status_of(int device)
{
	struct loop_info64 info = {0};
	assert_int_equal(ioctl(device, LOOP_GET_STATUS64, &info), 0);
	return info;
}

/* Whether the device at path holds the file now. */
static bool holds(const char *path, int file)
{
	struct loop_info64 info = {0};
	struct stat st;
	scoped_fd int device = open(path, O_RDONLY | O_CLOEXEC);
	assert_int_equal(fstat(file, &st), 0);
	return device >= 0 && ioctl(device, LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == st.st_ino &&
	       info.lo_device == st.st_dev;
}

static void test_attach(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	char path[LOOPDEV_PATH_MAX];
	char text[8] = "";
	int file = make_file();
	int device = -1;
	if (loopdev_attach(file, false, &device, path, &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(fds_open(), before + 2);
	assert_true(fcntl(device, F_GETFD) & FD_CLOEXEC);
	assert_memory_equal(path, "/dev/loop", 9);
	assert_true(holds(path, file));
	struct loop_info64 info = status_of(device);
	assert_int_equal(info.lo_flags & (LO_FLAGS_AUTOCLEAR | LO_FLAGS_READ_ONLY | LO_FLAGS_PARTSCAN),
			 LO_FLAGS_AUTOCLEAR);
	assert_int_equal(info.lo_offset, 0);
	assert_int_equal(pwrite(device, "written", 7, 4096), 7);
	assert_int_equal(fsync(device), 0);
	assert_int_equal(pread(file, text, 7, 4096), 7);
	assert_string_equal(text, "written");
	/* It goes with its last user. */
	(void)close(device);
	assert_false(holds(path, file));
	(void)close(file);
	assert_int_equal(fds_open(), before);
}

static void test_attach_read_only(void **)
{
	struct err e = ERR_INIT;
	char path[LOOPDEV_PATH_MAX];
	scoped_fd int file = make_file();
	scoped_fd int device = -1;
	assert_int_equal(loopdev_attach(file, true, &device, path, &e), 0);
	assert_true(status_of(device).lo_flags & LO_FLAGS_READ_ONLY);
	assert_int_equal(pwrite(device, "x", 1, 0), -1);
	scoped_fd int writable = open(path, O_RDWR | O_CLOEXEC);
	assert_true(writable < 0 || pwrite(writable, "x", 1, 0) < 0);
}

/* All users of a file that is only read get one device; nobody gets one that can be written or is another file's. */
static void test_share(void **)
{
	struct err e = ERR_INIT;
	char first[LOOPDEV_PATH_MAX];
	char second[LOOPDEV_PATH_MAX];
	char third[LOOPDEV_PATH_MAX];
	char writable[LOOPDEV_PATH_MAX];
	scoped_fd int file = make_file();
	scoped_fd int other = make_file();
	int a = -1;
	scoped_fd int b = -1;
	scoped_fd int c = -1;
	scoped_fd int w = -1;
	assert_int_equal(loopdev_attach(file, false, &w, writable, &e), 0);
	assert_int_equal(loopdev_share(file, &a, first, &e), 0);
	assert_string_not_equal(first, writable);
	assert_true(status_of(a).lo_flags & LO_FLAGS_READ_ONLY);
	assert_int_equal(loopdev_share(file, &b, second, &e), 0);
	assert_string_equal(first, second);
	assert_int_equal(loopdev_share(other, &c, third, &e), 0);
	assert_string_not_equal(third, first);
	/* It stays for the second user, and goes with it. */
	(void)close(a);
	assert_true(holds(first, file));
	fd_close(&b);
	assert_false(holds(first, file));
}

static void test_two_attach_at_once(void **)
{
	enum { CHILDREN = 8 };
	pid_t pids[CHILDREN];
	for (int i = 0; i < CHILDREN; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] != 0)
			continue;
		int bad = 0;
		(void)alarm(30);
		for (int n = 0; n < 10; n++) {
			char path[LOOPDEV_PATH_MAX];
			scoped_fd int file = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
			scoped_fd int device = -1;
			bad += ftruncate(file, SIZE) < 0 ||
			       loopdev_attach(file, false, &device, path, NULL) < 0 || !holds(path, file);
		}
		_exit(bad);
	}
	for (int i = 0; i < CHILDREN; i++) {
		int status = -1;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
}

static void test_refusals(void **)
{
	int before = fds_open();
	static const struct {
		const char *path;
		int flags;
	} rows[] = {{"/", O_RDONLY | O_DIRECTORY}, {"/dev/null", O_RDONLY}, {"/dev/zero", O_RDONLY}};
	char path[LOOPDEV_PATH_MAX];
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		int device = -7;
		scoped_fd int fd = open(rows[i].path, rows[i].flags | O_CLOEXEC);
		assert_true(fd >= 0);
		assert_int_equal(loopdev_attach(fd, true, &device, path, &e), -EINVAL);
		assert_string_equal(e.msg, "the image is not a regular file");
		assert_int_equal(loopdev_share(fd, &device, path, &e), -EINVAL);
		assert_int_equal(device, -7);
	}
	struct err e = ERR_INIT;
	int device = -7;
	int ends[2];
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_int_equal(loopdev_attach(ends[0], true, &device, path, &e), -EINVAL);
	(void)close(ends[0]);
	(void)close(ends[1]);
	assert_int_equal(loopdev_attach(-1, true, &device, path, &e), -EBADF);
	assert_int_equal(device, -7);
	assert_int_equal(fds_open(), before);
}

struct search {
	struct stat file;
	struct loopdev found;
	unsigned n;
};

static int search_one(void *data, const struct loopdev *l)
{
	struct search *s = data;
	if (l->file_dev != s->file.st_dev || l->file_ino != s->file.st_ino)
		return 0;
	s->found = *l;
	return (int)++s->n;
}

/* A device is found by its file, and goes only when nobody has it open. */
static void test_each_and_release(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct search s = {0};
	char path[LOOPDEV_PATH_MAX];
	int file = make_file();
	int device = -1;
	assert_int_equal(fstat(file, &s.file), 0);
	assert_int_equal(loopdev_each(search_one, &s), 0);
	assert_int_equal(loopdev_attach(file, false, &device, path, &e), 0);
	assert_int_equal(loopdev_each(search_one, &s), 1);
	assert_string_equal(s.found.path, path);
	assert_int_equal(loopdev_release(&s.found, 20, &e), -EBUSY);
	assert_non_null(strstr(e.msg, path));
	assert_true(holds(path, file));
	/* A device that holds another file by now is as good as released, and left alone. */
	struct loopdev other = s.found;
	other.file_ino++;
	assert_int_equal(loopdev_release(&other, 20, &e), 0);
	assert_true(holds(path, file));
	(void)close(device);
	assert_int_equal(loopdev_release(&s.found, 20, &e), 0);
	assert_int_equal(loopdev_each(search_one, &s), 0);
	/* One that does not go by itself. */
	assert_int_equal(loopdev_attach(file, false, &device, path, &e), 0);
	struct loop_info64 info = status_of(device);
	info.lo_flags &= ~(uint32_t)LO_FLAGS_AUTOCLEAR;
	assert_int_equal(ioctl(device, LOOP_SET_STATUS64, &info), 0);
	(void)close(device);
	assert_true(holds(path, file));
	assert_int_equal(loopdev_each(search_one, &s), 2);
	assert_int_equal(loopdev_release(&s.found, 20, &e), 0);
	assert_false(holds(path, file));
	(void)close(file);
	assert_int_equal(fds_open(), before);
}

int main(void)
{
	if (geteuid() != 0 || access("/dev/loop-control", R_OK | W_OK) < 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attach),   cmocka_unit_test(test_attach_read_only),
		cmocka_unit_test(test_share),    cmocka_unit_test(test_two_attach_at_once),
		cmocka_unit_test(test_refusals), cmocka_unit_test(test_each_and_release),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
