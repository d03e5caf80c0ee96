/*
 * A set of inodes: which files of the host were made or entered while one output was received.
 */
#ifndef ERMITE_CLIENT_INODES_H
#define ERMITE_CLIENT_INODES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct inode_slot {
	dev_t dev;
	ino_t ino; /* 0: free; no file system gives this number to a file */
};

struct inodes {
	struct inode_slot *slots; /* owned; open addressing, at most half full */
	size_t n, size;           /* size is 0 or a power of two */
};

#define INODES_INIT ((struct inodes){0})

/* Frees the memory; the set is empty again. */
void inodes_done(struct inodes *set);

/* Returns 0, -EEXIST when it is there already, or -ENOMEM. */
[[nodiscard]] int inodes_add(struct inodes *set, dev_t dev, ino_t ino);

/* True when it is there. */
bool inodes_has(const struct inodes *set, dev_t dev, ino_t ino);

#endif
