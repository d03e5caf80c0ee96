#include "guest/job.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/files.h"
#include "guest/paths.h"
#include "guest/users.h"
#include "wire/frame.h"

#define STATUS_RUNNER     125 /* not the command's fault */
#define STATUS_CANNOT_RUN 126
#define STATUS_NOT_FOUND  127
#define GET_MISSING       2 /* exit status of a GET whose path is not there */

/* A process on its way; lives on the stack of job_run(). */
struct way {
	const struct job *job;
	int report;
	struct user user;
	const char *workdir;
};

/* Variables that every command has unless its Start sets them, in the order of their values. */
static const char *const default_names[] = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM"};

#define N_DEFAULTS   (sizeof(default_names) / sizeof(default_names[0]))
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void job_fail(int report, uint32_t status, const char *text)
{
	struct job_failure failure = {.status = status};
	(void)snprintf(failure.text, sizeof(failure.text), "%s", text);
	if (file_write_all(report, &failure, sizeof(failure), NULL) < 0)
		_exit(STATUS_RUNNER);
	_exit((int)status);
}

static void check(const struct way *w, int r, const struct err *e)
{
	if (r < 0)
		job_fail(w->report, STATUS_RUNNER, e->msg);
}

static void check_workdir(const struct way *w, int r, struct err *e)
{
	check(w, r < 0 ? err_ctx(e, r, "workdir") : 0, e);
}

/* Makes pipes and terminal the user's, so that /dev/stdout and /dev/tty can be opened by name. */
static void give_streams(const struct user *u)
{
	for (int i = 0; i < 3; i++) {
		struct stat st;
		if (fstat(i, &st) == 0 && (S_ISFIFO(st.st_mode) || isatty(i)) &&
		    fchown(i, u->uid, st.st_gid) < 0)
			return;
	}
}

/* Whether the strings set the variable of that name. */
static bool is_set(char *const *environment, const char *name)
{
	size_t n = strlen(name);
	for (; *environment; environment++)
		if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
			return true;
	return false;
}

/* Appends the defaults that are not set to environment, which has room for them; text holds them. */
static void add_defaults(const struct way *w, char **environment, char text[][USER_TEXT_MAX + 16])
{
	const struct user *u = &w->user;
	const char *const values[N_DEFAULTS] = {
		DEFAULT_PATH, u->home, u->name, u->name, u->shell, "C.UTF-8", "xterm-256color",
	};
	size_t n = 0;
	while (environment[n])
		n++;
	/* TERM, the last, is for terminals. */
	size_t n_defaults = w->job->start->terminal ? N_DEFAULTS : N_DEFAULTS - 1;
	for (size_t i = 0; i < n_defaults; i++) {
		if (is_set(environment, default_names[i]))
			continue;
		(void)snprintf(text[i], USER_TEXT_MAX + 16, "%s=%s", default_names[i], values[i]);
		environment[n++] = text[i];
		environment[n] = NULL;
	}
}

/* An array of the next n strings with room for some more; memory of a process that is about to exec. */
static char **take_strings(const struct way *w, size_t n, size_t extra, size_t *at)
{
	char **list = calloc(n + extra + 1, sizeof(*list));
	if (!list)
		job_fail(w->report, STATUS_RUNNER, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const char *s = frame_string_next(w->job->strings, w->job->strings_n, at);
		if (!s)
			job_fail(w->report, STATUS_RUNNER, "fewer strings than announced");
		/* execve() takes pointers to char and does not write through them. */
		memcpy(&list[i], &s, sizeof(s));
	}
	return list;
}

/* Executes the command; the words are a shell's. */
static _Noreturn void run_command(const struct way *w)
{
	const ermite_Start *start = w->job->start;
	char defaults[N_DEFAULTS][USER_TEXT_MAX + 16];
	char text[JOB_TEXT_MAX];
	size_t at = 0;
	char **arguments = take_strings(w, start->argument_count, 0, &at);
	char **environment = take_strings(w, start->environment_count, N_DEFAULTS, &at);
	if (!arguments[0])
		job_fail(w->report, STATUS_RUNNER, "no command");
	add_defaults(w, environment, defaults);
	/* execvp() searches the PATH of its own process. */
	environ = environment;
	(void)execvp(arguments[0], arguments);
	int code = errno;
	bool unknown = code == ENOENT && !strchr(arguments[0], '/');
	(void)snprintf(text, sizeof(text), "%.180s: %s", arguments[0],
		       unknown ? "command not found" : err_text(code));
	job_fail(w->report, code == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_RUN, text);
}

/* Ends a process of our own kind; its one sentence goes to standard error. */
static _Noreturn void finish(int status, const struct err *e)
{
	if (status != 0 &&
	    (file_write_all(2, e->msg, strlen(e->msg), NULL) < 0 || file_write_all(2, "\n", 1, NULL) < 0))
		_exit(1);
	_exit(status);
}

/* As the process is then: what the one who runs may enter. */
static void choose_workdir(struct way *w)
{
	if (!w->workdir[0])
		w->workdir = paths_default(&w->user);
}

static _Noreturn void run_put(struct way *w)
{
	struct err e = ERR_INIT;
	int directory;
	choose_workdir(w);
	check_workdir(w, paths_make(w->workdir, &w->user, &e), &e);
	check_workdir(w, paths_open(AT_FDCWD, w->workdir, O_PATH | O_DIRECTORY, &directory, &e), &e);
	check(w, user_become(&w->user, &e), &e);
	(void)close(w->report);
	finish(files_put(0, directory, &e) < 0, &e);
}

static _Noreturn void run_get(struct way *w)
{
	struct err e = ERR_INIT;
	size_t at = 0;
	char **arguments = take_strings(w, w->job->start->argument_count, 0, &at);
	int directory;
	choose_workdir(w);
	if (!arguments[0])
		job_fail(w->report, STATUS_RUNNER, "no path");
	check_workdir(w, paths_open(AT_FDCWD, w->workdir, O_PATH | O_DIRECTORY, &directory, &e), &e);
	(void)close(w->report);
	int r = files_get(directory, arguments[0], 1, &e);
	finish(r < 0 ? 1 : r == FILES_MISSING ? GET_MISSING : 0, &e);
}

static _Noreturn void run_run(struct way *w)
{
	struct err e = ERR_INIT;
	give_streams(&w->user);
	check(w, user_become(&w->user, &e), &e);
	choose_workdir(w);
	check_workdir(w, paths_enter(w->workdir, &e), &e);
	run_command(w);
}

void job_run(const struct job *job, int report)
{
	struct err e = ERR_INIT;
	struct way w = {.job = job, .report = report};
	int etc = open("/etc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	check(&w, etc < 0 ? err_sys(&e, "open /etc") : 0, &e);
	check(&w, user_find(etc, job->start->user, &w.user, &e), &e);
	(void)close(etc);
	w.workdir = job->start->workdir;
	switch (job->start->kind) {
	case ermite_Kind_RUN:
		run_run(&w);
	case ermite_Kind_PUT:
		run_put(&w);
	case ermite_Kind_GET:
		run_get(&w);
	}
	job_fail(report, STATUS_RUNNER, "unknown kind of start");
}
