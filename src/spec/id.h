/*
 * Sandbox ids and slots, and every name and number that is derived from them.
 *
 * An id is "er" and 8 lower-case hex digits. Whatever is read back from disk or /proc is checked with id_valid()
 * before it is used in a path or a match. A slot is a small integer; the lowest free one is taken.
 */
#ifndef ERMITE_SPEC_ID_H
#define ERMITE_SPEC_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define ID_SIZE   11 /* bytes of an id with its end */
#define SLOT_IDS  65536
#define SLOTS_MAX 1024

/* Fills id from the kernel's random source. Returns 0 or a negative errno. */
[[nodiscard]] int id_make(char id[static ID_SIZE], struct err *e);

/* True for exactly "er" and 8 lower-case hex digits. */
bool id_valid(const char *id);

/* Which slots are taken. */
struct slots {
	uint64_t taken[SLOTS_MAX / 64];
};

#define SLOTS_INIT ((struct slots){0})

/* Takes the lowest free slot below capacity. Returns it, or -ENOSPC when all are taken. */
[[nodiscard]] int slots_take(struct slots *s, uint32_t capacity);

/* Marks a slot as taken (one found in a record). Numbers past the end are ignored. */
void slots_mark(struct slots *s, uint32_t slot);

/* Frees a slot; freeing twice, or one that was never taken, does nothing. */
void slots_release(struct slots *s, uint32_t slot);

/* First of the SLOT_IDS host ids of a system sandbox. */
uint32_t slot_uid_first(uint32_t uid_base, uint32_t slot);

/* Host uid and gid of a slot's helpers. They lie in the first 65536 ids of the range, which no sandbox maps: the
 * virtual machines have base + slot, the helpers follow in blocks of 1024. */
uint32_t slot_uid_vm(uint32_t uid_base, uint32_t slot);
uint32_t slot_uid_conduit(uint32_t uid_base, uint32_t slot);
uint32_t slot_uid_dns(uint32_t uid_base, uint32_t slot);
uint32_t slot_uid_relay(uint32_t uid_base, uint32_t slot);

#endif
