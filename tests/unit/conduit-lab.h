/*
 * A laboratory for the conduit: it runs in a child, not isolated, and the test plays the keeper on one side, the client
 * with its pipes, and a guest that says whatever the test wants on the other.
 *
 * Every function fails the running test when something is not as expected.
 */
#ifndef ERMITE_TESTS_CONDUIT_LAB_H
#define ERMITE_TESTS_CONDUIT_LAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "conduit/conduit.h"
#include "spec/message.h"
#include "wire/frame.h"

/* A message of the guest's, with the fields of all kinds. */
struct said {
	pb_size_t tag; /* ermite_ToHost_…_tag */
	uint32_t id;
	uint32_t channel;
	uint32_t n; /* bytes of Data or Credit, status of Exited and Failed */
	uint32_t signal;
	const char *text; /* of Hello, Failed; content of Data (else it is filled with 'x') */
};

struct lab {
	pid_t pid;
	int channel; /* the keeper's end */
	int guest;   /* the guest's end, -1: not connected */
	char directory[32];
	uint8_t *received; /* from the conduit, as the guest sees it */
	size_t have, taken;
	char text[2049]; /* that came with the last message to the keeper */
};

/* The client's ends of the pipes of one process; -1 for those that there are not. */
struct pipes {
	int input, output, error;
};

/* Starts a conduit whose executor has peer_uid. hello_ms and frame_ms, which is copy_ms, too: 0 for the
 * usual. */
void lab_open(struct lab *l, uid_t peer_uid, uint32_t hello_ms, uint32_t frame_ms);

/* Connects as a guest would, without a word. Returns the descriptor, or -1. */
int lab_connect(struct lab *l);

/* Opens with our own uid, connects, greets and hears CONNECTED. */
void lab_open_greeted(struct lab *l, uint32_t frame_ms);

/* Waits for the conduit's end, which must come with this exit status, and closes everything. */
void lab_close(struct lab *l, int status);

/* As the guest: sends a message, or raw bytes. */
void lab_say(struct lab *l, struct said s);
void lab_say_raw(struct lab *l, const void *p, size_t n);

/* As the guest: the next message, which must have this tag. Valid until the next call. */
const ermite_ToGuest *lab_hear(struct lab *l, pb_size_t tag);

/* As the keeper: sends a message with n_fds descriptors, which are closed here. */
void lab_tell(struct lab *l, uint32_t type, uint32_t id, uint64_t a, uint64_t b, const int *fds,
	      uint32_t n_fds);

/* As the keeper: the next message must be this one; its text is in l->text. */
void lab_told(struct lab *l, enum message_type type, uint32_t id, uint64_t a, uint64_t b);

/* As the keeper: the conduit says that the guest broke the protocol, in these words, and ends. */
void lab_told_protocol(struct lab *l, const char *words);

/* A memfd with these bytes. */
int lab_memfd(const void *p, size_t n);

/* Encodes a start (command "sh", one variable) into p. Returns the bytes used. */
size_t lab_encode_start(uint32_t id, ermite_Kind kind, bool has_input, uint8_t *p, size_t size);

/* Starts a process up to the guest having heard it. tree_max is for GET. */
struct pipes lab_start(struct lab *l, uint32_t id, ermite_Kind kind, bool has_input, uint64_t tree_max);

/* The same, and the guest says Started. */
struct pipes lab_start_running(struct lab *l, uint32_t id, ermite_Kind kind, bool has_input,
			       uint64_t tree_max);

/* Reads a pipe to its end; what came must be text. */
void lab_expect_pipe(int fd, const char *text);

#endif
