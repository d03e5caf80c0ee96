#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "fds.h"

/* Each test works in a directory of its own, the current one. */
static int set_up(void **state)
{
	char *path = strdup("/tmp/test-file-XXXXXX");
	if (!path || !mkdtemp(path) || chdir(path) < 0)
		return -1;
	*state = path;
	return 0;
}

static int tear_down(void **state)
{
	struct err e = ERR_INIT;
	char *path = *state;
	scoped_fd int tmp = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = file_remove_tree(tmp, path + strlen("/tmp/"), &e);
	if (r < 0)
		print_error("%s\n", e.msg);
	free(path);
	return chdir("/") < 0 || r < 0 ? -1 : 0;
}

static int here(void)
{
	int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

static void make_file(const char *path, const char *text)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static bool exists(const char *path)
{
	return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* False on an old kernel, and under valgrind 3.19. */
static bool has_openat2(void)
{
	return syscall(SYS_openat2, -1, "", NULL, 0) == 0 || errno != ENOSYS;
}

/* Runs a check in a child for which the kernel has no openat2(), or in one with a mount namespace of its own. Returns
 * the child's exit status: what the check returned, or 77 when this cannot be done here. */
static int in_child(bool without_openat2, bool with_mounts, int (*check)(void))
{
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		if (with_mounts &&
		    (unshare(CLONE_NEWNS) < 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) < 0))
			_exit(77);
		scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
		if (without_openat2 &&
		    (seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(openat2), 0) < 0 ||
		     seccomp_load(filter) < 0))
			_exit(77);
		seccomp_release(filter);
		if (without_openat2 && has_openat2())
			_exit(77);
		_exit(check());
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

struct open_row {
	const char *path;
	int flags;
	int result;   /* 0 or what openat2() gives */
	int fallback; /* what the walk gives, 0 for the same */
};

static const struct open_row open_rows[] = {
	{"plain", O_RDONLY, 0, 0},
	{"./plain", O_RDONLY, 0, 0},
	{"dir/inner", O_RDONLY, 0, 0},
	{"dir//./inner", O_RDONLY, 0, 0},
	{"dir/sub/deep", O_RDONLY, 0, 0},
	{"dir", O_RDONLY | O_DIRECTORY, 0, 0},
	{"dir/", O_RDONLY, 0, 0},
	{".", O_RDONLY | O_DIRECTORY, 0, 0},
	{"dir/sub", O_PATH, 0, 0},
	{"dir/made", O_WRONLY | O_CREAT | O_EXCL, 0, 0},
	{"", O_RDONLY, -ENOENT, 0},
	{"nothing", O_RDONLY, -ENOENT, 0},
	{"nothing/inner", O_RDONLY, -ENOENT, 0},
	{"plain/inner", O_RDONLY, -ENOTDIR, 0},
	{"plain/", O_RDONLY, -ENOTDIR, 0},
	{"plain", O_RDONLY | O_DIRECTORY, -ENOTDIR, 0},
	{"/etc/passwd", O_RDONLY, -EXDEV, 0},
	{"..", O_RDONLY, -EXDEV, 0},
	{"../etc", O_RDONLY, -EXDEV, 0},
	{"dir/..", O_RDONLY, -EXDEV, 0},
	{"dir/../plain", O_RDONLY, -EXDEV, 0},
	{"dir/../../x", O_RDONLY, -EXDEV, 0},
	{"link-plain", O_RDONLY, -ELOOP, 0},
	{"link-plain", O_PATH, -ELOOP, 0},
	{"link-plain", O_WRONLY | O_TRUNC, -ELOOP, 0},
	{"link-dangling", O_WRONLY | O_CREAT, -ELOOP, 0},
	{"link-absolute", O_RDONLY, -ELOOP, 0},
	{"link-dir", O_RDONLY | O_DIRECTORY, -ELOOP, -ENOTDIR},
	{"link-dir/inner", O_RDONLY, -ELOOP, -ENOTDIR},
	{"dir/link-up/plain", O_RDONLY, -ELOOP, -ENOTDIR},
	{"dir/made-2/", O_WRONLY | O_CREAT, -EISDIR, -EINVAL},
	{"dir/made-3", O_WRONLY, -ENOENT, 0},
};

/* Makes the files that the rows are about in the current directory. */
static void make_open_tree(void)
{
	assert_int_equal(mkdir("dir", 0755), 0);
	assert_int_equal(mkdir("dir/sub", 0755), 0);
	make_file("plain", "plain");
	make_file("dir/inner", "inner");
	make_file("dir/sub/deep", "deep");
	assert_int_equal(symlink("plain", "link-plain"), 0);
	assert_int_equal(symlink("made-through-link", "link-dangling"), 0);
	assert_int_equal(symlink("/etc/passwd", "link-absolute"), 0);
	assert_int_equal(symlink("dir", "link-dir"), 0);
	assert_int_equal(symlink("..", "dir/link-up"), 0);
}

static int count_wrong_rows(bool fallback)
{
	int wrong = 0;
	scoped_fd int dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < sizeof(open_rows) / sizeof(open_rows[0]); i++) {
		const struct open_row *row = &open_rows[i];
		struct err e = ERR_INIT;
		scoped_fd int fd = -1;
		int r = file_open_beneath(dir, row->path, row->flags, 0600, &fd, &e);
		int expected = fallback && row->fallback ? row->fallback : row->result;
		bool good = r == expected && (r == 0) == (fd >= 0) && (r == 0) == (e.msg[0] == '\0');
		if (good && fd >= 0)
			good = fcntl(fd, F_GETFD) & FD_CLOEXEC;
		if (!good) {
			print_error("\"%s\" with flags %x: %d, expected %d (%s)\n", row->path,
				    (unsigned)row->flags, r, expected, e.msg);
			wrong++;
		}
	}
	return wrong;
}

