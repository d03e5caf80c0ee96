/*
 * Environment variables for a job: NAME=VALUE texts from options and files, in order, the last one of a name wins.
 */
#ifndef ERMITE_CLIENT_ENV_H
#define ERMITE_CLIENT_ENV_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define ENV_FILE_MAX 1048576u /* bytes of one file; more than a job can be given anyway */

struct env {
	char **entries; /* owned, each "NAME=VALUE" owned too; NULL-terminated once there is one */
	size_t n;
};

#define ENV_INIT   ((struct env){0})
#define scoped_env __attribute__((cleanup(env_done)))

/* Frees everything; the list is empty again. */
void env_done(struct env *list);

/* True for [A-Za-z_][A-Za-z0-9_]* of n bytes. */
bool env_name_valid(const char *name, size_t n);

/* Sets a variable from "NAME=VALUE" (copied). Returns 0, -EINVAL or -ENOMEM. The message never quotes the text: it may
 * be a secret. */
[[nodiscard]] int env_set(struct env *list, const char *text, struct err *e);

/* Sets NAME (a valid one) to a value, replacing an earlier one. Returns 0 or -ENOMEM. */
[[nodiscard]] int env_put(struct env *list, const char *name, const char *value, struct err *e);

/* The value of a variable, borrowed until the next change, or NULL. */
const char *env_get(const struct env *list, const char *name);

/* Reads NAME=VALUE lines from text of n bytes: blank lines and lines that begin with # are passed over, blanks before
 * NAME are dropped, a value is taken as it stands, quotes included. file is for messages. Returns 0, -EINVAL with file
 * and line, or -ENOMEM. */
[[nodiscard]] int env_read_text(struct env *list, const char *file, const char *text, size_t n,
				struct err *e);

/* Reads a file of at most ENV_FILE_MAX bytes, which may be a pipe. Returns 0 or a negative errno. */
[[nodiscard]] int env_read_file(struct env *list, const char *path, struct err *e);

#endif
