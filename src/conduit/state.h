/*
 * What the files of the conduit share: its state, and how they call each other. Private to src/conduit.
 *
 * conduit.c is the keeper's side and the frame around all, stream.c the guest's side, process.c what runs inside.
 */
#ifndef ERMITE_CONDUIT_STATE_H
#define ERMITE_CONDUIT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conduit/channel.h"
#include "conduit/conduit.h"
#include "conduit/queue.h"
#include "io/chan.h"
#include "io/loop.h"
#include "spec/message.h"
#include "wire/frame.h"
#include "wire/mask.h"
#include "wire/tree.h"

#define CONDUIT_PROCESSES 64
#define CONDUIT_START_MAX 1258291u /* bytes of the frames of one start, 1.2 MiB */

/* More than this waiting for the guest, and neither the keeper nor an input is read until half of it has gone. One
 * start and the credit for what the guest sends meanwhile fit beyond it. */
#define CONDUIT_OUT_HIGH 1048576u
#define CONDUIT_OUT_MAX  (CONDUIT_OUT_HIGH + CONDUIT_START_MAX + 262144u)

/* Bits, so that a rule can name several. A process that has ended still has output on its way to the client. One that
 * is lost will never say how it ended, because the stream has ended first. */
enum process_state {
	PROCESS_NONE = 1,
	PROCESS_STARTING = 2,
	PROCESS_RUNNING = 4,
	PROCESS_ENDED = 8,
	PROCESS_LOST = 16,
};

struct conduit;

struct process {
	struct conduit *conduit;
	enum process_state state;
	uint32_t id;
	struct feed feed;
	struct sink sinks[2];     /* channels 1 and 2 */
	struct tree_reader *tree; /* owned; over channel 1 of GET */
	bool tree_complete;
	bool is_copy;      /* PUT or GET */
	uint64_t moved_ms; /* of a copy: when the guest last got on with it */
	uint32_t status, signal;
	bool failed; /* it is told as FAILED with text, not as EXITED */
	char text[256];
};

/* A time that something may take. The timer is armed once and looks at `since` when it fires, so that a busy stream
 * costs no system calls. */
struct deadline {
	struct source *timer;
	uint64_t since_ms; /* 0: nothing is waited for */
	uint64_t limit_ms;
	bool armed;
};

enum conduit_phase { PHASE_LISTENING, PHASE_GREETING, PHASE_OPEN, PHASE_CLOSED };

struct conduit {
	const struct conduit_config *config;
	struct loop *loop;
	enum conduit_phase phase;

	int channel; /* to the keeper; owned, as are the next two */
	int listener;
	int guest;      /* the stream */
	unsigned tries; /* connections refused so far */
	struct source *channel_source, *listener_source, *guest_source, *hello_timer;

	bool violated;      /* the error that ends the loop is the guest's */
	bool masking_fixed; /* secrets have come, or can no longer */
	bool ready_told;
	bool deaf;      /* the guest has closed its reading side */
	bool congested; /* too much waits in out */

	struct deadline frame; /* a frame has begun and not ended */
	struct deadline stall; /* bytes wait for the guest and it does not read */
	struct source *copy_timer;
	bool copy_armed;
	struct queue out;  /* frames for the guest */
	struct mask *mask; /* NULL: nothing to mask */
	struct process processes[CONDUIT_PROCESSES];

	/* Large, so they come last, and in zeroed memory that is touched only as far as it is used. */
	ermite_ToHost from_guest;
	ermite_ToGuest to_guest;
	size_t have; /* bytes in received */
	uint8_t received[FRAME_HEAD + FRAME_MAX];
};

/* conduit.c: sends the keeper a message without descriptors and text. Returns 0 or a negative errno. */
[[nodiscard]] int conduit_tell(struct conduit *c, enum message_type type, uint32_t id, uint64_t a, uint64_t b,
			       struct err *e);

/* conduit.c: sends the keeper a message with text. Returns 0 or a negative errno. */
[[nodiscard]] int conduit_tell_text(struct conduit *c, enum message_type type, uint32_t id, uint64_t a,
				    const char *text, struct err *e);

/* conduit.c: ends the loop once the stream has ended and all output is where it belongs. Returns 0 or a negative
 * errno. */
[[nodiscard]] int conduit_settle(struct conduit *c, struct err *e);

/* stream.c: begins the greeting on a connected socket, which is taken. Returns 0 or a negative errno. */
[[nodiscard]] int stream_open(struct conduit *c, int fd, struct err *e);

/* stream.c: queues the message c->to_guest. Returns 0, or -EPROTO when the guest has left too much unread. */
[[nodiscard]] int stream_queue(struct conduit *c, struct err *e);

/* stream.c: room for n more bytes in the queue; counts after queue_added(&c->out). Errors as stream_queue(). */
[[nodiscard]] int stream_room(struct conduit *c, size_t n, uint8_t **ret, struct err *e);

/* stream.c: writes what the guest takes, and adjusts what is watched: every callback ends with it. Returns 0 or a
 * negative errno. */
[[nodiscard]] int stream_flush(struct conduit *c, struct err *e);

/* process.c: the one with this id, or NULL. */
struct process *process_find(struct conduit *c, uint32_t id);

/* process.c: START from the keeper; takes descriptors out of m. What cannot be started is told as FAILED. Returns 0, or
 * -EPROTO for an id that is in use. */
[[nodiscard]] int process_start(struct conduit *c, struct chan_message *m, struct err *e);

/* process.c: output of a running process. Returns 0, -EPROTO or an errno of our own. */
[[nodiscard]] int process_output(struct process *p, uint32_t channel, const uint8_t *bytes, size_t n,
				 struct err *e);

/* process.c: queues the credit that its sinks can grant. Returns 0 or an error as stream_queue(). */
[[nodiscard]] int process_grant(struct process *p, struct err *e);

/* process.c: nothing more comes from it; it goes as soon as its output has gone. state: ENDED or LOST. Returns 0 or a
 * negative errno. */
[[nodiscard]] int process_end(struct process *p, enum process_state state, struct err *e);

/* process.c: the guest has said something about it, which is how a copy shows that it goes on. */
void process_moved(struct process *p);

/* process.c: the timer of all copies. Returns 0; -EPROTO when the guest has left one alone for too long; or another
 * negative errno. */
[[nodiscard]] int process_check_copies(void *conduit, struct err *e);

/* process.c: releases whatever it holds; the place is free again. */
void process_release(struct process *p);

#endif
