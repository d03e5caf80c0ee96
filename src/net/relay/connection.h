/*
 * One connection of the relay: the sandbox's on one side, the target's on the other, and the bytes between. For the
 * files of this folder only.
 */
#ifndef ERMITE_NET_RELAY_CONNECTION_H
#define ERMITE_NET_RELAY_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "io/loop.h"

#define FLOW_BYTES 65536

enum connection_state {
	CONNECTION_FREE,
	CONNECTION_WAITS,    /* for a socket of the keeper's */
	CONNECTION_CONNECTS, /* to the target */
	CONNECTION_OPEN,
};

enum side_name { SIDE_GUEST, SIDE_TARGET, SIDES };

struct connection;

struct side {
	struct connection *connection;
	int fd;                /* owned; -1: not there yet */
	struct source *source; /* NULL while nothing is wanted of it */
};

/* What has come from one side and is on its way to the other. */
struct flow {
	uint32_t at, end; /* bytes[at .. end) are to be written */
	bool ended;       /* its side sends no more */
	bool passed_on;   /* and the other has been told */
	uint8_t bytes[FLOW_BYTES];
};

/* Who the connections belong to: the same for all of them. */
struct connection_owner {
	struct loop *loop;
	uint64_t idle_ms, connect_ms;
	/* A connection is free again. */
	int (*freed)(void *data, struct err *e);
	void *data;
};

struct connection {
	const struct connection_owner *owner;
	enum connection_state state;
	uint64_t begun_ns;  /* tells which waits longest */
	uint64_t active_ms; /* when something last happened */
	struct source *timer;
	struct side sides[SIDES];
	struct flow flows[SIDES]; /* by the side that they come from */
};

/* Sets up a row of zeroes, once. Returns 0 or a negative errno. */
[[nodiscard]] int connection_init(struct connection *c, const struct connection_owner *owner, struct err *e);

/* Begins with a sandbox's connection; takes guest. It waits then for connection_dialled(). Returns 0 or a
 * negative errno. */
[[nodiscard]] int connection_begin(struct connection *c, int guest, struct err *e);

/* Goes on with a socket that is connecting to the target; takes it. -1, there is none, breaks the connection. Returns 0
 * or a negative errno. */
[[nodiscard]] int connection_dialled(struct connection *c, int target, struct err *e);

/* Breaks the connection on both sides and frees the row. Returns what freed() does. */
[[nodiscard]] int connection_break(struct connection *c, struct err *e);

#endif
