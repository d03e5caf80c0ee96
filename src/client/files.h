/*
 * Trees of files between the host's directories and the stream (wire/tree.h): a workspace on its way in, an output on
 * its way out.
 *
 * The workspace is the user's own and is sent by a child process, so that reading a slow disk never stops the event
 * loop. What comes out was made by a job: everything is created relative to a directory that was opened before the job
 * ran, below one name, with openat2() and O_EXCL; no link is ever followed, and nothing but directories, files and
 * links that stay inside the output is made.
 */
#ifndef ERMITE_CLIENT_FILES_H
#define ERMITE_CLIENT_FILES_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/child.h"

#define FILES_DEPTH_MAX   128     /* directories below each other in a workspace */
#define FILES_ENTRIES_MAX 1000000 /* files, directories and links of one output */

/* Told about everything that is left out; name and reason are one sentence. */
typedef void files_warn_fn(void *data, const char *text);

/* Writes the content of the directory dir as a tree into `to`, blocking. Links that lead out of it, devices, sockets
 * and FIFOs are named as skipped and warned of. Both descriptors are borrowed. Returns 0 or a negative errno; -EPIPE
 * when the reader is gone. */
[[nodiscard]] int files_send(int dir, int to, files_warn_fn *warn, void *data, struct err *e);

/* A workspace under way. */
struct files_sender {
	struct child child;
	int report; /* owned: read end of a pipe that brings the child's struct err, or -1 */
};

#define FILES_SENDER_INIT ((struct files_sender){.child = CHILD_INIT, .report = -1})

/* Runs files_send() in a child that has these descriptors and standard error only; warn is called in the child.
 * Returns 0 or a negative errno. */
[[nodiscard]] int files_sender_start(struct files_sender *s, int dir, int to, files_warn_fn *warn, void *data,
				     struct err *e);

/* Waits for the child's end. Returns 0, or what files_send() returned. */
[[nodiscard]] int files_sender_wait(struct files_sender *s, struct err *e);

/* Kills the child; does nothing when there is none. */
void files_sender_kill(struct files_sender *s);

/* Where an output goes: a name in a directory that is held open. */
struct files_target {
	int dir; /* owned, or -1 */
	char name[NAME_MAX + 1];
};

#define FILES_TARGET_INIT ((struct files_target){.dir = -1})

/* Opens the directory that path lies in and checks that it can be written to; path itself need not exist. Links in the
 * directory part are followed as base/named.h says, the last component's is not. Returns 0 or a negative errno. */
[[nodiscard]] int files_target_open(const char *path, struct files_target *ret, struct err *e);

/* Closes the directory; it is empty again. */
void files_target_done(struct files_target *t);

struct files_receiver;

/* Receives one tree whose first component is `base` and makes it as the target (borrowed). bytes_max: most bytes of all
 * its files, holes included. Existing files are replaced, existing directories filled up. Returns NULL when memory is
 * out; the caller frees it. */
struct files_receiver *files_receiver_new(const struct files_target *target, const char *base,
					  uint64_t bytes_max, files_warn_fn *warn, void *data);
void files_receiver_free(struct files_receiver *r);

/* Takes n bytes of the stream. Returns 1 when the tree is complete, 0 when there is more to come, or a negative errno:
 * -EPROTO for a stream that no honest sandbox sends, after which nothing more may be fed. */
[[nodiscard]] int files_receive(struct files_receiver *r, const uint8_t *p, size_t n, struct err *e);

#endif
