/*
 * Messages between our own processes over a SOCK_SEQPACKET socket: a fixed head, a few bytes, a few descriptors.
 *
 * The types and who may send what stand in spec/message.h. Bytes larger than CHAN_DATA_MAX travel in a memfd.
 */
#ifndef ERMITE_IO_CHAN_H
#define ERMITE_IO_CHAN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define CHAN_DATA_MAX 2048
#define CHAN_FDS_MAX  16

struct chan_message {
	uint32_t type;
	uint32_t id;   /* process inside the sandbox, where it matters */
	uint64_t a, b; /* meaning depends on the type */
	uint32_t n;    /* bytes in data */
	uint32_t n_fds;
	int fds[CHAN_FDS_MAX];        /* owned after receiving, borrowed when sending */
	char data[CHAN_DATA_MAX + 1]; /* terminated after receiving */
};

/* Makes a connected pair, close-on-exec. The caller owns both. */
[[nodiscard]] int chan_pair(int ret[static 2], struct err *e);

/* Sends one message; blocks if the socket does. Returns 0, -EPIPE when the other end is gone, or a negative errno. */
[[nodiscard]] int chan_send(int fd, const struct chan_message *m, struct err *e);

/* Receives one message. Returns 1; 0 at the end of the stream; -EAGAIN when the socket does not block and nothing is
 * there; -EPROTO for a message that does not have this form (its descriptors are closed). */
[[nodiscard]] int chan_receive(int fd, struct chan_message *ret, struct err *e);

/* Closes the descriptors that are still in a received message; idempotent. */
void chan_close_fds(struct chan_message *m);

/* Takes descriptor i out of a received message: -1 when there is none. */
int chan_take_fd(struct chan_message *m, uint32_t i);

#endif
