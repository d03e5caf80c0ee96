/*
 * When the system inside is up: systemd, as PID 1, says READY=1 on the socket that NOTIFY_SOCKET names, and Docker's
 * socket listens if the image has its socket unit enabled. Our own PID 1 of a container has waited for Docker by itself
 * and says so on the same socket.
 */
#ifndef ERMITE_GUEST_READY_H
#define ERMITE_GUEST_READY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

#define READY_ADDRESS "@ermite-notify" /* for NOTIFY_SOCKET: an abstract name */

typedef int ready_fn(void *data, struct err *e);

/* Lives in its owner's memory; the loop points to it. */
struct ready {
	struct source *notify, *timer;
	ready_fn *fn;
	void *data;
	uint64_t deadline_ms;
	bool told;
};

/* Makes the socket; this must happen before the init starts. Returns 0 and a descriptor that the caller owns. */
[[nodiscard]] int ready_bind(int *ret_fd, struct err *e);

/* Says from PID 1 that everything is up. Returns 0 or a negative errno. */
[[nodiscard]] int ready_say(struct err *e);

/* Whether Docker's socket listens. Looks at the kernel's table: a connection would make systemd start Docker. */
bool ready_docker_listens(void);

/* Waits on the socket fd (borrowed) and calls fn once. What comes later is read and dropped, so that no sender blocks.
 * Returns 0 or a negative errno. */
[[nodiscard]] int ready_watch(struct ready *r, struct loop *loop, int fd, ready_fn *fn, void *data,
			      struct err *e);

#endif
