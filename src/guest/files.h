/*
 * Trees of files in and out (wire/tree.h), run in a child of the executor whose standard streams carry the bytes.
 */
#ifndef ERMITE_GUEST_FILES_H
#define ERMITE_GUEST_FILES_H

#include "base/err.h"

/* The path to send is not there. */
#define FILES_MISSING 1

/* Reads a tree from in to its end and makes it below directory, with the rights of the caller. Directories that are
 * there are merged, anything else of the same name is replaced; no link is ever followed. Modes and times are those of
 * the tree. Both descriptors are borrowed. Returns 0 or a negative errno with what went wrong. */
[[nodiscard]] int files_put(int in, int directory, struct err *e);

/* Writes the file or directory path, taken from directory unless it is absolute, to out as a tree named after its last
 * component ("." for a path that ends in none). Devices, sockets, FIFOs, links that lead out of the tree and what lies
 * deeper than 128 directories is named as skipped. A file that changes meanwhile is sent as long as it was when it was
 * opened, with zeros for what has gone. Both descriptors are borrowed. Returns 0; FILES_MISSING with a message; a
 * negative errno. */
[[nodiscard]] int files_get(int directory, const char *path, int out, struct err *e);

#endif
