/*
 * A guest program that breaks the rules: it takes the place of the real one, lets itself in like it, and then does what
 * its mode says. What the host makes of that is for tests/integration/test_hostile.py to judge.
 *
 * This part is honest: it brings the stream to the stage at which a mode begins. It ends this process when the host
 * hangs up.
 */
#ifndef ERMITE_TESTS_TORTURE_GUEST_H
#define ERMITE_TESTS_TORTURE_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/frame.h"

enum stage {
	STAGE_INIT,      /* in the sandbox's first process, before it knocks */
	STAGE_ALONE,     /* in the executor's process, not connected */
	STAGE_CONNECTED, /* nothing said */
	STAGE_GREETED,   /* Hello sent */
	STAGE_ASKED,     /* the host has asked for the first process */
	STAGE_RUNNING,   /* Started sent */
	STAGE_COPY_OUT,  /* that one has exited with 0, and the copy of an output was started */
};

/* Every run has its job as this process, after the copy of a workspace, which is 1. */
#define JOB_ID 2

struct guest {
	enum stage stage;
	int fd;          /* the stream, or -1 */
	uint32_t id;     /* of what the host started last */
	uint32_t credit; /* bytes that may still be sent on channel 1 */
	size_t have, used;
	ermite_ToGuest message; /* heard last */
	ermite_ToHost said;     /* said last */
	uint8_t received[FRAME_HEAD + FRAME_MAX];
};

/* Begins, or goes on from where it is, as the real executor would, until the stage is reached. */
void guest_reach(struct guest *g, enum stage stage);

/* Sends bytes as they are. */
void guest_send(const struct guest *g, const void *p, size_t n);

/* Each says something about the process that the host started last. */
void guest_say_started(struct guest *g);
void guest_say_exited(struct guest *g, uint32_t status);
void guest_say_failed(struct guest *g, uint32_t status, const char *text);
void guest_say_credit(struct guest *g, uint32_t bytes);

/* Sends n bytes of Data, without asking whether there is credit for them. n: 1 to FRAME_DATA_MAX. */
void guest_send_data(const struct guest *g, uint32_t channel, const void *p, size_t n);

/* Sends n bytes of Data on channel 1 as there is credit for them. */
void guest_output(struct guest *g, const void *p, size_t n);

/* Waits for the next message of the host; valid until the next call. */
const ermite_ToGuest *guest_hear(struct guest *g);

/* Waits for the start of the next process. */
void guest_await_start(struct guest *g);

/* Opens a stream without waiting for it to be accepted. Returns a descriptor or -1. */
int guest_connect(void);

/* Ends this process: the test itself is wrong. The run then does not end as its mode must. */
_Noreturn void guest_give_up(void);

#endif
