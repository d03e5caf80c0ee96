/*
 * A cursor over bytes from outside. Reads past the end return zero and latch `bad`: parse to the end, then ask
 * rd_finish() once. All integers are little-endian. Pointers into the bytes are borrowed from the caller.
 */
#ifndef ERMITE_BASE_RD_H
#define ERMITE_BASE_RD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rd {
	const uint8_t *p;
	const uint8_t *end;
	bool bad;
};

static inline struct rd rd_over(const void *p, size_t n)
{
	const uint8_t *bytes = p;
	return (struct rd){.p = bytes, .end = bytes + n};
}

/* Bytes not yet read. */
static inline size_t rd_left(const struct rd *r)
{
	return (size_t)(r->end - r->p);
}

/* The next n bytes, or NULL (and bad) when there are fewer. */
static inline const uint8_t *rd_bytes(struct rd *r, size_t n)
{
	if (r->bad || rd_left(r) < n) {
		r->bad = true;
		return NULL;
	}
	const uint8_t *at = r->p;
	r->p += n;
	return at;
}

static inline uint64_t rd_uint(struct rd *r, unsigned n_bytes)
{
	const uint8_t *at = rd_bytes(r, n_bytes);
	uint64_t value = 0;
	for (unsigned i = 0; at && i < n_bytes; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

static inline uint8_t rd_u8(struct rd *r)
{
	return (uint8_t)rd_uint(r, 1);
}

static inline uint32_t rd_u32(struct rd *r)
{
	return (uint32_t)rd_uint(r, 4);
}

static inline uint64_t rd_u64(struct rd *r)
{
	return rd_uint(r, 8);
}

/* True when every read fitted and nothing is left over. */
static inline bool rd_finish(const struct rd *r)
{
	return !r->bad && r->p == r->end;
}

/* Stores a little-endian integer of n_bytes at p. */
static inline void wr_uint(uint8_t *p, uint64_t value, unsigned n_bytes)
{
	for (unsigned i = 0; i < n_bytes; i++)
		p[i] = (uint8_t)(value >> (8 * i));
}

#endif
