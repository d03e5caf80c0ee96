/*
 * A tree of files as a stream of bytes: the content of workspaces and outputs on their way in and out.
 *
 * An entry is a fixed head of TREE_HEAD bytes (kind, mode, size, mtime, length of name, length of target), the name,
 * the link's target, and for a file its content as segments: {u64 offset, u32 length} and that many bytes, the last
 * one {size, 0}. Holes are simply not sent. TREE_END closes the stream. All integers are little-endian.
 *
 * The reader is a state machine that is fed any chunks and never sees more than one head at a time: no heap, no
 * recursion. It refuses names that are absolute, empty, longer than TREE_NAME_MAX, hold "." or ".." or an empty
 * component or a zero byte; links whose target is absolute or climbs out of the tree; segments out of order or past
 * the size; more bytes or entries than the caller allows. The conduit runs it over what a guest sends and passes on
 * only what it accepted; whoever makes the files reads the same bytes again, with the same checks.
 */
#ifndef ERMITE_WIRE_TREE_H
#define ERMITE_WIRE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define TREE_HEAD      32
#define TREE_SEGMENT   12
#define TREE_NAME_MAX  4095
#define TREE_CHUNK_MAX 65536u /* bytes of one segment */

enum tree_kind { TREE_DIRECTORY = 1, TREE_FILE = 2, TREE_LINK = 3, TREE_SKIPPED = 4, TREE_END = 5 };

/* TREE_SKIPPED names something that was not sent: a device, a socket, a FIFO, or a link out of the tree. */
struct tree_entry {
	enum tree_kind kind;
	uint32_t mode; /* permission bits, 0..0777 */
	uint64_t size; /* of a file's content, holes included */
	int64_t mtime_s;
	const char *name;   /* relative, terminated; a directory may be ".", the root itself */
	const char *target; /* of a link, terminated, else "" */
};

/* What the reader found in the bytes fed so far. */
enum tree_event { TREE_MORE, TREE_ENTRY, TREE_DATA, TREE_FILE_DONE, TREE_DONE };

struct tree_reader {
	uint64_t bytes_max; /* most bytes of content and of apparent size, all files together */
	uint64_t entries_max;
	uint64_t bytes, entries;
	int state;
	size_t have; /* bytes collected of the current head */
	uint8_t head[TREE_HEAD];
	char name[TREE_NAME_MAX + 1];
	char target[TREE_NAME_MAX + 1];
	size_t name_n, target_n;
	struct tree_entry entry;
	uint64_t at; /* offset within the file */
	uint64_t segment_left;
};

/* Prepares a reader with its limits. */
void tree_reader_init(struct tree_reader *r, uint64_t bytes_max, uint64_t entries_max);

/* Consumes from *p, *n (moved forward) up to the next event. TREE_ENTRY: r->entry is valid until the next call.
 * TREE_DATA: *ret_data, *ret_n (borrowed, inside the input) belong at *ret_offset of the file. TREE_FILE_DONE: the
 * file is complete. TREE_DONE: the stream is, and nothing may follow. TREE_MORE: all is consumed, feed more. Returns
 * an event or -EPROTO, -EFBIG; after an error, and after the end, any further byte is -EPROTO. */
[[nodiscard]] int tree_read(struct tree_reader *r, const uint8_t **p, size_t *n, const uint8_t **ret_data,
			    size_t *ret_n, uint64_t *ret_offset, struct err *e);

/* Writes an entry's head, name and target into p (at least TREE_HEAD + 2 * (TREE_NAME_MAX + 1) bytes); of TREE_END only
 * the kind counts. Returns the bytes used, or -EINVAL for an entry that the reader would refuse. */
[[nodiscard]] ptrdiff_t tree_write_entry(const struct tree_entry *entry, uint8_t *p);

/* Writes the head of a segment into p; length 0 with offset = size closes the file. */
void tree_write_segment(uint64_t offset, uint32_t length, uint8_t p[static TREE_SEGMENT]);

/* True when a link at name (relative to the root of the tree) with this target stays inside the tree, whatever other
 * links the tree holds: as many leading ".." as name has directories, and none behind a named component. */
bool tree_link_inside(const char *name, const char *target);

#endif
