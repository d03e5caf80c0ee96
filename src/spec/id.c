#include "spec/id.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* The width of each block of helper ids below those of system sandboxes. */
enum { HELPER_BLOCK = SLOTS_MAX };

int id_make(char id[static ID_SIZE], struct err *e)
{
	uint32_t random = 0;
	ssize_t n = -1;
	do
		n = getrandom(&random, sizeof(random), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, "getrandom");
	(void)snprintf(id, ID_SIZE, "er%08x", random);
	return 0;
}

bool id_valid(const char *id)
{
	return strlen(id) == ID_SIZE - 1 && id[0] == 'e' && id[1] == 'r' &&
	       strspn(id + 2, "0123456789abcdef") == ID_SIZE - 3;
}

int slots_take(struct slots *s, uint32_t capacity)
{
	for (uint32_t slot = 0; slot < capacity && slot < SLOTS_MAX; slot++) {
		uint64_t bit = UINT64_C(1) << slot % 64;
		if (!(s->taken[slot / 64] & bit)) {
			s->taken[slot / 64] |= bit;
			return (int)slot;
		}
	}
	return -ENOSPC;
}

void slots_mark(struct slots *s, uint32_t slot)
{
	if (slot < SLOTS_MAX)
		s->taken[slot / 64] |= UINT64_C(1) << slot % 64;
}

void slots_release(struct slots *s, uint32_t slot)
{
	if (slot < SLOTS_MAX)
		s->taken[slot / 64] &= ~(UINT64_C(1) << slot % 64);
}

uint32_t slot_uid_first(uint32_t uid_base, uint32_t slot)
{
	return uid_base + SLOT_IDS * (slot + 1);
}

uint32_t slot_uid_vm(uint32_t uid_base, uint32_t slot)
{
	return uid_base + slot;
}

uint32_t slot_uid_conduit(uint32_t uid_base, uint32_t slot)
{
	return uid_base + HELPER_BLOCK + slot;
}

uint32_t slot_uid_dns(uint32_t uid_base, uint32_t slot)
{
	return uid_base + 2 * HELPER_BLOCK + slot;
}

uint32_t slot_uid_relay(uint32_t uid_base, uint32_t slot)
{
	return uid_base + 3 * HELPER_BLOCK + slot;
}
