#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"

static void test_empty(void **)
{
	scoped_buf struct buf b = BUF_INIT(10);
	assert_string_equal(buf_text(&b), "");
	assert_int_equal(buf_check(&b), 0);
	buf_add(&b, NULL, 0);
	assert_string_equal(buf_text(&b), "");
	assert_int_equal(b.n, 0);
}

static void test_append(void **)
{
	scoped_buf struct buf b = BUF_INIT(1000);
	buf_str(&b, "one ");
	buf_add(&b, "two three", 4);
	buf_fmt(&b, "%d%s", 3, "!");
	assert_int_equal(buf_check(&b), 0);
	assert_int_equal(b.n, 10);
	assert_string_equal(buf_text(&b), "one two 3!");
	buf_add(&b, "a\0b", 3);
	assert_int_equal(b.n, 13);
	assert_memory_equal(buf_text(&b), "one two 3!a\0b", 14);
}

static void test_growth(void **)
{
	scoped_buf struct buf b = BUF_INIT(100'000);
	for (unsigned i = 0; i < 10'000; i++)
		buf_fmt(&b, "%09u\n", i);
	assert_int_equal(buf_check(&b), 0);
	assert_int_equal(b.n, 100'000);
	assert_memory_equal(b.p, "000000000\n", 10);
	assert_memory_equal(b.p + 99'990, "000009999\n", 11);
}

/* One below, at and one above the maximum; what was there stays, and the mark too. */
static void test_maximum(void **)
{
	scoped_buf struct buf b = BUF_INIT(8);
	buf_str(&b, "1234567");
	assert_int_equal(buf_check(&b), 0);
	buf_str(&b, "8");
	assert_int_equal(buf_check(&b), 0);
	buf_str(&b, "9");
	assert_int_equal(buf_check(&b), -ENOBUFS);
	assert_string_equal(buf_text(&b), "12345678");
	buf_str(&b, "");
	assert_int_equal(buf_check(&b), -ENOBUFS);
	buf_clear(&b);
	assert_int_equal(buf_check(&b), 0);
	assert_string_equal(buf_text(&b), "");
	buf_fmt(&b, "%s", "123456789");
	assert_int_equal(buf_check(&b), -ENOBUFS);
	assert_int_equal(b.n, 0);
	buf_done(&b);
	assert_int_equal(b.max, 8);
	buf_str(&b, "again");
	assert_string_equal(buf_text(&b), "again");
	assert_int_equal(buf_check(&b), 0);
}

/* A maximum without bound: a size that does not fit the address space is lost, not wrapped around. */
static void test_overflow(void **)
{
	scoped_buf struct buf b = BUF_INIT(SIZE_MAX);
	buf_str(&b, "x");
	buf_add(&b, "y", SIZE_MAX - 1);
	assert_int_equal(buf_check(&b), -ENOBUFS);
	assert_string_equal(buf_text(&b), "x");
}

struct row {
	const char *in;
	size_t n;
	const char *json;
	const char *plain;
};

#define IN(text) (text), sizeof(text) - 1
#define BAD      "\xef\xbf\xbd"

static const struct row rows[] = {
	{IN(""), "\"\"", ""},
	{IN("plain text"), "\"plain text\"", "plain text"},
	{IN("a\"b\\c"), "\"a\\\"b\\\\c\"", "a\"b\\c"},
	{IN("\n\r\t"), "\"\\n\\r\\t\"", "\\x0a\\x0d\\x09"},
	{IN("\0\x01\x1f\x7f"), "\"\\u0000\\u0001\\u001f\\u007f\"", "\\x00\\x01\\x1f\\x7f"},
	{IN("\033[2J"), "\"\\u001b[2J\"", "\\x1b[2J"},
	/* Every length of UTF-8 at its first and last code point. */
	{IN("\xc2\xa0\xdf\xbf"), "\"\xc2\xa0\xdf\xbf\"", "\xc2\xa0\xdf\xbf"},
	{IN("\xe0\xa0\x80\xed\x9f\xbf"), "\"\xe0\xa0\x80\xed\x9f\xbf\"", "\xe0\xa0\x80\xed\x9f\xbf"},
	{IN("\xee\x80\x80\xef\xbf\xbf"), "\"\xee\x80\x80\xef\xbf\xbf\"", "\xee\x80\x80\xef\xbf\xbf"},
	{IN("\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"), "\"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
	 "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
	/* C1 steers a terminal, but is text to JSON. */
	{IN("\xc2\x9b"), "\"\xc2\x9b\"", "\\xc2\\x9b"},
	/* So do line separators and what turns the direction of writing. */
	{IN("\xe2\x80\xa8"), "\"\xe2\x80\xa8\"", "\\xe2\\x80\\xa8"},
	{IN("\xe2\x80\xae"), "\"\xe2\x80\xae\"", "\\xe2\\x80\\xae"},
	{IN("\xe2\x81\xa6\xe2\x81\xa9"), "\"\xe2\x81\xa6\xe2\x81\xa9\"", "\\xe2\\x81\\xa6\\xe2\\x81\\xa9"},
	{IN("\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa"),
	 "\"\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa\"",
	 "\xe2\x80\xa7\xe2\x80\xaf\xe2\x81\xa5\xe2\x81\xaa"},
	/* Not UTF-8: lone, overlong, surrogate, past the end, cut. */
	{IN("\x80"), "\"" BAD "\"", "\\x80"},
	{IN("\xff"), "\"" BAD "\"", "\\xff"},
	{IN("\xc1\xbf"), "\"" BAD BAD "\"", "\\xc1\\xbf"},
	{IN("\xe0\x9f\xbf"), "\"" BAD BAD BAD "\"", "\\xe0\\x9f\\xbf"},
	{IN("\xed\xa0\x80"), "\"" BAD BAD BAD "\"", "\\xed\\xa0\\x80"},
	{IN("\xf4\x90\x80\x80"), "\"" BAD BAD BAD BAD "\"", "\\xf4\\x90\\x80\\x80"},
	{IN("\xe2\x82"), "\"" BAD BAD "\"", "\\xe2\\x82"},
	{IN("\xe2\x82x"), "\"" BAD BAD "x\"", "\\xe2\\x82x"},
};

static void test_lines(void **)
{
	static const struct {
		const char *text;
		const char *lines[4];
	} texts[] = {
		{"", {NULL}},
		{"one", {"one", NULL}},
		{"one\n", {"one", NULL}},
		{"one\n\ntwo", {"one", "", "two", NULL}},
		{"\n", {"", NULL}},
	};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		const char *at = texts[i].text;
		const char *line = NULL;
		size_t n = 0;
		for (size_t j = 0; texts[i].lines[j]; j++) {
			assert_true(buf_next_line(&at, &line, &n));
			assert_int_equal(n, strlen(texts[i].lines[j]));
			assert_memory_equal(line, texts[i].lines[j], n);
		}
		assert_false(buf_next_line(&at, &line, &n));
	}
}

static void test_escaping(void **)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		scoped_buf struct buf json = BUF_INIT(100);
		scoped_buf struct buf plain = BUF_INIT(100);
		buf_json(&json, rows[i].in, rows[i].n);
		buf_plain(&plain, rows[i].in, rows[i].n);
		assert_int_equal(buf_check(&json), 0);
		assert_int_equal(buf_check(&plain), 0);
		assert_string_equal(buf_text(&json), rows[i].json);
		assert_string_equal(buf_text(&plain), rows[i].plain);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),    cmocka_unit_test(test_append),
		cmocka_unit_test(test_growth),   cmocka_unit_test(test_maximum),
		cmocka_unit_test(test_overflow), cmocka_unit_test(test_escaping),
		cmocka_unit_test(test_lines),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
