/*
 * The first process of a container after it has started the executor: starts Docker's daemon if the image has it, says
 * when the system is up, reaps, and ends in order.
 *
 * The system is up when the daemon's socket listens; when there is no daemon, or it has ended, at once. What the daemon
 * says is in /var/log/docker.log.
 */
#ifndef ERMITE_GUEST_SUPERVISE_H
#define ERMITE_GUEST_SUPERVISE_H

#include <sys/types.h>

#include "base/err.h"

/* Stays until the executor has ended or SIGTERM came, then ends the daemon. Returns 0, and everything else inside is
 * killed by the end of this process; or a negative errno. */
[[nodiscard]] int supervise(pid_t executor, struct err *e);

#endif
