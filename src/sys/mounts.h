/*
 * Mounts, in a mount namespace of the caller's own: nothing made here is seen by the host or outlives the namespace.
 *
 * Paths lie in directories that only root can reach and that no sandbox can change, so they are plain strings.
 */
#ifndef ERMITE_SYS_MOUNTS_H
#define ERMITE_SYS_MOUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* Gives this process a mount namespace of its own from which nothing propagates. */
[[nodiscard]] int mount_own_namespace(struct err *e);

/* Mounts a tmpfs of at most kib KiB with mode 0755, nosuid and noexec (devices: nodev too unless allowed). */
[[nodiscard]] int mount_tmpfs(const char *target, uint32_t kib, bool devices, struct err *e);

/* Mounts an ext4 file system, never guessing the type. Whatever the superblock says, an error makes it read-only and
 * never panics. A read-only one is mounted without replaying anything; a writable one does without barriers (its
 * content dies with the sandbox) and without zeroing inode tables in the background (the image file is sparse). */
[[nodiscard]] int mount_ext4(const char *device, const char *target, bool read_only, struct err *e);

/* Puts a clone of the mount at path over itself, with ids mapped by the user namespace: an owner x on disk is seen as
 * the host id that x has there. */
[[nodiscard]] int mount_idmap(const char *path, int userns_fd, struct err *e);

/* Mounts an overlay at target. The process takes the file system ids uid and gid of mounter for the call, so that the
 * overlay, which works with the ids of its mounter, can write through an idmapped upper layer; capabilities stay. */
[[nodiscard]] int mount_overlay(const char *lower, const char *upper, const char *work, const char *target,
				uid_t mounter, struct err *e);

/* Binds source over target; read_only also for the bind only. */
[[nodiscard]] int mount_bind(const char *source, const char *target, bool read_only, struct err *e);

/* Binds path over itself, read-only, as the one place of a noexec file system where programs can be run from. */
[[nodiscard]] int mount_program(const char *path, struct err *e);

/* Opens directory/name through a copy of the mount that is attached nowhere, so that the kernel knows the file as
 * /name: the path of a loop device's file stands in /sys, which every sandbox reads. Links on the way to directory
 * are those that base/named.h permits, in name there may be none. The kernel is to read the file as a disk: it must
 * belong to root and be writable by root alone, or this is -EPERM. Returns 0 and a descriptor that the caller owns,
 * or a negative errno. */
[[nodiscard]] int mount_open_unnamed(const char *directory, const char *name, int flags, int *ret_fd,
				     struct err *e);

/* Mounts directory/base.ext4, the file system of an image, read-only at target: through one loop device, and so as
 * one superblock, for all who mount it. Returns 0 or a negative errno. */
[[nodiscard]] int mount_image_base(const char *directory, const char *target, struct err *e);

/* Makes a copy of the mount that path is in, with path as its root and everything mounted below, attached nowhere:
 * for a process of another mount namespace, to put where it likes. attributes: MOUNT_ATTR_* that it has from then
 * on; 0 for those that it had. Returns 0 and a descriptor that the caller owns, or a negative errno. */
[[nodiscard]] int mount_detached(const char *path, uint64_t attributes, int *ret_fd, struct err *e);

/* Stops an ext4 file system at once, dropping what was not written: for one whose image is deleted anyway, so that
 * unmounting writes nothing. Best effort. */
void mount_ext4_stop(const char *path);

#endif
