/*
 * Which processes the kernel killed for the memory limit of one sandbox, from the kernel's log.
 *
 * A line there is the kernel's, but the process's name in it is the sandbox's choice: it is taken as at most 15 bytes
 * of which everything unusual becomes "?". Pure text but for oomlog_open() and oomlog_victim().
 */
#ifndef ERMITE_SYS_OOMLOG_H
#define ERMITE_SYS_OOMLOG_H

#include <stdbool.h>
#include <stddef.h>

#define OOMLOG_NAME_MAX 16

/* Opens the kernel's log at its end. Returns a descriptor, or -1 where it cannot be read. */
int oomlog_open(void);

/* True when line tells of a kill for the limit of exactly the group ermite-runner/<id>; then name is the process's. */
bool oomlog_parse(const char *line, const char *id, char name[static OOMLOG_NAME_MAX]);

/* The name of the last process killed for the sandbox's limit since the log was opened, in name ("" for none). */
void oomlog_victim(int fd, const char *id, char name[static OOMLOG_NAME_MAX]);

#endif
