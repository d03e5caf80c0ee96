/*
 * An event loop over epoll: descriptors, timers, signals and children, one callback each.
 *
 * A source belongs to the loop and is removed with loop_remove(), also from within its own callback or another's.
 * Callbacks return 0 to go on or a negative errno, which ends loop_run() with that code. Single-threaded. The same
 * code runs on the host and in the static guest program.
 */
#ifndef ERMITE_IO_LOOP_H
#define ERMITE_IO_LOOP_H

#include <signal.h>
#include <stdint.h>

#include "base/err.h"

struct loop;
struct source;

/* events: EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR as epoll gave them. */
typedef int loop_fd_fn(void *data, int fd, uint32_t events, struct err *e);
typedef int loop_timer_fn(void *data, struct err *e);
typedef int loop_signal_fn(void *data, int signal, struct err *e);

/* A new loop, NULL with errno when the kernel or memory refuses. */
struct loop *loop_new(void);

/* Frees the loop with every source in it; not from within a callback. NULL is fine. */
void loop_free(struct loop *l);
#define scoped_loop __attribute__((cleanup(loop_scope)))
static inline void loop_scope(struct loop **l)
{
	loop_free(*l);
}

/* Watches a descriptor, which stays the caller's. events: EPOLLIN | EPOLLOUT, or 0 to watch for hang-up only.
 * Returns 0 and the source (owned by the loop). */
[[nodiscard]] int loop_add_fd(struct loop *l, int fd, uint32_t events, loop_fd_fn *fn, void *data,
			      struct source **ret, struct err *e);

/* Changes what is watched; with the same events nothing happens. */
[[nodiscard]] int loop_set_events(struct source *s, uint32_t events, struct err *e);

/* A timer on CLOCK_BOOTTIME, disarmed. Returns 0 and the source (owned by the loop). */
[[nodiscard]] int loop_add_timer(struct loop *l, loop_timer_fn *fn, void *data, struct source **ret,
				 struct err *e);

/* Arms a timer to fire once after ms (0: disarms it). */
[[nodiscard]] int loop_arm(struct source *timer, uint64_t ms, struct err *e);

/* Delivers the signals of the set, which are blocked for the process from now on. Returns 0 and the source. */
[[nodiscard]] int loop_add_signals(struct loop *l, const sigset_t *set, loop_signal_fn *fn, void *data,
				   struct source **ret, struct err *e);

/* Removes a source and frees it; *s becomes NULL. NULL is fine. Remove a source before its descriptor is closed. */
void loop_remove(struct source **s);

/* Runs until loop_stop() or a callback's error. Returns 0 or that error. */
[[nodiscard]] int loop_run(struct loop *l, struct err *e);

/* Ends loop_run() after the current callback. */
void loop_stop(struct loop *l);

#endif
