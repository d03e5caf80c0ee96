/*
 * Numbers from text, and nothing but numbers: the whole string, decimal digits only, no sign, a stated range.
 *
 * Used wherever a number comes from outside: configuration, options, /proc, records.
 */
#ifndef ERMITE_BASE_NUM_H
#define ERMITE_BASE_NUM_H

#include <stdint.h>

/* Parses a whole decimal number in min..max; blanks around it are refused. Returns 0, -EINVAL (not a number) or
 * -ERANGE. *ret is written on success only. */
[[nodiscard]] int num_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* As num_parse(), with blanks allowed before and after, as the configuration does. */
[[nodiscard]] int num_parse_blank(const char *text, uint64_t min, uint64_t max, uint64_t *ret);

/* Parses a size into MiB: a bare number is MiB; M, G, T with or without i and B, any case, are binary; blanks around
 * it are allowed. Returns 0, -EINVAL (empty, zero, K, junk) or -ERANGE (past 2^31-1 MiB). */
[[nodiscard]] int num_parse_size_mib(const char *text, uint64_t *ret_mib);

/* Parses a duration into milliseconds: digits and one of s, m, h, d; "0" alone is 0;
 * blanks around it are allowed. Returns 0, -EINVAL or -ERANGE
 * (past 10 years). */
[[nodiscard]] int num_parse_duration_ms(const char *text, uint64_t *ret_ms);

/* Parses hexadecimal digits only, 1 to 16 of them. Returns 0 or -EINVAL. */
[[nodiscard]] int num_parse_hex(const char *text, uint64_t *ret);

#endif
