/*
 * The root file system of a system sandbox, built in the keeper's mount namespace from the image and the scratch
 * file.
 */
#ifndef ERMITE_ISOLATION_SYSTEM_ROOTFS_H
#define ERMITE_ISOLATION_SYSTEM_ROOTFS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "resource/resource.h"

/* Makes the private /run with its directories, the two device nodes and a copy of the guest program and its filter,
 * which are in guest_dir. */
[[nodiscard]] int rootfs_prepare_run(const char *guest_dir, struct err *e);

/* True when the mounted image brings an init of its own, and whether that is systemd. */
bool rootfs_has_init(bool *ret_systemd);

/* Mounts the sandbox's disk, then the overlay of it and the image at RUN_ROOT. uid: first host id of the sandbox. */
[[nodiscard]] int rootfs_mount(const struct sandbox *s, uid_t uid, struct err *e);

/* Unmounts everything, whatever was mounted; keep_disk as for isolation_ops.end. */
void rootfs_unmount(bool keep_disk);

#endif
