/*
 * The host as it is outside of the namespaces that a process gives itself later: descriptors opened at its start.
 *
 * A directory opened before unshare() goes on leading into the mounts of the namespace it was opened in.
 */
#ifndef ERMITE_SYS_HOST_H
#define ERMITE_SYS_HOST_H

#include "base/err.h"

#define HOST_RUN_DIR "/run/ermite-runner"

struct host {
	int root;   /* "/" */
	int run;    /* HOST_RUN_DIR */
	int mounts; /* the mount namespace */
};

#define HOST_INIT ((struct host){-1, -1, -1})

/* Opens them; makes HOST_RUN_DIR when it is missing. It belongs to root and only root writes to it, or this is
 * -EPERM. Returns 0 or a negative errno. */
[[nodiscard]] int host_open(struct host *h, struct err *e);

/* Closes them; idempotent. */
void host_close(struct host *h);

/* Calls fn in the host's mount namespace and comes back. The process has one thread; its working directory becomes
 * "/". Returns what fn returned, or a negative errno. A caller that cannot come back is lost (process_lost()). */
typedef int host_fn(void *data, struct err *e);
[[nodiscard]] int host_with_mounts(const struct host *h, host_fn *fn, void *data, struct err *e);

#endif
