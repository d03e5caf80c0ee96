/*
 * The container of a system sandbox: its configuration and the helper that runs it.
 */
#ifndef ERMITE_ISOLATION_SYSTEM_CONTAINER_H
#define ERMITE_ISOLATION_SYSTEM_CONTAINER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "io/child.h"
#include "spec/config.h"

struct container {
	struct child lxc; /* ermite-lxc */
	int channel;      /* to it; while it is open, the keeper lives */
	bool ended;       /* ermite-lxc was reaped */
	struct child_end end;
};

#define CONTAINER_INIT ((struct container){.lxc = CHILD_INIT, .channel = -1})

/* Starts ermite-lxc, which loads and waits. */
[[nodiscard]] int container_prepare(struct container *c, const char *id, struct err *e);

/* Sends it the configuration; the container starts. uid: first of its 65536 host ids. */
[[nodiscard]] int container_start(struct container *c, const char *id, uid_t uid, bool lxcfs,
				  const struct config *config, struct err *e);

/* Ends the helper, and with it a container whose init has not knocked yet; waits for it. */
void container_end(struct container *c);

/* The last error that liblxc logged, or "" . */
void container_log(struct buf *out);

#endif
