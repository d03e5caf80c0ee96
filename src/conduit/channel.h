/*
 * The channels of one process: sinks, which take the guest's output to a pipe of the client's, and the feed, which
 * brings the client's input.
 *
 * A sink never waits: what its pipe does not take now is kept, never more than the guest's window and what a mask held
 * back. When nobody reads the pipe any more, the rest is thrown away and the process inside goes on.
 */
#ifndef ERMITE_CONDUIT_CHANNEL_H
#define ERMITE_CONDUIT_CHANNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "conduit/queue.h"
#include "io/loop.h"
#include "wire/mask.h"

/* Called when bytes that were kept have gone, or the reader has. */
typedef int sink_moved_fn(void *data, struct err *e);

/* Whom a sink belongs to. */
struct sink_owner {
	struct loop *loop;
	sink_moved_fn *moved;
	void *data;
};

struct sink {
	struct sink_owner owner;
	int fd;                /* owned; -1: closed, everything is thrown away */
	struct source *source; /* while bytes are kept */
	struct queue kept;
	struct mask_stream *mask; /* owned, or NULL */
	uint32_t window;          /* bytes that the guest may still send */
	uint64_t relayed;         /* bytes that went into the pipe */
	bool ended;               /* no more bytes will come */
	int error;                /* met while the mask delivered bytes */
};

#define SINK_INIT ((struct sink){.fd = -1})

/* Opens a sink. Takes fd, the write end of a pipe, which no longer blocks from then on, or -1: everything is thrown
 * away; and mask, which may be NULL. Returns 0 or a negative errno (both are then released). */
[[nodiscard]] int sink_open(struct sink *s, int fd, struct mask_stream *mask, const struct sink_owner *owner,
			    struct err *e);

/* Counts n bytes that the guest has sent against its window. Returns 0, or -EPROTO when it had no right to: the channel
 * has ended, or they exceed the window. */
[[nodiscard]] int sink_charge(struct sink *s, size_t n, struct err *e);

/* Passes n bytes on. Returns 0, -ENOMEM or another errno of our own. */
[[nodiscard]] int sink_give(struct sink *s, const uint8_t *p, size_t n, struct err *e);

/* The credit to grant now, which counts as granted: 0 while it is not worth a message. */
uint32_t sink_grant(struct sink *s);

/* No more bytes come: passes on what the mask held back, and closes the pipe once all is in it. Twice is fine. */
[[nodiscard]] int sink_end(struct sink *s, struct err *e);

/* Throws away what is kept and whatever still comes, and closes the pipe. */
void sink_drop(struct sink *s);

/* True when the pipe is closed, or there never was one: nothing is kept. */
bool sink_is_done(const struct sink *s);

/* Releases everything at once; the sink is as SINK_INIT again. */
void sink_done(struct sink *s);

/* Called when input can be read. */
typedef loop_fd_fn feed_ready_fn;

struct feed {
	struct loop *loop;
	int fd;                /* owned; -1: no input, or all of it was read */
	struct source *source; /* while it is watched */
	uint32_t window;       /* bytes that the guest takes at the moment */
	bool given;            /* there is, or was, input */
	feed_ready_fn *ready;
	void *data;
};

#define FEED_INIT ((struct feed){.fd = -1})

/* Opens a feed, not watched yet. Takes fd, the read end of a pipe, which no longer blocks from then on. Returns 0 or a
 * negative errno (fd is then closed). */
[[nodiscard]] int feed_open(struct feed *f, struct loop *loop, int fd, feed_ready_fn *ready, void *data,
			    struct err *e);

/* Watches the pipe when the guest takes bytes and there is room for them on the way, else not at all: a pipe whose
 * writer has gone would call again and again. Returns 0 or a negative errno. */
[[nodiscard]] int feed_watch(struct feed *f, bool room, struct err *e);

/* Adds credit that the guest granted. Returns 0, or -EPROTO when there is no input or it is more than was sent. */
[[nodiscard]] int feed_credit(struct feed *f, uint32_t bytes, struct err *e);

/* Closes the pipe: all was read, or nobody reads on. Credit is still accepted. Twice is fine. */
void feed_close(struct feed *f);

#endif
