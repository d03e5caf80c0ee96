/*
 * The conduit: the one host process that reads what a sandbox says.
 *
 * It waits for the executor on a listening socket, checks every frame of the stream, and relays between it, the pipes
 * that the client made, and the keeper. Output is masked on the way; files on their way out are checked. Nothing that
 * the guest does makes it wait or grow: each channel has a window of bytes, what waits for the guest is bounded, and a
 * frame out of turn is the end, told to the keeper with a sentence that names it.
 *
 * Stages: the program starts with descriptors that the keeper chose, isolates itself (conduit_isolate) and only then
 * reads. docs/protocol.md tells the order of messages.
 */
#ifndef ERMITE_CONDUIT_CONDUIT_H
#define ERMITE_CONDUIT_CONDUIT_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* Where the program ermite-conduit finds what it needs; 0 to 2 are the standard ones. */
enum conduit_fd { CONDUIT_FD_CONFIG = 3, CONDUIT_FD_CHANNEL = 4, CONDUIT_FD_LISTENER = 5, CONDUIT_FDS = 6 };

/* Handed over in a memfd, as bytes: same build, same machine. */
struct conduit_config {
	uint32_t magic;    /* CONDUIT_MAGIC */
	uint32_t size;     /* sizeof(struct conduit_config) */
	uid_t uid;         /* the conduit's own from now on, and its gid */
	uid_t peer_uid;    /* of the executor, as this host sees it */
	uint32_t hello_ms; /* from the connection to Hello */
	uint32_t frame_ms; /* from a frame's first byte to its last; for the guest to read what waits */
	uint32_t copy_ms;  /* for the guest to get on with a copy of files */
};

#define CONDUIT_MAGIC 0x31647563u

/* Fills a configuration with the deadlines of the specification. */
void conduit_config_init(struct conduit_config *c, uid_t uid, uid_t peer_uid);

/* Reads a configuration from a memfd and checks it. Returns 0, -EINVAL or what reading gave. */
[[nodiscard]] int conduit_config_read(int fd, struct conduit_config *ret, struct err *e);

/* Isolates this process for good, with the system calls that conduit_run() needs. Returns 0 or a negative errno, after
 * which the process must end. */
[[nodiscard]] int conduit_isolate(const struct conduit_config *config, struct err *e);

/* Relays until the sandbox or the keeper has gone. Takes channel (to the keeper) and listener (a Unix stream socket).
 * SIGPIPE must be ignored. Returns 0 also when the guest broke the protocol, which the keeper was told; a negative
 * errno for trouble of our own or a message of the keeper that it must not send. */
[[nodiscard]] int conduit_run(const struct conduit_config *config, int channel, int listener, struct err *e);

#endif
