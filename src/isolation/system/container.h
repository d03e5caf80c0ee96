/*
 * The container of a system sandbox: its configuration, the helper that runs it, and the door.
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
	int init_pidfd;   /* the container's init, once it knocked */
	bool ended;       /* ermite-lxc was reaped */
	struct child_end end;
};

#define CONTAINER_INIT ((struct container){.lxc = CHILD_INIT, .channel = -1, .init_pidfd = -1})

/* Starts ermite-lxc, which loads and waits. */
[[nodiscard]] int container_prepare(struct container *c, const char *id, struct err *e);

/* Sends it the configuration; the container starts. uid: first of its 65536 host ids. */
[[nodiscard]] int container_start(struct container *c, const char *id, uid_t uid, bool lxcfs,
				  const struct config *config, struct err *e);

/* Takes the knock at the door: the peer must be host id uid. Returns 0, a connected descriptor on which one byte lets
 * it go on, and its pid; its pidfd is kept. */
[[nodiscard]] int container_knock(struct container *c, int door_fd, uid_t uid, int *ret_fd, pid_t *ret_pid,
				  struct err *e);

/* Ends the container: kills init, and with it everything inside, and the helper; waits for both. */
void container_end(struct container *c);

/* The last error that liblxc logged, or "" . */
void container_log(struct buf *out);

#endif
