#include "base/clock.h"

#include <stddef.h>
#include <stdio.h>
#include <time.h>

/* The clocks asked for exist on every kernel with openat2(), so clock_gettime() has no way to fail. */
static struct timespec now(clockid_t id)
{
	struct timespec t = {0};
	(void)clock_gettime(id, &t);
	return t;
}

uint64_t clock_boot_ns(void)
{
	struct timespec t = now(CLOCK_BOOTTIME);
	return (uint64_t)t.tv_sec * 1'000'000'000 + (uint64_t)t.tv_nsec;
}

uint64_t clock_boot_ms(void)
{
	return clock_boot_ns() / 1'000'000;
}

uint64_t clock_wall_s(void)
{
	return (uint64_t)now(CLOCK_REALTIME).tv_sec;
}

void clock_format_utc(uint64_t wall_s, char text[static 21])
{
	/* The last second of the year 9999, so that the text always has its one form. */
	const uint64_t last = 253402300799;
	time_t t = (time_t)(wall_s < last ? wall_s : last);
	struct tm tm = {0};
	(void)gmtime_r(&t, &tm);
	(void)strftime(text, 21, "%Y-%m-%dT%H:%M:%SZ", &tm);
}
