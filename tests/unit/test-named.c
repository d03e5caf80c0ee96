#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/named.h"
#include "base/scope.h"
#include "fds.h"

enum { ALICE = 4001, BOB = 4002, SENTENCE_MAX = 256 };

static void make_file(const char *path, uid_t owner)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, path, strlen(path)), (ssize_t)strlen(path));
	assert_int_equal(fchown(fd, owner, 0), 0);
}

static void make_link(const char *target, const char *path, uid_t owner)
{
	assert_int_equal(symlink(target, path), 0);
	assert_int_equal(lchown(path, owner, 0), 0);
}

static void make_dir(const char *path, uid_t owner)
{
	assert_int_equal(mkdir(path, 0755), 0);
	assert_int_equal(lchown(path, owner, 0), 0);
}

/* A directory of the test's own, the current one, with what root, Alice and Bob put there. */
static int set_up(void **state)
{
	char *path = strdup("/tmp/test-named-XXXXXX");
	if (!path || !mkdtemp(path) || chdir(path) < 0)
		return -1;
	*state = path;
	make_dir("root", 0);
	make_file("root/f", 0);
	make_dir("alice", ALICE);
	make_file("alice/f", ALICE);
	make_dir("alice/d", ALICE);
	make_file("alice/d/f", ALICE);
	make_dir("bob", BOB);
	make_file("bob/f", BOB);
	make_link("root", "to-root", 0);
	make_link("../root/f", "root/to-f", 0);
	make_link("to-root/", "to-to-root", 0);
	make_link("loop", "loop", 0);
	make_link("alice/d/", "to-alice", 0);
	make_link("nothing", "dangling", 0);
	make_link("/dev/null", "root/null", 0);
	make_link("d", "alice/own", ALICE);
	make_link("own/f", "alice/own-f", ALICE);
	make_link("../root", "alice/dir", ALICE);
	make_link("../root/f", "alice/file", ALICE);
	make_link("/etc/passwd", "alice/absolute", ALICE);
	make_link("../to-root", "alice/through", ALICE);
	make_link("../bob", "alice/bob", ALICE);
	make_link("../alice", "bob/alice", BOB);
	make_link("../alice/own", "bob/alice-own", BOB);
	make_link("/proc/self/cwd/root", "alice/proc", ALICE);
	return 0;
}

