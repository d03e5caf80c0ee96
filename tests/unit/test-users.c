#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* The above for cmocka.h. */
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/lines.h"
#include "guest/users.h"

static const char passwd[] = "# a comment\n"
			     "+nis\n"
			     "broken:x:notanumber:0::/:/bin/sh\n"
			     "root:x:0:0:root:/root:/bin/bash\n"
			     "short:x:7\n"
			     "runner:x:1000:1001:Runner,,,:/home/runner:/bin/bash\n"
			     "nohome:x:1002:1002:::\n"
			     "1234:x:77:77::/numeric:/bin/sh\n"
			     "last:x:1003:1003::/home/last:/bin/dash";

static const char group[] = "root:x:0:\n"
			    "docker:x:998:other,runner\n"
			    "sudo:x:27:runner\n"
			    "runner:x:1001:runner\n"
			    "almost:x:28:runner2\n";

/* A directory with the two files; gone with the test. */
struct etc {
	char path[32];
	int fd;
};

static void put(const struct etc *etc, const char *name, const void *p, size_t n)
{
	scoped_fd int fd = openat(etc->fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, p, n, NULL), 0);
}

static int setup(void **state)
{
	static struct etc etc;
	memcpy(etc.path, "/tmp/test-users-XXXXXX", 23);
	assert_non_null(mkdtemp(etc.path));
	etc.fd = open(etc.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(etc.fd >= 0);
	put(&etc, "passwd", passwd, sizeof(passwd) - 1);
	put(&etc, "group", group, sizeof(group) - 1);
	*state = &etc;
	return 0;
}

static int teardown(void **state)
{
	struct etc *etc = *state;
	scoped_fd int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)close(etc->fd);
	return file_remove_tree(tmp, etc->path + strlen("/tmp/"), NULL);
}

static void finds_users(void **state)
{
	const struct etc *etc = *state;
	static const struct {
		const char *text;
		int code;
		uid_t uid;
		gid_t gid;
		size_t n_groups;
		const char *name, *home, *shell;
	} rows[] = {
		{"", 0, 1000, 1001, 3, "runner", "/home/runner", "/bin/bash"},
		{"runner", 0, 1000, 1001, 3, "runner", "/home/runner", "/bin/bash"},
		{"1000", 0, 1000, 1001, 3, "runner", "/home/runner", "/bin/bash"},
		{"root", 0, 0, 0, 1, "root", "/root", "/bin/bash"},
		{"nohome", 0, 1002, 1002, 1, "nohome", "/", "/bin/sh"},
		{"last", 0, 1003, 1003, 1, "last", "/home/last", "/bin/dash"},
		{"runner:docker", 0, 1000, 998, 1, "runner", "/home/runner", "/bin/bash"},
		{"runner:27", 0, 1000, 27, 1, "runner", "/home/runner", "/bin/bash"},
		{"runner:5555", 0, 1000, 5555, 1, "runner", "/home/runner", "/bin/bash"},
		{"0:sudo", 0, 0, 27, 1, "root", "/root", "/bin/bash"},
		/* A name wins over the same number. */
		{"1234", 0, 77, 77, 1, "1234", "/numeric", "/bin/sh"},
		{"4000", 0, 4000, 0, 1, "4000", "/", "/bin/sh"},
		{"4294967294", 0, 4294967294u, 0, 1, "4294967294", "/", "/bin/sh"},
		{"4294967295", -ENOENT, 0, 0, 0, "", "", ""},
		{"-1", -ENOENT, 0, 0, 0, "", "", ""},
		{"nobody-here", -ENOENT, 0, 0, 0, "", "", ""},
		{"broken", -ENOENT, 0, 0, 0, "", "", ""},
		{"short", -ENOENT, 0, 0, 0, "", "", ""},
		{"runner:nogroup-here", -ENOENT, 0, 0, 0, "", "", ""},
		{":docker", -EINVAL, 0, 0, 0, "", "", ""},
		{"runner:", -EINVAL, 0, 0, 0, "", "", ""},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct user u = {0};
		struct err e = ERR_INIT;
		print_message("\"%s\"\n", rows[i].text);
		assert_int_equal(user_find(etc->fd, rows[i].text, &u, &e), rows[i].code);
		assert_int_equal(u.uid, rows[i].uid);
		assert_int_equal(u.gid, rows[i].gid);
		assert_int_equal(u.n_groups, rows[i].n_groups);
		assert_string_equal(u.name, rows[i].name);
		assert_string_equal(u.home, rows[i].home);
		assert_string_equal(u.shell, rows[i].shell);
		if (u.n_groups > 0)
			assert_int_equal(u.groups[0], u.gid);
		if (rows[i].code < 0)
			assert_true(e.msg[0]);
	}
}

