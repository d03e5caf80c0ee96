/*
 * Naming a process so that the name cannot mean another one later: its number and the time it started. And the end of
 * one that does not know any more where it is.
 */
#ifndef ERMITE_SYS_PROCESS_H
#define ERMITE_SYS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/* The start time of a process in clock ticks since boot, from /proc/<pid>/stat. Returns 0 or a negative errno. */
[[nodiscard]] int process_start_time(pid_t pid, uint64_t *ret, struct err *e);

/* Kills a process and waits until it is gone, if it is still the one that started at that time. Returns 0, also when
 * it was gone or the number is another's by now, or -ETIMEDOUT when it does not end within ms. */
[[nodiscard]] int process_kill(pid_t pid, uint64_t start_time, uint64_t ms, struct err *e);

/* What a lost process exits with. */
#define PROCESS_LOST_STATUS 70

/* Ends the caller on the spot when it cannot come back from a namespace of this kind: whatever it did next it would do
 * to the wrong one. A sandbox is then taken down by its record. The sentence on standard error tells errno. */
_Noreturn void process_lost(const char *kind);

/* The id of this boot, 36 characters. */
[[nodiscard]] int process_boot_id(char id[static 37], struct err *e);

#endif