static int check_rows_by_walk(void)
{
	return count_wrong_rows(true);
}

static void test_open_beneath(void **)
{
	int before = fds_open();
	make_open_tree();
	assert_int_equal(count_wrong_rows(!has_openat2()), 0);
	assert_false(exists("made-through-link"));
	assert_int_equal(fds_open(), before);
}

static void test_open_beneath_without_openat2(void **)
{
	make_open_tree();
	assert_int_equal(in_child(true, false, check_rows_by_walk), 0);
	assert_false(exists("made-through-link"));
	assert_true(exists("dir/made"));
}

/* As for a process whose root this directory is: links are followed, and lead nowhere else. */
static void test_open_in_root(void **)
{
	static const struct {
		const char *path;
		const char *content; /* NULL: not there */
	} rows[] = {
		{"plain", "plain"},          {"/plain", "plain"},
		{"dir/inner", "inner"},      {"link-plain", "plain"},
		{"link-dir/inner", "inner"}, {"dir/link-up/plain", "plain"},
		{"../plain", "plain"},       {"dir/../../plain", "plain"},
		{"link-absolute", NULL},     {"/etc/passwd", NULL},
		{"nothing", NULL},
	};
	make_open_tree();
	int before = fds_open();
	scoped_fd int dir = here();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		scoped_fd int fd = -1;
		char text[16] = "";
		int r = file_open_in_root(dir, rows[i].path, O_RDONLY, &fd, &e);
		assert_int_equal(r, !has_openat2() ? -ENOSYS : rows[i].content ? 0 : -ENOENT);
		assert_int_equal(e.code, r);
		if (r < 0)
			continue;
		assert_true(file_read_all(fd, text, sizeof(text) - 1, &e) > 0);
		assert_string_equal(text, rows[i].content);
		assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	}
	assert_int_equal(fds_open(), before + 1);
}

static void test_open_long_name(void **)
{
	struct err e = ERR_INIT;
	int fd = -1;
	char name[300];
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	scoped_fd int dir = here();
	assert_int_equal(file_open_beneath(dir, name, O_RDONLY, 0, &fd, &e), -ENAMETOOLONG);
	assert_int_equal(fd, -1);
}