static void collects_groups(void **state)
{
	const struct etc *etc = *state;
	struct user u;
	assert_int_equal(user_find(etc->fd, "runner", &u, NULL), 0);
	static const gid_t want[] = {1001, 998, 27};
	assert_memory_equal(u.groups, want, sizeof(want));
}

static void works_without_files(void **state)
{
	const struct etc *etc = *state;
	struct user u;
	assert_int_equal(unlinkat(etc->fd, "passwd", 0), 0);
	assert_int_equal(unlinkat(etc->fd, "group", 0), 0);
	assert_int_equal(user_find(etc->fd, "", &u, NULL), 0);
	assert_int_equal(u.uid, 0);
	assert_string_equal(u.home, "/");
	assert_int_equal(user_find(etc->fd, "root", &u, NULL), -ENOENT);
	assert_int_equal(user_find(etc->fd, "5:6", &u, NULL), 0);
	assert_int_equal(u.uid, 5);
	assert_int_equal(u.gid, 6);
}

static void falls_back_to_root(void **state)
{
	const struct etc *etc = *state;
	static const char only_root[] = "root:x:0:0::/root:/bin/sh\n";
	struct user u;
	put(etc, "passwd", only_root, sizeof(only_root) - 1);
	assert_int_equal(user_find(etc->fd, "", &u, NULL), 0);
	assert_string_equal(u.name, "root");
}

/* A FIFO in place of a file neither hangs nor yields anything. */
static void survives_a_fifo(void **state)
{
	const struct etc *etc = *state;
	struct user u;
	assert_int_equal(unlinkat(etc->fd, "passwd", 0), 0);
	assert_int_equal(mkfifoat(etc->fd, "passwd", 0644), 0);
	assert_int_equal(user_find(etc->fd, "runner", &u, NULL), -ENOENT);
}

static void refuses_too_many_groups(void **state)
{
	const struct etc *etc = *state;
	struct user u;
	scoped_fd int fd = openat(etc->fd, "group", O_WRONLY | O_TRUNC | O_CLOEXEC);
	for (int i = 0; i < USER_GROUPS_MAX - 1; i++)
		assert_true(dprintf(fd, "g%d:x:%d:runner\n", i, 5000 + i) > 0);
	assert_int_equal(user_find(etc->fd, "runner", &u, NULL), 0);
	assert_int_equal(u.n_groups, USER_GROUPS_MAX);
	assert_true(dprintf(fd, "more:x:9999:runner\n") > 0);
	assert_int_equal(user_find(etc->fd, "runner", &u, NULL), -E2BIG);
}

/* Lines at, below and above the size of the buffer, and one without an end. */
static void cuts_lines(void **state)
{
	const struct etc *etc = *state;
	static char text[3 * sizeof(((struct lines *)0)->text)];
	const size_t most = sizeof(((struct lines *)0)->text) - 2;
	size_t n = 0;
	memset(text, 'a', sizeof(text));
	text[n += most] = '\n';
	n++;
	text[n += most + 1] = '\n';
	n++;
	text[n++] = '\n';
	text[n++] = 'z';
	put(etc, "lines", text, n);
	scoped_fd int fd = openat(etc->fd, "lines", O_RDONLY | O_CLOEXEC);
	struct lines l;
	char *line;
	lines_init(&l, fd);
	assert_int_equal(lines_next(&l, &line, NULL), 1);
	assert_int_equal(strlen(line), most);
	assert_int_equal(lines_next(&l, &line, NULL), 1);
	assert_string_equal(line, "");
	assert_int_equal(lines_next(&l, &line, NULL), 1);
	assert_string_equal(line, "z");
	assert_int_equal(lines_next(&l, &line, NULL), 0);
	assert_int_equal(lines_next(&l, &line, NULL), 0);
}

#define USERS_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		USERS_TEST(finds_users),         USERS_TEST(collects_groups),
		USERS_TEST(works_without_files), USERS_TEST(falls_back_to_root),
		USERS_TEST(survives_a_fifo),     USERS_TEST(refuses_too_many_groups),
		USERS_TEST(cuts_lines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
