/*
 * Time. Deadlines count on CLOCK_BOOTTIME, which goes on while the host sleeps and never steps; the wall clock is for
 * display only.
 */
#ifndef ERMITE_BASE_CLOCK_H
#define ERMITE_BASE_CLOCK_H

#include <stdint.h>

/* Milliseconds since boot, CLOCK_BOOTTIME. */
uint64_t clock_boot_ms(void);

/* Nanoseconds since boot, CLOCK_BOOTTIME. */
uint64_t clock_boot_ns(void);

/* Seconds since 1970, wall clock. */
uint64_t clock_wall_s(void);

/* Writes a UTC time as 2026-01-31T12:34:56Z into text (at least 21 bytes). */
void clock_format_utc(uint64_t wall_s, char text[static 21]);

#endif
