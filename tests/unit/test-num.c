#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/num.h"

/* What a failed parse must leave as it was. */
#define UNTOUCHED 4711

struct row {
	const char *text;
	int result;
	uint64_t value;
};

static void check(int r, uint64_t value, const struct row *row)
{
	uint64_t expected = row->result == 0 ? row->value : UNTOUCHED;
	if (r != row->result || value != expected)
		fail_msg("\"%s\": returned %d with %llu, expected %d with %llu", row->text, r,
			 (unsigned long long)value, row->result, (unsigned long long)expected);
}

static void test_whole_numbers(void **)
{
	static const struct row rows[] = {
		{"0", -ERANGE, 0},
		{"9", -ERANGE, 0},
		{"10", 0, 10},
		{"11", 0, 11},
		{"0099", 0, 99},
		{"100", 0, 100},
		{"101", -ERANGE, 0},
		{"18446744073709551616", -ERANGE, 0},
		{"99999999999999999999999", -ERANGE, 0},
		{"99999999999999999999999x", -EINVAL, 0},
		{"", -EINVAL, 0},
		{"-11", -EINVAL, 0},
		{"+11", -EINVAL, 0},
		{" 11", -EINVAL, 0},
		{"11 ", -EINVAL, 0},
		{"11\n", -EINVAL, 0},
		{"1 1", -EINVAL, 0},
		{"0x11", -EINVAL, 0},
		{"1e1", -EINVAL, 0},
		{"11.0", -EINVAL, 0},
		{"abc", -EINVAL, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t value = UNTOUCHED;
		int r = num_parse(rows[i].text, 10, 100, &value);
		check(r, value, &rows[i]);
	}
	uint64_t value = 0;
	assert_int_equal(num_parse("18446744073709551615", 0, UINT64_MAX, &value), 0);
	assert_true(value == UINT64_MAX);
}

static void test_blanks(void **)
{
	static const struct row rows[] = {
		{"11", 0, 11},       {" 11", 0, 11},       {"11\t ", 0, 11},    {" \t11 ", 0, 11},
		{" ", -EINVAL, 0},   {"1 1", -EINVAL, 0},  {" 9 ", -ERANGE, 0}, {" 101 ", -ERANGE, 0},
		{"- 1", -EINVAL, 0}, {"11\n", -EINVAL, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t value = UNTOUCHED;
		int r = num_parse_blank(rows[i].text, 10, 100, &value);
		check(r, value, &rows[i]);
	}
}

static void test_sizes(void **)
{
	static const struct row rows[] = {
		{"512M", 0, 512},
		{"4G", 0, 4096},
		{"64GiB", 0, 65536},
		{"1t", 0, 1048576},
		{" 2g ", 0, 2048},
		{"1024MB", 0, 1024},
		{"4096", 0, 4096},
		{"1", 0, 1},
		{"3mib", 0, 3},
		{"3Mi", 0, 3},
		{"2147483647", 0, 2147483647},
		{"2147483648", -ERANGE, 0},
		{"2097151G", 0, 2147482624},
		{"2097152G", -ERANGE, 0},
		{"2048T", -ERANGE, 0},
		{"99999999999T", -ERANGE, 0},
		{"99999999999999999999T", -ERANGE, 0},
		{"99999999999999999999X", -EINVAL, 0},
		{"", -EINVAL, 0},
		{" ", -EINVAL, 0},
		{"0", -EINVAL, 0},
		{"0M", -EINVAL, 0},
		{"-1", -EINVAL, 0},
		{"G", -EINVAL, 0},
		{"GiB", -EINVAL, 0},
		{"12K", -EINVAL, 0},
		{"12KiB", -EINVAL, 0},
		{"12B", -EINVAL, 0},
		{"12iB", -EINVAL, 0},
		{"1x", -EINVAL, 0},
		{"1Gx", -EINVAL, 0},
		{"1GBi", -EINVAL, 0},
		{"1GG", -EINVAL, 0},
		{"4 G", -EINVAL, 0},
		{"1.5G", -EINVAL, 0},
		{"0x10", -EINVAL, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t value = UNTOUCHED;
		int r = num_parse_size_mib(rows[i].text, &value);
		check(r, value, &rows[i]);
	}
}

static void test_durations(void **)
{
	static const struct row rows[] = {
		{"0", 0, 0},
		{"0s", 0, 0},
		{"90s", 0, 90'000},
		{"30m", 0, 1'800'000},
		{"6h", 0, 21'600'000},
		{"2d", 0, 172'800'000},
		{" 6H ", 0, 21'600'000},
		{"3653d", 0, 315'619'200'000},
		{"3654d", -ERANGE, 0},
		{"99999999999999999999s", -ERANGE, 0},
		{"18446744073709551615d", -ERANGE, 0},
		{"", -EINVAL, 0},
		{"90", -EINVAL, 0},
		{"99999999999999999999", -EINVAL, 0},
		{"h", -EINVAL, 0},
		{"-1h", -EINVAL, 0},
		{"1h30m", -EINVAL, 0},
		{"1 h", -EINVAL, 0},
		{"1w", -EINVAL, 0},
		{"1ms", -EINVAL, 0},
		{"0x", -EINVAL, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t value = UNTOUCHED;
		int r = num_parse_duration_ms(rows[i].text, &value);
		check(r, value, &rows[i]);
	}
}

static void test_hexadecimal(void **)
{
	static const struct row rows[] = {
		{"0", 0, 0},         {"fF", 0, 255},     {"0123456789abcdef", 0, 0x0123456789abcdef},
		{"", -EINVAL, 0},    {"g", -EINVAL, 0},  {"ffffffffffffffff", 0, UINT64_MAX},
		{"0x1", -EINVAL, 0}, {"-1", -EINVAL, 0}, {"0ffffffffffffffff", -EINVAL, 0},
		{" 1", -EINVAL, 0},  {"1 ", -EINVAL, 0}, {"/", -EINVAL, 0},
		{":", -EINVAL, 0},   {"`", -EINVAL, 0},  {"@", -EINVAL, 0},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t value = UNTOUCHED;
		int r = num_parse_hex(rows[i].text, &value);
		check(r, value, &rows[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_whole_numbers), cmocka_unit_test(test_blanks),
		cmocka_unit_test(test_sizes),         cmocka_unit_test(test_durations),
		cmocka_unit_test(test_hexadecimal),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
