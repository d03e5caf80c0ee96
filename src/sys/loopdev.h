/*
 * Loop devices. Every one is detached by the kernel when its last user is gone, so a process killed at any instant
 * leaves none; none is ever detached by number or by name alone.
 */
#ifndef ERMITE_SYS_LOOPDEV_H
#define ERMITE_SYS_LOOPDEV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define LOOPDEV_PATH_MAX 32

/* Attaches the regular file open at file_fd (borrowed) to a free device, without partition scan, and checks that the
 * device holds that very file. Returns 0, a descriptor of the device (caller's; keep it open until the device is
 * mounted) and its path. */
[[nodiscard]] int loopdev_attach(int file_fd, bool read_only, int *ret_fd, char path[static LOOPDEV_PATH_MAX],
				 struct err *e);

/* The same for a file that is only read: takes the device that holds it already, if there is one, so that all its
 * users share one superblock and one page cache. */
[[nodiscard]] int loopdev_share(int file_fd, int *ret_fd, char path[static LOOPDEV_PATH_MAX], struct err *e);

/* An attached device. */
struct loopdev {
	char path[LOOPDEV_PATH_MAX];
	dev_t file_dev; /* the file that it holds */
	ino_t file_ino;
};

/* Calls fn for every attached device, until it returns something else than 0, which is returned. */
typedef int loopdev_fn(void *data, const struct loopdev *l);
int loopdev_each(loopdev_fn *fn, void *data);

/* Waits, at most ms, until a device no longer holds this file; detaches it when nobody uses it. Returns 0, also when it
 * holds another one or none, or -EBUSY when it is in use. */
[[nodiscard]] int loopdev_release(const struct loopdev *l, uint64_t ms, struct err *e);

#endif
