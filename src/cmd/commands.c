#include "cmd/commands.h"

#include <stddef.h>

static const struct command *const table[] = {&cmd_run, &cmd_ps, &cmd_reap, &cmd_daemon, &cmd_image, NULL};

const struct command cmd_root = {
	.name = COMMAND_PROGRAM,
	.args = "",
	.help = "Run jobs on this host, each in a sandbox of its own.",
	.subcommands = table,
};