static void test_read_text(void **)
{
	struct err e = ERR_INIT;
	char text[6];
	scoped_fd int dir = here();
	make_file("four", "four");
	make_file("line", "four\n");
	make_file("lines", "a\n\n");
	make_file("five", "five5");
	make_file("six", "sixsix");
	make_file("empty", "");
	assert_int_equal(file_read_text(dir, "four", text, sizeof(text), &e), 4);
	assert_string_equal(text, "four");
	assert_int_equal(file_read_text(dir, "line", text, sizeof(text), &e), 4);
	assert_string_equal(text, "four");
	assert_int_equal(file_read_text(dir, "lines", text, sizeof(text), &e), 2);
	assert_string_equal(text, "a\n");
	assert_int_equal(file_read_text(dir, "five", text, sizeof(text), &e), 5);
	assert_string_equal(text, "five5");
	assert_int_equal(file_read_text(dir, "empty", text, sizeof(text), &e), 0);
	assert_string_equal(text, "");
	assert_int_equal(file_read_text(AT_FDCWD, "four", text, sizeof(text), &e), 4);
	assert_int_equal(e.code, 0);
	assert_int_equal(file_read_text(dir, "six", text, sizeof(text), &e), -EFBIG);
	assert_string_equal(e.msg, "six: longer than 5 bytes");
	assert_int_equal(file_read_text(dir, "none", text, sizeof(text), &e), -ENOENT);
	assert_string_equal(e.msg, "open none: No such file or directory");
	assert_int_equal(file_read_text(dir, ".", text, sizeof(text), &e), -EISDIR);
	/* An ordinary path may go through a link, one below a directory may not. */
	assert_int_equal(symlink("four", "link"), 0);
	assert_int_equal(file_read_text(AT_FDCWD, "link", text, sizeof(text), &e), 4);
	assert_int_equal(file_read_text(dir, "link", text, sizeof(text), &e), -ELOOP);
}

static void test_read_number(void **)
{
	static const struct {
		const char *text;
		int result;
		uint64_t value;
	} rows[] = {
		{"0\n", 0, 0},
		{"4096\n", 0, 4096},
		{"18446744073709551615", 0, UINT64_MAX},
		{"max\n", 0, UINT64_MAX},
		{"", -EINVAL, 0},
		{"18446744073709551616", -ERANGE, 0},
		{"-1\n", -EINVAL, 0},
		{"1 2\n", -EINVAL, 0},
		{"123456789012345678901234567890123", -EFBIG, 0},
	};
	scoped_fd int dir = here();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		uint64_t value = 4711;
		make_file("number", rows[i].text);
		assert_int_equal(file_read_u64(dir, "number", &value, &e), rows[i].result);
		assert_true(value == (rows[i].result == 0 ? rows[i].value : 4711));
		assert_int_equal(e.code, rows[i].result);
	}
}

static void test_put(void **)
{
	struct err e = ERR_INIT;
	char text[64];
	scoped_fd int dir = here();
	make_file("value", "old\n");
	assert_int_equal(file_put(dir, "value", "new\n", &e), 0);
	assert_int_equal(file_read_text(dir, "value", text, sizeof(text), &e), 3);
	assert_string_equal(text, "new");
	assert_int_equal(file_put(dir, "none", "x", &e), -ENOENT);
	assert_false(exists("none"));
	/* What the kernel refuses comes with its own code; a full device takes nothing. */
	assert_int_equal(file_put(AT_FDCWD, "/dev/full", "x", &e), -ENOSPC);
	assert_string_equal(e.msg, "write \"x\" to /dev/full: No space left on device");
	assert_int_equal(file_put(AT_FDCWD, "/proc/self/oom_score_adj", "junk", &e), -EINVAL);
}

static void on_alarm(int)
{
}

/* Interrupts this process every millisecond, without SA_RESTART, until stopped. */
static void interrupt(bool on)
{
	struct sigaction action = {.sa_handler = on_alarm};
	struct itimerval timer = {0};
	if (on)
		timer.it_value.tv_usec = timer.it_interval.tv_usec = 1000;
	assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

enum { PIPE_BYTES = 256 * 1024, CHUNK_BYTES = 4096 };

/* The other end of the pipe, in small pieces: byte i has the value i % 251. */
static int slow_writer(int fd)
{
	static uint8_t bytes[PIPE_BYTES];
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i % 251);
	for (size_t i = 0; i < sizeof(bytes); i += CHUNK_BYTES) {
		usleep(500);
		if (write(fd, bytes + i, CHUNK_BYTES) != CHUNK_BYTES)
			return 1;
	}
	return 0;
}

