/*
 * The client's hold of a keeper: starting ermite-keeper for one sandbox, and waiting for it at the end. A keeper
 * outlives its client if need be: when the channel closes it takes the sandbox down by itself.
 */
#ifndef ERMITE_CLIENT_KEEPER_H
#define ERMITE_CLIENT_KEEPER_H

#include "base/err.h"
#include "io/child.h"
#include "spec/job.h"

/* Starts a keeper in a session of its own. network_log (borrowed): the write end of a pipe, or -1 for none. Returns
 * 0, the child and our end of the channel (the caller owns both), or a negative errno. */
[[nodiscard]] int keeper_start(const struct sandbox_spec *spec, int network_log, struct child *ret_child,
			       int *ret_channel, struct err *e);

/* Reads the result from a memfd that a keeper sent, and checks what it relies on: texts are terminated, numbers in
 * their range. Returns 0 or a negative errno. */
[[nodiscard]] int keeper_read_result(int fd, struct job_result *ret, struct err *e);

/* Waits a few seconds for the keeper to end and writes how it ended into text; one that is still there stays. */
void keeper_wait(struct child *c, char *text, size_t size);

#endif
