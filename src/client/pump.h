/*
 * Moves bytes from one descriptor to another inside an event loop, in order, without ever waiting for only one of
 * them: what is not readable or not writable now is watched, and the loop goes on.
 *
 * One of the two is a pipe of our own that does not block; the other was inherited (standard input, output, error) and
 * is shared with whoever started us, so its O_NONBLOCK is never touched. Between pipes, files and devices the bytes are
 * spliced and never enter this process; terminals, sockets and files opened for appending are read and written.
 */
#ifndef ERMITE_CLIENT_PUMP_H
#define ERMITE_CLIENT_PUMP_H

#include <stdbool.h>

#include "base/err.h"
#include "io/loop.h"

struct pump;

/* Called once at the end. error: 0 when `from` has come to its end and everything was passed on, else the negative
 * errno of reading or writing (-EPIPE: nobody reads `to` any more). May call pump_discard(), not pump_free(). Returns
 * as a loop's callback. */
typedef int pump_end_fn(void *data, struct pump *p, int error, struct err *e);

/* Starts to move bytes; the descriptors are borrowed until pump_free(). SIGPIPE must be ignored. Returns 0 and the
 * pump, which the caller frees, or a negative errno. */
[[nodiscard]] int pump_new(struct loop *l, int from, int to, pump_end_fn *fn, void *data, struct pump **ret,
			   struct err *e);

/* Stops at once; NULL is fine. */
void pump_free(struct pump *p);

/* From now on whatever comes is read and dropped, until the end, which is told once more if it was told before. */
[[nodiscard]] int pump_discard(struct pump *p, struct err *e);

/* Moves what there is now, until more would have to be waited for, without telling of an end: for a writer that is
 * gone, before pump_free(). NULL is fine. Returns 0 or a negative errno. */
[[nodiscard]] int pump_flush(struct pump *p);

/* True after the end was told and until pump_discard(). NULL has ended. */
bool pump_ended(const struct pump *p);

#endif
