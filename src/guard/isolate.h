/*
 * Isolating one of our own processes, in three stages.
 *
 * 1. Initial: started by the keeper with exactly the descriptors on its list (io/child.h), in new pid, mount,
 *    network, IPC, UTS and cgroup namespaces, still root. It has read nothing but its configuration, which is ours.
 * 2. isolate_enter(): an empty read-only root of its own, no supplementary groups, a uid and gid that nobody else
 *    has, no capabilities in any set, the bounding one included, no_new_privs, not dumpable, rlimits that allow no
 *    file and no process, and a seccomp filter that kills on anything not listed by the caller.
 * 3. Only now does it read a byte that a sandbox could have written.
 *
 * The list of system calls stands beside the code that needs them: in the program's own file.
 */
#ifndef ERMITE_GUARD_ISOLATE_H
#define ERMITE_GUARD_ISOLATE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "io/child.h"

/* The namespaces that the keeper gives a helper at birth (clone flags for io/child.h). */
uint64_t isolate_clone_flags(void);

/* How to start a helper that will isolate itself: in these namespaces, with exactly these descriptors and no
 * environment, ended with its parent. Everything is borrowed, as struct child_plan says. */
struct child_plan isolate_plan(const char *path, const char *const *arguments, const int *fds, size_t n_fds);

/* A system call that is allowed when one argument, under the mask, has this value; with several rows any of them does.
 * The mask for a descriptor is of 32 bits, since the kernel looks at no more of it. */
struct isolate_rule {
	int number;
	unsigned argument; /* 0 is the first */
	uint64_t mask, value;
};

struct isolate_plan {
	uid_t uid;           /* and gid: not 0 */
	const int *syscalls; /* allowed numbers (libseccomp's), any arguments */
	size_t n_syscalls;
	const struct isolate_rule *rules; /* for numbers that are not in syscalls */
	size_t n_rules;
	uint64_t memory_bytes; /* RLIMIT_AS */
	uint32_t files;        /* RLIMIT_NOFILE */
};

/* Stage 2 as above; mmap and mprotect, if listed, are allowed without PROT_EXEC only. Returns 0 or a negative errno,
 * after which the process must end: it may be half isolated. */
[[nodiscard]] int isolate_enter(const struct isolate_plan *plan, struct err *e);

#endif
