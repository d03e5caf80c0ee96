/*
 * The one table of commands. Each stands in its own file, cmd/<name>.c.
 */
#ifndef ERMITE_CMD_COMMANDS_H
#define ERMITE_CMD_COMMANDS_H

#include "cmd/command.h"
#include "cmd/image.h"

extern const struct command cmd_run;
extern const struct command cmd_ps;
extern const struct command cmd_reap;
extern const struct command cmd_daemon;

/* The program itself; its subcommands are the table. */
extern const struct command cmd_root;

#endif
