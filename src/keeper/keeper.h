/*
 * The keeper: one process for the whole life of one sandbox.
 *
 * It makes the sandbox, holds the lock of its record, watches it, serves the client that started it, decides how the
 * job ended, and takes everything down again. It reads no byte that a sandbox wrote: the conduit does, and tells it
 * fixed messages, each checked against the table in spec/message.h and the state.
 */
#ifndef ERMITE_KEEPER_KEEPER_H
#define ERMITE_KEEPER_KEEPER_H

#include "base/err.h"

/* Where the program ermite-keeper finds what the client gave it; 0 to 2 are the standard ones. */
enum keeper_fd { KEEPER_FD_SPEC = 3, KEEPER_FD_CLIENT, KEEPER_FD_NETWORK_LOG };

/* Makes, serves and takes down the sandbox that the specification in spec_fd (a memfd with a struct sandbox_spec)
 * describes; client is the channel to whoever wants it, log where the lines of the network log go if the specification
 * wants one. All stay the caller's. Returns 0 when nothing is left, also
 * after a failed job; a negative errno when the record stays. The client was told either way. */
[[nodiscard]] int keeper_run(int spec_fd, int client, int log, struct err *e);

#endif
