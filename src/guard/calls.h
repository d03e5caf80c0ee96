/*
 * What a build needs of the kernel beyond what an isolated program's own code does: nothing in a plain build (calls.c),
 * what the address sanitizer's runtime does in a sanitized one (calls-sanitized.c). Meson picks the file.
 */
#ifndef ERMITE_GUARD_CALLS_H
#define ERMITE_GUARD_CALLS_H

#include <stddef.h>
#include <stdint.h>

#define EXTRA_CALLS_MAX 16

/* Writes the numbers of further system calls to ret. Returns how many. */
size_t extra_calls(int ret[static EXTRA_CALLS_MAX]);

/* Bytes of address space that a process may have whose own code needs bytes of it. */
uint64_t memory_max(uint64_t bytes);

#endif
