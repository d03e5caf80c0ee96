/*
 * The disk of a sandbox: the file system on its scratch file, mounted in the keeper's mount namespace at RUN_SCRATCH.
 */
#ifndef ERMITE_ISOLATION_DISK_H
#define ERMITE_ISOLATION_DISK_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "isolation/isolation.h"
#include "resource/resource.h"

/* Mounts it, limits its rates, and puts there its directories and what the system inside has to know of its name and
 * its network. image: where the image is mounted, NULL when it is not. */
[[nodiscard]] int disk_mount(const struct sandbox *s, const char *image, struct err *e);

/* What is used and free of it; all zero when it is not mounted. */
void disk_usage(struct isolated_disk *ret);

/* Unmounts it, mapped or not; keep as for isolation_ops.end. */
void disk_unmount(bool keep);

#endif
