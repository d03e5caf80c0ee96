/*
 * The executor: runs processes for the host over the stream until the host closes it.
 */
#ifndef ERMITE_GUEST_EXEC_H
#define ERMITE_GUEST_EXEC_H

#include "base/err.h"

/* Connects to the socket of the host that every container and system sandbox has. Waits some seconds for it to
 * appear. Returns 0 and a descriptor that the caller owns, or a negative errno. */
[[nodiscard]] int exec_connect(int *ret_fd, struct err *e);

/* Serves the stream until its end; then everything that was started and still runs is killed. notify: the socket on
 * which systemd will say that the system is up (guest/ready.h); -1: nobody will, the host is told so at once. Both
 * descriptors are borrowed. Descriptors 0, 1 and 2 must be open. Returns 0 or a negative errno. */
[[nodiscard]] int exec_serve(int stream, int notify, struct err *e);

/* The command `exec`: connects and serves. */
[[nodiscard]] int exec_run(struct err *e);

#endif
