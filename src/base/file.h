/*
 * Small files and directories, by descriptor. Paths are resolved with openat2() so that a link in the way is an
 * error, never followed. Used for state, /proc and /sys; not for streams.
 */
#ifndef ERMITE_BASE_FILE_H
#define ERMITE_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* Opens path below dirfd, never leaving it and following no link (openat2 RESOLVE_BENEATH, NO_SYMLINKS,
 * NO_MAGICLINKS). flags as for open(2), O_CLOEXEC is added; mode is used with O_CREAT. Returns 0 and a descriptor
 * that the caller owns, or a negative errno. Where the kernel has no openat2() the path is walked component by
 * component with O_NOFOLLOW. An absolute path, and one with a ".." in it, is refused with -EXDEV; a link with -ELOOP
 * or, in the walk, -ENOTDIR. */
[[nodiscard]] int file_open_beneath(int dirfd, const char *path, int flags, mode_t mode, int *ret_fd,
				    struct err *e);

/* Opens path as a process whose root directory is dirfd would, following links inside it only (openat2
 * RESOLVE_IN_ROOT): for the root file systems of images. Returns 0 and a descriptor that the caller owns, or a
 * negative errno; there is no fallback where the kernel has no openat2(). */
[[nodiscard]] int file_open_in_root(int dirfd, const char *path, int flags, int *ret_fd, struct err *e);

/* Reads a whole file below dirfd (AT_FDCWD: an ordinary path, links followed) of at most size - 1 bytes into text,
 * terminated, with the final newline cut. text is scratch on failure. Returns the length or a negative errno; -EFBIG
 * when it is larger. */
[[nodiscard]] ssize_t file_read_text(int dirfd, const char *path, char *text, size_t size, struct err *e);

/* Writes all of n bytes, also over short writes and EINTR. Returns 0 or a negative errno. */
[[nodiscard]] int file_write_all(int fd, const void *p, size_t n, struct err *e);

/* Reads until n bytes or the end. Returns the count or a negative errno. */
[[nodiscard]] ssize_t file_read_all(int fd, void *p, size_t n, struct err *e);

/* Writes text to an existing file in one write(2), as /proc and /sys want it (nothing is truncated). dirfd as for
 * file_read_text(). Returns 0 or a negative errno. */
[[nodiscard]] int file_put(int dirfd, const char *path, const char *text, struct err *e);

/* Reads a file that holds one decimal number ("max" is UINT64_MAX). dirfd as for file_read_text(). Returns 0 or a
 * negative errno. */
[[nodiscard]] int file_read_u64(int dirfd, const char *path, uint64_t *ret, struct err *e);

/* Replaces the file name (one component, else -EINVAL) in dirfd atomically: temporary file, fsync, rename, fsync of
 * the directory. Returns 0 or a negative errno, the old content then still in place. */
[[nodiscard]] int file_replace(int dirfd, const char *name, mode_t mode, const void *p, size_t n,
			       struct err *e);

/* Removes name (one component, else -EINVAL) in dirfd with everything in it, however deep, never following a link nor
 * crossing into another file system or a mount. A name that is not there is fine. Goes on after an error and returns
 * the first one met. */
[[nodiscard]] int file_remove_tree(int dirfd, const char *name, struct err *e);

/* Makes a directory and its missing parents (mode 0755 for parents, the given mode for the last). path is absolute.
 * Returns 0 or a negative errno. */
[[nodiscard]] int file_make_dirs(const char *path, mode_t mode, struct err *e);

/* Opens a directory that nobody but root can change or replace: it and every parent belong to root, cannot be written
 * by group or others and are no links. path is absolute. Returns 0 and a descriptor
 * that the caller owns; -EPERM with the path that is unfit; or another negative errno. */
[[nodiscard]] int file_open_owned(const char *path, int *ret_fd, struct err *e);

/* The same for a directory that is open and whose parent is fit; path is what messages call it. Returns 0, -EPERM or
 * another negative errno. */
[[nodiscard]] int file_check_owned(int fd, const char *path, struct err *e);

/* Refuses a file system of another machine or of a program (NFS, FUSE and their like), where locks, sparse files and
 * loop devices are not to be trusted. Returns 0, -ENOTSUP or another negative errno. */
[[nodiscard]] int file_check_local(int fd, const char *path, struct err *e);

/* Sees to it that this process may have n descriptors, raising its own limit when it must. Returns 0, or -EMFILE when
 * it may not: better to know before the work than in the middle of it. */
[[nodiscard]] int file_need_descriptors(unsigned n, struct err *e);

/* The same for so many MiB of address space: with less, programs that this one starts could not even be loaded.
 * Returns 0 or -ENOMEM. */
[[nodiscard]] int file_need_memory(unsigned mib, struct err *e);

/* Writes the path of an open file into path, as the kernel knows it now. Returns 0, -ENAMETOOLONG when it has no room
 * in size bytes, or another negative errno. */
[[nodiscard]] int file_path(int fd, char *path, size_t size, struct err *e);

/* Makes an anonymous sealed file holding n bytes, positioned at 0; the way to hand bytes to another process.
 * Returns 0 and a descriptor that the caller owns, or a negative errno. */
[[nodiscard]] int file_memfd(const char *name, const void *p, size_t n, int *ret_fd, struct err *e);

#endif
