/*
 * The terminal of the person who runs a job with -t: raw while the job has it, and put back in every way this process
 * can end, short of SIGKILL.
 */
#ifndef ERMITE_CLIENT_TERMINAL_H
#define ERMITE_CLIENT_TERMINAL_H

#include <stdint.h>

#include "base/err.h"

/* Makes the terminal raw: every key goes to the job. fd must stay open until terminal_restore(). Crash signals put it
 * back from now on. Returns 0 or a negative errno. One terminal per process. */
[[nodiscard]] int terminal_raw(int fd, struct err *e);

/* Puts the terminal back as it was; does nothing when it is not raw. */
void terminal_restore(void);

/* The window's size, 24 x 80 where the terminal does not know. */
void terminal_size(int fd, uint32_t *ret_rows, uint32_t *ret_columns);

#endif