static int slow_reader(int fd)
{
	uint8_t bytes[CHUNK_BYTES];
	size_t total = 0;
	for (;;) {
		usleep(500);
		ssize_t n = read(fd, bytes, sizeof(bytes));
		if (n <= 0)
			return n == 0 && total == PIPE_BYTES ? 0 : 1;
		for (ssize_t i = 0; i < n; i++)
			if (bytes[i] != (total + (size_t)i) % 251)
				return 2;
		total += (size_t)n;
	}
}

static void test_interrupted_and_short(void **)
{
	static uint8_t bytes[PIPE_BYTES + 1];
	struct err e = ERR_INIT;
	for (int writing = 0; writing < 2; writing++) {
		int ends[2];
		assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
		pid_t child = fork();
		assert_true(child >= 0);
		if (child == 0) {
			close(ends[writing ? 1 : 0]);
			int r = writing ? slow_reader(ends[0]) : slow_writer(ends[1]);
			close(ends[writing ? 0 : 1]);
			_exit(r);
		}
		close(ends[writing ? 0 : 1]);
		interrupt(true);
		if (writing)
			assert_int_equal(file_write_all(ends[1], bytes, PIPE_BYTES, &e), 0);
		else
			assert_int_equal(file_read_all(ends[0], bytes, sizeof(bytes), &e), PIPE_BYTES);
		interrupt(false);
		close(ends[writing ? 1 : 0]);
		int status = 0;
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
		for (size_t i = 0; i < PIPE_BYTES; i++)
			assert_int_equal(bytes[i], i % 251);
	}
	assert_int_equal(file_write_all(-1, bytes, 1, &e), -EBADF);
	assert_int_equal(file_read_all(-1, bytes, 1, &e), -EBADF);
}

