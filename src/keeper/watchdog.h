/*
 * The watchdog: no step of the keeper hangs for ever.
 *
 * A step that is not over by its deadline, and not a little later either (this process may have been stopped, or
 * the machine asleep), ends the keeper on the spot, with a sentence that names the step on standard error. Its
 * record stays, and whoever comes next takes the sandbox down by it.
 *
 * There is one per process; it needs the signal SIGALRM.
 */
#ifndef ERMITE_KEEPER_WATCHDOG_H
#define ERMITE_KEEPER_WATCHDOG_H

#include <stdint.h>

#include "base/err.h"

/* What the keeper exits with when a step hangs. */
#define WATCHDOG_STATUS 70

/* Begins to watch. Returns 0 or a negative errno. */
[[nodiscard]] int watchdog_start(struct err *e);

/* The step that begins now, a string that stays, is to be over within ms; the one before is over. */
void watchdog_step(const char *step, uint64_t ms);

#endif