static int tear_down(void **state)
{
	char *path = *state;
	scoped_fd int tmp = open("/tmp", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = file_remove_tree(tmp, path + strlen("/tmp/"), NULL);
	free(path);
	return chdir("/") < 0 || r < 0 ? -1 : 0;
}

/* Opens path, which must be the same as what plainly names it; NULL: refused with this code. */
static void check(const char *path, int flags, const char *same, int code)
{
	struct err e = ERR_INIT;
	struct stat is, wanted;
	scoped_fd int fd = -1;
	int r = named_open(path, flags, &fd, &e);
	if (r != code || (code == 0) != (fd >= 0))
		fail_msg("%s: %d %s, not %d", path, r, e.msg, code);
	if (!same)
		return;
	assert_int_equal(fstat(fd, &is), 0);
	assert_int_equal(stat(same, &wanted), 0);
	if (is.st_ino != wanted.st_ino || is.st_dev != wanted.st_dev)
		fail_msg("%s is not %s", path, same);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void test_what_is_named(void **)
{
	static const struct {
		const char *path;
		int flags;
		const char *same;
		int code;
	} rows[] = {
		{"root/f", O_RDONLY, "root/f", 0},
		{".//root/./../root//f", O_RDONLY, "root/f", 0},
		{"root/f/", O_RDONLY, NULL, -ENOTDIR},
		{"root/f/x", O_RDONLY, NULL, -ENOTDIR},
		{"root", O_RDONLY | O_DIRECTORY, "root", 0},
		{"root/f", O_RDONLY | O_DIRECTORY, NULL, -ENOTDIR},
		{"root//", O_RDONLY | O_DIRECTORY, "root", 0},
		{".", O_RDONLY | O_DIRECTORY, ".", 0},
		{"..", O_RDONLY | O_DIRECTORY, "..", 0},
		{"/", O_RDONLY | O_DIRECTORY, "/", 0},
		{"/etc/passwd", O_RDONLY, "/etc/passwd", 0},
		{"", O_RDONLY, NULL, -ENOENT},
		{"none", O_RDONLY, NULL, -ENOENT},
		{"none/f", O_RDONLY, NULL, -ENOENT},
		{"to-root/f", O_RDONLY, "root/f", 0},
		{"to-root", O_RDONLY | O_DIRECTORY, "root", 0},
		{"to-root/", O_RDONLY, "root", 0},
		{"to-root", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, NULL, -ENOTDIR},
		{"root/to-f", O_RDONLY | O_NOFOLLOW, NULL, -ELOOP},
		{"to-to-root/to-f", O_RDONLY, "root/f", 0},
		{"root/null", O_RDONLY, "/dev/null", 0},
		{"loop", O_RDONLY, NULL, -ELOOP},
		{"loop/f", O_RDONLY, NULL, -ELOOP},
		{"dangling", O_RDONLY, NULL, -ENOENT},
		{"to-alice/f", O_RDONLY, "alice/d/f", 0},
		{"to-alice", O_RDONLY | O_DIRECTORY, "alice/d", 0},
		/* Alice leads to what is hers. */
		{"alice/own", O_RDONLY | O_DIRECTORY, "alice/d", 0},
		{"alice/own/../own/f", O_RDONLY, "alice/d/f", 0},
		{"alice/own-f", O_RDONLY, "alice/d/f", 0},
		/* And to what is not. */
		{"alice/dir", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		{"alice/dir/f", O_RDONLY, NULL, -EPERM},
		{"alice/file", O_RDONLY, NULL, -EPERM},
		{"alice/file", O_WRONLY, NULL, -EPERM},
		{"alice/absolute", O_RDONLY, NULL, -EPERM},
		{"alice/through", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		{"alice/through/to-f", O_RDONLY, NULL, -EPERM},
		{"alice/bob", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		{"alice/bob/f", O_RDONLY, NULL, -EPERM},
		{"alice/own/../../root/f", O_RDONLY, NULL, -EPERM},
		{"alice/proc", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		/* Two of them together lead nowhere. */
		{"bob/alice", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		{"bob/alice-own", O_RDONLY | O_DIRECTORY, NULL, -EPERM},
		{"alice/bob/alice/f", O_RDONLY, NULL, -EPERM},
	};
	int before = fds_open();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check(rows[i].path, rows[i].flags, rows[i].same, rows[i].code);
	assert_int_equal(fds_open(), before);
}

static void test_links_of_proc(void **)
{
	char path[64];
	int ends[2];
	scoped_fd int dir = open("root", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d/f", dir);
	check(path, O_RDONLY, "root/f", 0);
	(void)snprintf(path, sizeof(path), "/dev/fd/%d", dir);
	check(path, O_RDONLY | O_DIRECTORY, "root", 0);
	check("/proc/self/cwd/root/f", O_RDONLY, "root/f", 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	scoped_fd int reader = ends[0];
	scoped_fd int writer = ends[1];
	(void)snprintf(path, sizeof(path), "/dev/fd/%d", reader);
	scoped_fd int again = -1;
	assert_int_equal(named_open(path, O_RDONLY, &again, NULL), 0);
	assert_int_equal(write(writer, "x", 1), 1);
	char c = 0;
	assert_int_equal(read(again, &c, 1), 1);
}

static void test_sentence(void **)
{
	char sentence[SENTENCE_MAX];
	struct err e = ERR_INIT;
	int fd = -1;
	(void)snprintf(sentence, sizeof(sentence), "a link of user %d leads to what is not theirs", ALICE);
	assert_int_equal(named_open("alice/file", O_RDONLY, &fd, &e), -EPERM);
	assert_string_equal(e.msg, sentence);
	assert_int_equal(named_open("none", O_RDONLY, &fd, &e), -ENOENT);
	assert_string_equal(e.msg, "No such file or directory");
	assert_int_equal(fd, -1);
}

static void test_many_and_long(void **)
{
	char from[16], to[16];
	make_link("root", "l0", 0);
	for (int i = 1; i <= 40; i++) {
		(void)snprintf(from, sizeof(from), "l%d", i);
		(void)snprintf(to, sizeof(to), "l%d", i - 1);
		make_link(to, from, 0);
	}
	check("l39/f", O_RDONLY, "root/f", 0);
	check("l40/f", O_RDONLY, NULL, -ELOOP);
	char name[300];
	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	check(name, O_RDONLY, NULL, -ENAMETOOLONG);
	char path[PATH_MAX + 8];
	memset(path, '/', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	check(path, O_RDONLY | O_DIRECTORY, NULL, -ENAMETOOLONG);
	path[PATH_MAX - 1] = '\0';
	check(path, O_RDONLY | O_DIRECTORY, "/", 0);
	/* The target of a link is too much together with what stands behind it. */
	memset(path, '/', PATH_MAX);
	memcpy(path, "to-root", strlen("to-root"));
	path[PATH_MAX - 2] = 'f';
	path[PATH_MAX - 1] = '\0';
	check(path, O_RDONLY, "root/f", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_what_is_named, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_links_of_proc, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sentence, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_and_long, set_up, tear_down),
	};
	if (geteuid() != 0) {
		print_message("only root has files of other users\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
