#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/scope.h"
#include "client/env.h"

static void names(void **)
{
	static const struct {
		const char *text;
		int expected;
		const char *message; /* part of it */
	} rows[] = {
		{"A=1", 0, ""},
		{"_a9=", 0, ""},
		{"PATH=/bin:/usr/bin", 0, ""},
		{"A==", 0, ""},
		{"A=a b\nc", 0, ""},
		{"A", -EINVAL, "there is no \"=\""},
		{"", -EINVAL, "there is no \"=\""},
		{"=1", -EINVAL, "is not a name"},
		{"9A=1", -EINVAL, "is not a name"},
		{"A-B=1", -EINVAL, "is not a name"},
		{"A B=1", -EINVAL, "is not a name"},
		{" A=1", -EINVAL, "is not a name"},
		{"\xc3\xa4=1", -EINVAL, "is not a name"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		scoped_env struct env list = ENV_INIT;
		struct err e = ERR_INIT;
		assert_int_equal(env_set(&list, rows[i].text, &e), rows[i].expected);
		assert_non_null(strstr(e.msg, rows[i].message));
		assert_int_equal(list.n, rows[i].expected == 0 ? 1 : 0);
		if (rows[i].expected == 0)
			assert_string_equal(list.entries[0], rows[i].text);
	}
}

static void last_one_wins(void **)
{
	scoped_env struct env list = ENV_INIT;
	assert_int_equal(env_set(&list, "A=1", NULL), 0);
	assert_int_equal(env_set(&list, "AB=2", NULL), 0);
	assert_int_equal(env_set(&list, "A=3", NULL), 0);
	assert_int_equal(env_put(&list, "TERM", "xterm", NULL), 0);
	assert_int_equal(env_put(&list, "AB", "", NULL), 0);
	assert_int_equal(list.n, 3);
	assert_string_equal(list.entries[0], "A=3");
	assert_string_equal(list.entries[1], "AB=");
	assert_string_equal(list.entries[2], "TERM=xterm");
	assert_null(list.entries[3]);
	assert_string_equal(env_get(&list, "A"), "3");
	assert_string_equal(env_get(&list, "AB"), "");
	assert_null(env_get(&list, "B"));
	assert_null(env_get(&list, "TER"));
}

static void secrets_are_not_quoted(void **)
{
	static const char *const texts[] = {"hunter2", "hunter2!=x", "9hunter2=hunter2"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		scoped_env struct env list = ENV_INIT;
		struct err e = ERR_INIT;
		assert_int_equal(env_set(&list, texts[i], &e), -EINVAL);
		assert_null(strstr(e.msg, "hunter2"));
	}
}

static void lines(void **)
{
	static const struct {
		const char *text;
		size_t n; /* entries */
		const char *first;
		const char *message; /* of the error, "" for none */
	} rows[] = {
		{"", 0, NULL, ""},
		{"\n\n", 0, NULL, ""},
		{"# A=1\n  # B=2\n", 0, NULL, ""},
		{"A=1", 1, "A=1", ""},
		{"A=1\n", 1, "A=1", ""},
		{"  A=1 \n", 1, "A=1 ", ""},
		{"\tA=\"1\"\nB='2'\n", 2, "A=\"1\"", ""},
		{"A=1 # no comment\n", 1, "A=1 # no comment", ""},
		{"A=1\nA=2\n", 1, "A=2", ""},
		{"A=1\n\n# x\nB\n", 1, "A=1", "secrets.env:4: there is no \"=\""},
		{"export A=1\n", 0, NULL, "secrets.env:1: what stands before"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		scoped_env struct env list = ENV_INIT;
		struct err e = ERR_INIT;
		int r = env_read_text(&list, "secrets.env", rows[i].text, strlen(rows[i].text), &e);
		assert_int_equal(r, rows[i].message[0] ? -EINVAL : 0);
		assert_non_null(strstr(e.msg, rows[i].message));
		assert_int_equal(list.n, rows[i].n);
		if (rows[i].first)
			assert_string_equal(list.entries[0], rows[i].first);
	}
}

static void zero_byte_is_refused(void **)
{
	scoped_env struct env list = ENV_INIT;
	struct err e = ERR_INIT;
	assert_int_equal(env_read_text(&list, "f", "A=1\0B=2\n", 8, &e), -EINVAL);
	assert_string_equal(e.msg, "f:1: the value holds a zero byte");
}

static void files(void **)
{
	scoped_env struct env list = ENV_INIT;
	struct err e = ERR_INIT;
	int ends[2] = {-1, -1};
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	scoped_fd int reader = ends[0];
	scoped_fd int writer = ends[1];
	assert_int_equal(write(writer, "A=1\nB=2\n", 8), 8);
	fd_close(&writer);
	char path[32];
	(void)snprintf(path, sizeof(path), "/dev/fd/%d", reader);
	assert_int_equal(env_read_file(&list, path, &e), 0);
	assert_int_equal(list.n, 2);
	assert_int_equal(env_read_file(&list, "/nonexistent/file", &e), -ENOENT);
	assert_string_equal(e.msg, "open /nonexistent/file: No such file or directory");
	assert_int_equal(env_read_file(&list, "/dev/zero", &e), -EFBIG);
	assert_non_null(strstr(e.msg, "longer than 1048576 bytes"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),
		cmocka_unit_test(last_one_wins),
		cmocka_unit_test(secrets_are_not_quoted),
		cmocka_unit_test(lines),
		cmocka_unit_test(zero_byte_is_refused),
		cmocka_unit_test(files),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
