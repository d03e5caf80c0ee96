#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"

static void test_boot_time_runs(void **)
{
	struct timespec t = {0};
	assert_int_equal(clock_gettime(CLOCK_BOOTTIME, &t), 0);
	uint64_t before = (uint64_t)t.tv_sec * 1'000'000'000 + (uint64_t)t.tv_nsec;
	uint64_t ns = clock_boot_ns();
	uint64_t ms = clock_boot_ms();
	assert_true(ns >= before);
	assert_true(ms >= ns / 1'000'000);
	assert_true(ms < ns / 1'000'000 + 60'000);
	const struct timespec pause = {.tv_nsec = 2'000'000};
	assert_int_equal(nanosleep(&pause, NULL), 0);
	assert_true(clock_boot_ns() >= ns + 2'000'000);
}

static void test_wall_clock(void **)
{
	time_t before = time(NULL);
	uint64_t now = clock_wall_s();
	assert_true(now + 1 >= (uint64_t)before && now <= (uint64_t)before + 60);
}

static void test_format(void **)
{
	static const struct {
		uint64_t wall_s;
		const char *text;
	} rows[] = {
		{0, "1970-01-01T00:00:00Z"},
		{951827696, "2000-02-29T12:34:56Z"},
		{1769862896, "2026-01-31T12:34:56Z"},
		{4294967296, "2106-02-07T06:28:16Z"},
		{253402300799, "9999-12-31T23:59:59Z"},
		{253402300800, "9999-12-31T23:59:59Z"},
		{UINT64_MAX, "9999-12-31T23:59:59Z"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char text[21];
		clock_format_utc(rows[i].wall_s, text);
		assert_string_equal(text, rows[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_boot_time_runs),
		cmocka_unit_test(test_wall_clock),
		cmocka_unit_test(test_format),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
