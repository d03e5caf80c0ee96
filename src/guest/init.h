/*
 * The first process of a sandbox: starts the executor and becomes the image's own init; where the image has none it
 * stays, reaps, and ends when the executor ends. In a container it always stays, and does more (guest/supervise.h).
 */
#ifndef ERMITE_GUEST_INIT_H
#define ERMITE_GUEST_INIT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define INIT_PATH_MAX 4096

/* The init of an image. */
struct init_found {
	const char *path; /* constant; NULL: the image has none */
	bool is_systemd;
};

/* Looks for an init below the directory root (tests use another than "/"). */
struct init_found init_find(int root);

/* The command `init`. Returns 0 when it stayed and the executor has ended, or a negative errno; otherwise another
 * program has taken its place. */
[[nodiscard]] int init_run(struct err *e);

/* Reaps whatever ends until the process pid has ended. Returns 0 or a negative errno. */
[[nodiscard]] int init_reap_until(int pid, struct err *e);

#endif
