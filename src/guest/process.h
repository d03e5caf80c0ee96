/*
 * The processes that run for the host: a fixed table, each with its streams, its credit and its end.
 *
 * A process ends with its main process. What it and its descendants had said until then is sent on, and stragglers have
 * five seconds more; then the process group is killed and Exited is sent. The main process is not reaped before that,
 * so its number, which is the group's, cannot have become somebody else's.
 *
 * A message for an id that is not in the table is too late and does nothing.
 */
#ifndef ERMITE_GUEST_PROCESS_H
#define ERMITE_GUEST_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "guest/job.h"
#include "guest/stream.h"
#include "io/loop.h"

#define PROCESSES_MAX 64

struct processes;

/* An empty table that uses loop and stream (both borrowed, and outliving it). NULL when memory is out. */
struct processes *processes_new(struct loop *loop, struct stream *stream);

/* Kills what still runs and frees the table; NULL is fine. */
void processes_free(struct processes *t);

/* Each does what the message says. All return 0 or a negative errno, which is the stream's end: the host broke the
 * order of messages, or cannot be written to. Whatever is wrong with one process is told to the host instead. */
[[nodiscard]] int processes_start(struct processes *t, const struct job *job, struct err *e);
[[nodiscard]] int processes_data(struct processes *t, const ermite_Data *m, struct err *e);
[[nodiscard]] int processes_eof(struct processes *t, const ermite_Eof *m, struct err *e);
[[nodiscard]] int processes_credit(struct processes *t, const ermite_Credit *m, struct err *e);
[[nodiscard]] int processes_signal(struct processes *t, const ermite_Signal *m, struct err *e);
[[nodiscard]] int processes_resize(struct processes *t, const ermite_Resize *m, struct err *e);

#endif
