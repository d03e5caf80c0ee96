/*
 * A job from beginning to end, as the one who started it sees it: a keeper is started, the workspace goes in, the job
 * runs with our standard streams, outputs come out, the sandbox goes.
 *
 * The keeper decides how the job ended; this side only adds what it alone knows: a workspace that could not be read, an
 * output that could not be written. Nothing is printed here: messages go to `say`.
 */
#ifndef ERMITE_CLIENT_CLIENT_H
#define ERMITE_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "client/files.h"
#include "spec/job.h"

#define CLIENT_WORK_DIR "/home/runner/work" /* inside: where the workspace goes and a job starts */
#define CLIENT_FAILED   125                 /* exit status: the runner itself failed */

/* What is copied out after the job. */
struct client_output {
	char *path;       /* inside; relative: below the job's working directory */
	const char *base; /* its last component, which the tree that comes out begins with */
	struct files_target target;
};

struct client_job {
	const struct sandbox_spec *spec;
	char *const *arguments;   /* NULL-terminated, at least one */
	char *const *environment; /* NULL-terminated, or NULL */
	const char *secrets;      /* zero-ended texts to be masked */
	size_t secrets_n;         /* bytes of them all, 0 for none */
	const char *user;         /* "" for the image's own choice */
	const char *workdir;      /* "" for CLIENT_WORK_DIR */
	int workspace;            /* borrowed: a directory that is copied in, or -1 */
	const struct client_output *outputs;
	size_t n_outputs;
	int network_log; /* borrowed: a regular file for the lines of the network log, or -1; goes with the
			  * specification's network_log */
	bool has_stdin;  /* our standard input is the job's */
	bool terminal;   /* standard input is a terminal and the job gets one */
	/* Told about errors (kind NULL) and warnings (kind "warning"). Texts may hold bytes from the sandbox. */
	void (*say)(const char *kind, const char *text);
};

/* Checks what has to fit into the messages that start the job, without doing anything. Returns 0 or a negative
 * errno. */
[[nodiscard]] int client_check(const struct client_job *job, struct err *e);

/* Runs the job. SIGINT, SIGTERM, SIGHUP and SIGQUIT cancel it unless they are ignored; they stay blocked afterwards and
 * SIGPIPE ignored. Returns 0 with the result, whose exit_status is what this process should end with; a negative errno
 * when there is no result because not even a keeper could be started or this side could not go on. */
[[nodiscard]] int client_run(const struct client_job *job, struct job_result *ret, struct err *e);

#endif
