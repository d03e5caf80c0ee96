/*
 * The system call filter of a system sandbox: loaded by its first process, so that everything inside has it.
 */
#ifndef ERMITE_GUEST_FILTER_H
#define ERMITE_GUEST_FILTER_H

#include "base/err.h"

/* Where the host attaches the compiled filter, beside this program. */
#define FILTER_PATH "/opt/ermite/seccomp.bpf"

/* Loads the program at path for this process and all it will start. Needs the right to do so without no_new_privs
 * (root in its user namespace): sudo has to work inside. Returns 0 or a negative errno. */
[[nodiscard]] int filter_load(const char *path, struct err *e);

#endif
