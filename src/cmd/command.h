/*
 * Commands as data: one row per command, one per option, and everything that a person sees of them (usage, --help,
 * errors about arguments) is made from these rows. The manual is checked against them.
 *
 * A command may have subcommands instead of a run function. Beside its own options it names the configuration items
 * that it uses; each is an option too, and arrives in the `struct config` of the call. Nothing here knows what any
 * command does.
 */
#ifndef ERMITE_CMD_COMMAND_H
#define ERMITE_CMD_COMMAND_H

#include <limits.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "spec/config.h"

#define COMMAND_ARGS_ANY UINT_MAX
#define COMMAND_FAILED   1               /* exit status: the command could not do its work */
#define COMMAND_USAGE    2               /* exit status: wrong options or arguments */
#define COMMAND_PROGRAM  "ermite-runner" /* stands in front of every message */

struct command_option {
	const char *name;     /* long option without the dashes; NULL ends a table */
	char letter;          /* its short form, or 0 */
	const char *argument; /* what it takes, "DIR"; NULL when it takes nothing */
	const char *help;     /* one sentence */
	/* Stores the value into the command's data. value (NULL without an argument) points into the process's
	 * arguments and may be overwritten in place. Returns 0 or a negative errno with a sentence that need not
	 * name the option: the caller does. */
	int (*set)(void *data, char *value, struct err *e);
};

struct command {
	const char *name;
	const char *args;                         /* of the usage line, "-- COMMAND [ARG...]"; "" for none */
	const char *help;                         /* one sentence */
	const struct command *const *subcommands; /* NULL-terminated, or NULL */
	const struct command_option *options;     /* own options; NULL for none */
	const char *const *config; /* names of the configuration options used ("state-dir"), NULL-terminated;
				    * NULL for none, command_config_all for every one */
	unsigned min_args, max_args;
	int failed_status; /* exit status when run returns an error; 0: COMMAND_FAILED */
	int usage_status;  /* exit status for wrong options or arguments; 0: COMMAND_USAGE */
	size_t data_size;  /* zeroed memory for the options' set functions and for run; 0 for none */
	/* Does the work. args are what stands after the options, NULL-terminated. Returns an exit status, or a
	 * negative errno with a sentence, which the caller prints. */
	int (*run)(const struct config *config, void *data, char *const args[], size_t n_args, struct err *e);
	void (*done)(void *data); /* frees what the data owns; NULL when there is nothing */
};

/* Stands for every configuration option. */
extern const char *const command_config_all[];

/* Runs the command that the arguments name below root (the program itself): reads the configuration, handles --help
 * and --version, prints errors on standard error as one line. Returns the exit status of the process. */
int command_main(const struct command *root, int argc, char *argv[]);

/* Prints one line on standard error, "ermite-runner: [kind: ]text": control bytes of text, which may come from a
 * sandbox, are made visible. kind is "warning" or NULL for an error. */
void command_say(const char *kind, const char *text);

#endif
