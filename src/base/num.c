#include "base/num.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define SIZE_MAX_MIB    ((UINT64_C(1) << 31) - 1)
#define DURATION_MAX_MS (UINT64_C(3653) * 24 * 3600 * 1000)

/* Reads decimal digits at *at and moves it behind them. Returns 0, -EINVAL when there is none, or -ERANGE (with *at
 * moved all the same, so that junk behind a number that is too large is still seen as junk). */
static int digits(const char **at, uint64_t *ret)
{
	const char *p = *at;
	uint64_t value = 0;
	bool over = false;
	for (; *p >= '0' && *p <= '9'; p++) {
		over |= __builtin_mul_overflow(value, 10u, &value);
		over |= __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value);
	}
	if (p == *at)
		return -EINVAL;
	*at = p;
	if (over)
		return -ERANGE;
	*ret = value;
	return 0;
}

static const char *skip_blanks(const char *p)
{
	return p + strspn(p, " \t");
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}

/* The number at text must be followed by nothing, or by blanks where those are allowed. */
static int parse_whole(const char *text, bool blanks, uint64_t min, uint64_t max, uint64_t *ret)
{
	const char *p = blanks ? skip_blanks(text) : text;
	uint64_t value = 0;
	int r = digits(&p, &value);
	if (blanks)
		p = skip_blanks(p);
	if (*p != '\0')
		return -EINVAL;
	if (r < 0)
		return r;
	if (value < min || value > max)
		return -ERANGE;
	*ret = value;
	return 0;
}

int num_parse(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	return parse_whole(text, false, min, max, ret);
}

int num_parse_blank(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	return parse_whole(text, true, min, max, ret);
}

/* A number with one unit letter behind it, which stands for a factor. */
struct unit {
	char letter;
	uint64_t factor;
};

static uint64_t unit_factor(const struct unit *units, size_t n, char letter)
{
	for (size_t i = 0; i < n; i++)
		if (units[i].letter == lower(letter))
			return units[i].factor;
	return 0;
}

/* value × factor, at most max. */
static int scale(uint64_t value, uint64_t factor, uint64_t max, uint64_t *ret)
{
	uint64_t product = 0;
	if (__builtin_mul_overflow(value, factor, &product) || product > max)
		return -ERANGE;
	*ret = product;
	return 0;
}

int num_parse_size_mib(const char *text, uint64_t *ret_mib)
{
	static const struct unit units[] = {{'m', 1}, {'g', 1024}, {'t', UINT64_C(1024) * 1024}};
	const char *p = skip_blanks(text);
	uint64_t value = 0;
	uint64_t factor = 1;
	int r = digits(&p, &value);
	if (r == -EINVAL)
		return r;
	uint64_t unit = unit_factor(units, sizeof(units) / sizeof(units[0]), *p);
	if (unit) {
		factor = unit;
		p++;
		if (lower(*p) == 'i')
			p++;
		if (lower(*p) == 'b')
			p++;
	}
	if (*skip_blanks(p) != '\0')
		return -EINVAL;
	if (r < 0)
		return r;
	if (value == 0)
		return -EINVAL;
	return scale(value, factor, SIZE_MAX_MIB, ret_mib);
}

int num_parse_duration_ms(const char *text, uint64_t *ret_ms)
{
	static const struct unit units[] = {
		{'s', 1000},
		{'m', UINT64_C(60) * 1000},
		{'h', UINT64_C(3600) * 1000},
		{'d', UINT64_C(24) * 3600 * 1000},
	};
	const char *p = skip_blanks(text);
	uint64_t value = 0;
	int r = digits(&p, &value);
	if (r == -EINVAL)
		return r;
	uint64_t factor = unit_factor(units, sizeof(units) / sizeof(units[0]), *p);
	if (factor)
		p++;
	else if (r < 0 || value != 0)
		return -EINVAL;
	if (*skip_blanks(p) != '\0')
		return -EINVAL;
	if (r < 0)
		return r;
	return scale(value, factor, DURATION_MAX_MS, ret_ms);
}

int num_parse_hex(const char *text, uint64_t *ret)
{
	size_t n = strlen(text);
	uint64_t value = 0;
	if (n < 1 || n > 16)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		char c = lower(text[i]);
		if (c >= '0' && c <= '9')
			value = value << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (uint64_t)(c - 'a' + 10);
		else
			return -EINVAL;
	}
	*ret = value;
	return 0;
}
