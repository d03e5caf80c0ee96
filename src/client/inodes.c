#include "client/inodes.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 64 };

void inodes_done(struct inodes *set)
{
	free(set->slots);
	*set = INODES_INIT;
}

/* The slot that holds the inode, or the free one where it belongs. */
static struct inode_slot *find(const struct inodes *set, dev_t dev, ino_t ino)
{
	/* Inode numbers come one after the other: multiplying spreads them. */
	size_t at = (size_t)((ino ^ dev << 32) * UINT64_C(0x9e3779b97f4a7c15) >> 20);
	for (;; at++) {
		struct inode_slot *s = &set->slots[at & (set->size - 1)];
		if (s->ino == 0 || (s->ino == ino && s->dev == dev))
			return s;
	}
}

static int grow(struct inodes *set)
{
	struct inodes bigger = {.size = set->size ? set->size * 2 : FIRST_SLOTS, .n = set->n};
	bigger.slots = calloc(bigger.size, sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	for (size_t i = 0; i < set->size; i++)
		if (set->slots[i].ino != 0)
			*find(&bigger, set->slots[i].dev, set->slots[i].ino) = set->slots[i];
	free(set->slots);
	*set = bigger;
	return 0;
}

int inodes_add(struct inodes *set, dev_t dev, ino_t ino)
{
	if (set->n >= set->size / 2) {
		int r = grow(set);
		if (r < 0)
			return r;
	}
	struct inode_slot *s = find(set, dev, ino);
	if (s->ino != 0)
		return -EEXIST;
	*s = (struct inode_slot){.dev = dev, .ino = ino};
	set->n++;
	return 0;
}

bool inodes_has(const struct inodes *set, dev_t dev, ino_t ino)
{
	return set->size > 0 && find(set, dev, ino)->ino != 0;
}