static void test_replace(void **)
{
	struct err e = ERR_INIT;
	char text[64];
	int before = fds_open();
	/* O_PATH, as a held state directory may be. */
	scoped_fd int dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	mode_t mask = umask(077);
	assert_int_equal(file_replace(dir, "record", 0644, "one", 3, &e), 0);
	assert_int_equal(file_replace(dir, "record", 0640, "two", 3, &e), 0);
	(void)umask(mask);
	struct stat st = {0};
	assert_int_equal(stat("record", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(file_read_text(AT_FDCWD, "record", text, sizeof(text), &e), 3);
	assert_string_equal(text, "two");
	/* What a crash left, even as a link, is in nobody's way. */
	make_file("victim", "victim");
	assert_int_equal(symlink("victim", ".record.new"), 0);
	assert_int_equal(file_replace(dir, "record", 0600, "three", 5, &e), 0);
	assert_int_equal(file_read_text(AT_FDCWD, "victim", text, sizeof(text), &e), 6);
	assert_int_equal(file_read_text(AT_FDCWD, "record", text, sizeof(text), &e), 5);
	assert_false(exists(".record.new"));
	assert_int_equal(fds_open(), before + 1);
}

static void test_replace_failing(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int dir = here();
	static const char *const names[] = {"", ".", "..", "a/b", "/a"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		assert_int_equal(file_replace(dir, names[i], 0600, "x", 1, &e), -EINVAL);
		assert_int_equal(file_remove_tree(dir, names[i], &e), -EINVAL);
	}
	/* A directory of that name stays, and the temporary file goes. */
	assert_int_equal(mkdir("record", 0755), 0);
	assert_int_equal(file_replace(dir, "record", 0600, "x", 1, &e), -EISDIR);
	assert_string_equal(e.msg, "rename .record.new to record: Is a directory");
	assert_false(exists(".record.new"));
}

/* A tree with links out of it, files that cannot be read, and a chain far deeper than one walk or one path goes. */
static void make_hostile_tree(void)
{
	make_file("victim", "victim");
	assert_int_equal(mkdir("victims", 0755), 0);
	make_file("victims/inner", "victim");
	assert_int_equal(mkdir("tree", 0755), 0);
	assert_int_equal(mkdir("tree/wide", 0755), 0);
	assert_int_equal(mkdir("tree/moved-0", 0755), 0);
	make_file("tree/moved-0/x", "");
	for (int i = 0; i < 500; i++) {
		char name[64];
		(void)snprintf(name, sizeof(name), "tree/wide/%d", i);
		make_file(name, "x");
	}
	assert_int_equal(symlink("../victim", "tree/link-file"), 0);
	assert_int_equal(symlink("../victims", "tree/link-directory"), 0);
	assert_int_equal(symlink("/", "tree/link-root"), 0);
	assert_int_equal(link("victim", "tree/hard"), 0);
	assert_int_equal(mkfifo("tree/fifo", 0), 0);
	assert_int_equal(mkdir("tree/closed", 0), 0);
	scoped_fd int at = open("tree", O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 3000; i++) {
		assert_int_equal(mkdirat(at, "down", 0755), 0);
		assert_int_equal(symlinkat("/", at, "root"), 0);
		int next = openat(at, "down", O_PATH | O_DIRECTORY | O_CLOEXEC);
		assert_true(next >= 0);
		fd_close(&at);
		at = next;
	}
}

static int remove_hostile_tree(void)
{
	struct err e = ERR_INIT;
	scoped_fd int dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = file_remove_tree(dir, "tree", &e);
	if (r < 0)
		print_error("%s\n", e.msg);
	return r < 0 || exists("tree") || !exists("victim") || !exists("victims/inner");
}

static void test_remove_tree(void **)
{
	int before = fds_open();
	make_hostile_tree();
	assert_int_equal(remove_hostile_tree(), 0);
	assert_int_equal(fds_open(), before);
}

static void test_remove_tree_without_openat2(void **)
{
	make_hostile_tree();
	assert_int_equal(in_child(true, false, remove_hostile_tree), 0);
}

static void test_remove_other_things(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int dir = here();
	make_file("file", "x");
	assert_int_equal(symlink("file", "link"), 0);
	assert_int_equal(mkdir("empty", 0), 0);
	assert_int_equal(file_remove_tree(dir, "link", &e), 0);
	assert_true(exists("file") && !exists("link"));
	assert_int_equal(file_remove_tree(dir, "file", &e), 0);
	assert_int_equal(file_remove_tree(dir, "empty", &e), 0);
	assert_int_equal(file_remove_tree(dir, "empty", &e), 0);
	assert_false(exists("file") || exists("empty"));
	assert_int_equal(e.code, 0);
	assert_int_equal(file_remove_tree(-1, "file", &e), -EBADF);
	assert_string_equal(e.msg, "remove file: Bad file descriptor");
}

/* Mounts in the tree: of another file system, and of a directory of the same one. Both stay, with what is in them,
 * and everything beside them goes. */
static int remove_tree_with_mounts(void)
{
	struct err e = ERR_INIT;
	if (mount("tmpfs", "tree/other", "tmpfs", MS_NOSUID | MS_NODEV, NULL) < 0 ||
	    mount("victims", "tree/same", "none", MS_BIND, NULL) < 0)
		return 77;
	scoped_fd int inside = open("tree/other/inside", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (inside < 0)
		return 1;
	scoped_fd int dir = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int tree = open("tree", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (file_remove_tree(dir, "tree", &e) != -EBUSY || strncmp(e.msg, "remove tree: ", 13) != 0)
		return 2;
	if (!exists("victims/inner") || !exists("tree/other/inside") || exists("tree/a") || exists("tree/z"))
		return 3;
	return file_remove_tree(tree, "other", &e) != -EBUSY || !exists("tree/other/inside") ? 4 : 0;
}

static void test_remove_stops_at_mounts(void **)
{
	static const char *const directories[] = {"tree",      "tree/a", "tree/other",
						  "tree/same", "tree/z", "victims"};
	for (int without = 0; without < 2; without++) {
		for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
			assert_true(mkdir(directories[i], 0755) == 0 || errno == EEXIST);
		make_file("tree/a/file", "x");
		make_file("tree/z/file", "x");
		make_file("victims/inner", "x");
		int r = in_child(without, true, remove_tree_with_mounts);
		if (r == 77)
			skip();
		assert_int_equal(r, 0);
	}
}

static void test_make_directories(void **state)
{
	struct err e = ERR_INIT;
	const char *base = *state;
	char path[256];
	int before = fds_open();
	mode_t mask = umask(077);
	(void)snprintf(path, sizeof(path), "%s/one//two/three/", base);
	assert_int_equal(file_make_dirs(path, 0700, &e), 0);
	assert_int_equal(file_make_dirs(path, 0711, &e), 0);
	(void)umask(mask);
	struct stat st = {0};
	assert_int_equal(stat("one/two", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(stat("one/two/three", &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	make_file("one/file", "x");
	(void)snprintf(path, sizeof(path), "%s/one/file", base);
	assert_int_equal(file_make_dirs(path, 0700, &e), -ENOTDIR);
	(void)snprintf(path, sizeof(path), "%s/one/file/below", base);
	assert_int_equal(file_make_dirs(path, 0700, &e), -ENOTDIR);
	assert_int_equal(file_make_dirs("relative", 0700, &e), -EINVAL);
	assert_string_equal(e.msg, "make relative: not an absolute path");
	assert_int_equal(file_make_dirs("/../x", 0700, &e), -EXDEV);
	assert_int_equal(file_make_dirs("/", 0700, NULL), 0);
	assert_int_equal(fds_open(), before);
}

static void test_open_owned(void **state)
{
	static const struct {
		const char *what;
		mode_t mode, parent_mode;
		uid_t uid, parent_uid;
		int expected;
	} rows[] = {
		{"root's own", 0700, 0755, 0, 0, 0},
		{"a sticky parent", 0755, 01777, 0, 0, -EPERM},
		{"a parent for a group", 0700, 0775, 0, 0, -EPERM},
		{"a parent for all", 0700, 0757, 0, 0, -EPERM},
		{"somebody's parent", 0700, 0700, 0, 1000, -EPERM},
		{"for a group", 0770, 0700, 0, 0, -EPERM},
		{"sticky", 01777, 0700, 0, 0, -EPERM},
		{"somebody's", 0700, 0700, 1000, 0, -EPERM},
	};
	/* Not below /tmp, which everybody can write to. */
	char base[] = "/var/lib/ermite-test-file-XXXXXX";
	char parent[128];
	char path[160];
	int before = fds_open();
	(void)state;
	if (geteuid() != 0)
		skip();
	assert_non_null(mkdtemp(base));
	assert_int_equal(chdir(base), 0);
	assert_int_equal(mkdir("parent", 0700), 0);
	assert_int_equal(mkdir("parent/own", 0700), 0);
	(void)snprintf(parent, sizeof(parent), "%s/parent", base);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		int fd = -1;
		assert_int_equal(chown("parent", rows[i].parent_uid, 0), 0);
		assert_int_equal(chown("parent/own", rows[i].uid, 0), 0);
		assert_int_equal(chmod("parent", rows[i].parent_mode), 0);
		assert_int_equal(chmod("parent/own", rows[i].mode), 0);
		(void)snprintf(path, sizeof(path), "%s/own", parent);
		if (file_open_owned(path, &fd, &e) != rows[i].expected)
			fail_msg("%s: %s", rows[i].what, e.msg);
		assert_int_equal(fd >= 0, rows[i].expected == 0);
		/* The sentence names the directory that is to blame. */
		bool is_parent = rows[i].parent_uid != 0 || rows[i].parent_mode & 022;
		if (rows[i].expected < 0) {
			assert_non_null(strstr(e.msg, is_parent ? parent : path));
			assert_true(!strstr(e.msg, path) == is_parent);
		}
		fd_close(&fd);
	}
	struct err e = ERR_INIT;
	int fd = -1;
	assert_int_equal(chmod("parent", 0700), 0);
	assert_int_equal(symlink("parent", "link"), 0);
	(void)snprintf(path, sizeof(path), "%s/link/own", base);
	assert_int_equal(file_open_owned(path, &fd, &e), -ENOTDIR);
	assert_non_null(strstr(e.msg, "/link is a link: name the directory that it leads to"));
	assert_int_equal(file_open_owned("parent/own", &fd, &e), -EINVAL);
	assert_int_equal(file_open_owned("/../x", &fd, &e), -EXDEV);
	assert_int_equal(fd, -1);
	assert_int_equal(chdir("/"), 0);
	scoped_fd int lib = open("/var/lib", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(file_remove_tree(lib, strrchr(base, '/') + 1, &e), 0);
	fd_close(&lib);
	assert_int_equal(fds_open(), before);
}

static void test_local(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(file_check_local(root, "/", &e), 0);
	assert_int_equal(file_check_local(-1, "nothing", &e), -EBADF);
	assert_int_equal(file_check_owned(root, "/", &e), 0);
}

/* Raises its own limit as far as it may: 0, or 1 and more for what went wrong. */
static int ask_for_descriptors(void)
{
	struct err e = ERR_INIT;
	struct rlimit limit = {.rlim_cur = 20, .rlim_max = 100};
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0 || setresuid(1234, 1234, 1234) < 0)
		return 1;
	if (file_need_descriptors(20, &e) != 0 || file_need_descriptors(100, &e) != 0)
		return 2;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur != 100 || limit.rlim_max != 100)
		return 3;
	if (file_need_descriptors(101, &e) != -EMFILE)
		return 4;
	return strcmp(e.msg, "101 open files are needed, and 100 are allowed: see ulimit -n") != 0 ? 5 : 0;
}

/* The same of memory: a limit that is no more than this program needs cannot be tried with the sanitizers. */
static int ask_for_memory(void)
{
	struct err e = ERR_INIT;
	struct rlimit limit = {.rlim_cur = (rlim_t)1 << 46, .rlim_max = (rlim_t)1 << 48};
	if (setrlimit(RLIMIT_AS, &limit) < 0 || setresuid(1234, 1234, 1234) < 0)
		return 1;
	if (file_need_memory(1 << 26, &e) != 0 || file_need_memory(1 << 28, &e) != 0)
		return 2;
	if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur != (rlim_t)1 << 48)
		return 3;
	if (file_need_memory((1 << 28) + 1, &e) != -ENOMEM)
		return 4;
	return strcmp(e.msg, "268435457 MiB of address space are needed, and 268435456 are allowed: see "
			     "ulimit -v") != 0
		       ? 5
		       : 0;
}

static void run_apart(int (*ask)(void))
{
	int status = -1;
	if (geteuid() != 0)
		skip();
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(ask());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_need_descriptors(void **)
{
	run_apart(ask_for_descriptors);
}

static void test_need_memory(void **)
{
	run_apart(ask_for_memory);
}

static void test_memfd(void **)
{
	struct err e = ERR_INIT;
	char text[16];
	int before = fds_open();
	int fd = -1;
	assert_int_equal(file_memfd("spec", "content", 7, &fd, &e), 0);
	assert_int_equal(file_read_all(fd, text, sizeof(text), &e), 7);
	assert_memory_equal(text, "content", 7);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL), -1);
	close(fd);
	assert_int_equal(file_memfd("empty", NULL, 0, &fd, &e), 0);
	assert_int_equal(file_read_all(fd, text, sizeof(text), &e), 0);
	close(fd);
	assert_int_equal(fds_open(), before);
}

#define ROW(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

static void test_path_of_a_descriptor(void **)
{
	struct err e = ERR_INIT;
	char path[64];
	scoped_fd int fd = open("/proc/../dev/null", O_PATH | O_CLOEXEC);
	assert_int_equal(file_path(fd, path, sizeof(path), &e), 0);
	assert_string_equal(path, "/dev/null");
	assert_int_equal(file_path(fd, path, sizeof("/dev/null"), &e), 0);
	assert_int_equal(file_path(fd, path, sizeof("/dev/null") - 1, &e), -ENAMETOOLONG);
	assert_int_equal(file_path(-1, path, sizeof(path), &e), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_path_of_a_descriptor),
		ROW(test_open_beneath),
		ROW(test_open_beneath_without_openat2),
		ROW(test_open_in_root),
		ROW(test_open_long_name),
		ROW(test_read_text),
		ROW(test_read_number),
		ROW(test_put),
		ROW(test_interrupted_and_short),
		ROW(test_replace),
		ROW(test_replace_failing),
		ROW(test_remove_tree),
		ROW(test_remove_tree_without_openat2),
		ROW(test_remove_other_things),
		ROW(test_remove_stops_at_mounts),
		ROW(test_make_directories),
		ROW(test_open_owned),
		ROW(test_local),
		ROW(test_need_descriptors),
		ROW(test_need_memory),
		ROW(test_memfd),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
