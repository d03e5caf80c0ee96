#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

static void test_set(void **)
{
	struct err e = ERR_INIT;
	assert_int_equal(err_set(&e, -EINVAL, "%s has %d legs", "a cat", 4), -EINVAL);
	assert_int_equal(e.code, -EINVAL);
	assert_string_equal(e.msg, "a cat has 4 legs");
}

static void test_sys_takes_errno(void **)
{
	struct err e = ERR_INIT;
	errno = ENOENT;
	assert_int_equal(err_sys(&e, "open %s", "/x"), -ENOENT);
	assert_int_equal(e.code, -ENOENT);
	assert_string_equal(e.msg, "open /x: No such file or directory");
	errno = 0;
	assert_int_equal(err_sys(&e, "open"), -EIO);
	assert_string_equal(e.msg, "open: Input/output error");
}

static void test_code(void **)
{
	struct err e = ERR_INIT;
	errno = EBADF;
	assert_int_equal(err_code(&e, -ENOTDIR, "open %s", "/x"), -ENOTDIR);
	assert_string_equal(e.msg, "open /x: Not a directory");
}

static void test_context(void **)
{
	struct err e = ERR_INIT;
	assert_int_equal(err_ctx(&e, -EIO, "start"), -EIO);
	assert_string_equal(e.msg, "start");
	int r = err_set(&e, -EPERM, "open /x");
	r = err_ctx(&e, r, "sandbox %s", "er01234567");
	assert_int_equal(r, -EPERM);
	assert_int_equal(e.code, -EPERM);
	assert_string_equal(e.msg, "sandbox er01234567: open /x");
}

/* The newest context survives, the oldest tail is cut, and the text stays terminated. */
static void test_cut(void **)
{
	struct err e = ERR_INIT;
	char tail[2 * sizeof(e.msg)];
	memset(tail, 't', sizeof(tail) - 1);
	tail[sizeof(tail) - 1] = '\0';
	assert_int_equal(err_set(&e, -EIO, "%s", tail), -EIO);
	assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
	assert_int_equal(err_ctx(&e, -EIO, "newest"), -EIO);
	assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
	assert_memory_equal(e.msg, "newest: ttt", 11);
	assert_int_equal(err_ctx(&e, -EIO, "%s", tail), -EIO);
	assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
	assert_null(strchr(e.msg, 'n'));
	errno = EIO;
	assert_int_equal(err_sys(&e, "%s", tail), -EIO);
	assert_int_equal(strlen(e.msg), sizeof(e.msg) - 1);
}

static void test_nobody_listens(void **)
{
	errno = EACCES;
	assert_int_equal(err_set(NULL, -EINVAL, "x"), -EINVAL);
	assert_int_equal(err_sys(NULL, "x"), -EACCES);
	assert_int_equal(err_code(NULL, -EIO, "x"), -EIO);
	assert_int_equal(err_ctx(NULL, -EPERM, "x"), -EPERM);
}

static void test_text(void **)
{
	assert_string_equal(err_text(EPERM), "Operation not permitted");
	assert_string_equal(err_text(-EPERM), "Operation not permitted");
	assert_string_equal(err_text(99999), "unknown error");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_set),  cmocka_unit_test(test_sys_takes_errno),
		cmocka_unit_test(test_code), cmocka_unit_test(test_context),
		cmocka_unit_test(test_cut),  cmocka_unit_test(test_nobody_listens),
		cmocka_unit_test(test_text),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
