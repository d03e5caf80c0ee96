/*
 * Directories inside the sandbox that a job is to work in.
 *
 * Links of the image are followed, the magic ones of /proc never: a directory that is only reachable through somebody's
 * descriptor is no place to start in.
 */
#ifndef ERMITE_GUEST_PATHS_H
#define ERMITE_GUEST_PATHS_H

#include "base/err.h"
#include "guest/users.h"

/* Opens path below dirfd (or where it says, if it is absolute) without going through a magic link. flags as for
 * open(2), O_CLOEXEC is added. Returns 0 and a descriptor that the caller owns, or a negative errno. */
[[nodiscard]] int paths_open(int dirfd, const char *path, int flags, int *ret_fd, struct err *e);

/* As paths_open(), with root in place of "/" for the path and for every link in it. */
[[nodiscard]] int paths_open_root(int root, const char *path, int flags, int *ret_fd, struct err *e);

/* Makes a directory and its missing parents with mode 0755; the ones it makes belong to u. path is absolute. Returns 0
 * or a negative errno. */
[[nodiscard]] int paths_make(const char *path, const struct user *u, struct err *e);

/* Where a process starts that was given no directory: the first that the caller may enter of /home/runner/work and
 * the home of u, else "/". The text is borrowed from u or constant. */
const char *paths_default(const struct user *u);

/* Makes path the current directory and checks that the kernel can name it. Returns 0 or a negative errno. */
[[nodiscard]] int paths_enter(const char *path, struct err *e);

#endif
