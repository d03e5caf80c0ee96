/*
 * The keeper's private /run: a tmpfs in a mount namespace of its own, where everything that a sandbox is given lies
 * and that is gone with the last process that sees it. What stands where is in isolation/layout.h.
 */
#ifndef ERMITE_ISOLATION_PRIVATE_RUN_H
#define ERMITE_ISOLATION_PRIVATE_RUN_H

#include <sys/types.h>

#include "base/err.h"
#include "spec/config.h"

/* Finds the directory of the guest program and its filter on the host, and checks that both can be used. Returns 0
 * or a negative errno with the fix. */
[[nodiscard]] int private_run_guest(char path[static CONFIG_PATH_MAX], struct err *e);

/* Gives this process a mount namespace of its own with a private /run: its directories, and a copy of what is in
 * guest_dir. */
[[nodiscard]] int private_run_make(const char *guest_dir, struct err *e);

/* Makes a directory with exactly this mode, whatever the umask. */
[[nodiscard]] int private_run_dir(const char *path, mode_t mode, struct err *e);

/* Binds a directory of the host read-only at RUN_EXTERNALS; an empty path is none. */
[[nodiscard]] int private_run_externals(const char *externals, struct err *e);

#endif
