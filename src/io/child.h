/*
 * Starting a program with exactly the descriptors, environment and namespaces it should have.
 *
 * The child is made with clone() the way vfork() does it, gets the listed descriptors at 0, 1, 2, 3 … in the order
 * given, everything else is closed, signals are reset, and it dies with its parent when asked to. It is known by its
 * pidfd only: a number that is used again cannot be hit.
 */
#ifndef ERMITE_IO_CHILD_H
#define ERMITE_IO_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct child {
	pid_t pid;
	int pidfd; /* owned */
};

#define CHILD_INIT ((struct child){.pid = -1, .pidfd = -1})

#define CHILD_FDS_MAX 32

struct child_plan {
	const char *path;               /* absolute path of the program */
	const char *const *arguments;   /* NULL-terminated, with argv[0] */
	const char *const *environment; /* NULL-terminated; NULL: empty */
	const int *fds;                 /* fds[i] becomes i in the child; -1: /dev/null */
	size_t n_fds;                   /* at most CHILD_FDS_MAX */
	uint64_t clone_flags;           /* CLONE_NEW*, 0 for none */
	bool die_with_parent;           /* SIGKILL when the parent's thread ends */
	bool new_session;               /* setsid() */
};

/* For programs that need nothing but to find others: PATH and LC_ALL=C. */
extern const char *const child_environment[];

/* Sets every signal of this process back to its default, the two that the C library keeps for itself included, and
 * blocks none: what is about to become another program must not hand down what it was handed. */
void child_reset_signals(void);

/* Sets the error of a fork() or clone() that has just failed: when there may be no more processes it says which
 * limits to look at. Returns -errno. */
[[nodiscard]] int child_refused(struct err *e);

/* Starts a child. Returns 0; a negative errno, also when the program could not be executed (the errno of execve).
 * The caller owns ret->pidfd. */
[[nodiscard]] int child_start(const struct child_plan *plan, struct child *ret, struct err *e);

/* How a child ended. */
struct child_end {
	int status; /* exit status, or -1 */
	int signal; /* or 0 */
};

/* Waits for the end, at most ms (UINT64_MAX: for ever), and reaps. Returns 0, -ETIMEDOUT or a negative errno; after 0
 * the pidfd is closed and the struct empty again. An empty one returns 0 with status 0. */
[[nodiscard]] int child_wait(struct child *c, uint64_t ms, struct child_end *ret, struct err *e);

/* Sends a signal by pidfd. Returns 0 (also when it has ended or is empty) or a negative errno. */
[[nodiscard]] int child_signal(const struct child *c, int number, struct err *e);

/* Kills and reaps; an empty one is fine. */
void child_kill(struct child *c);

/* From now on what a child leaves behind becomes a child of this process. Returns 0 or a negative errno. */
[[nodiscard]] int child_adopt_orphans(struct err *e);

/* Reaps children that nobody waits for, adopted ones, for at most ms: call it when no child of one's own is left. */
void child_reap_orphans(uint64_t ms);

/* Runs a program to its end with standard output and error going to fd log (borrowed; -1: /dev/null), child_environment
 * for an environment, and our end as its end. Returns its exit status, 128 + signal, or a negative errno. */
[[nodiscard]] int child_run(const char *path, const char *const *arguments, int log, struct err *e);

#endif
