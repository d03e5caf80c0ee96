#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/named.h"
#include "base/scope.h"
#include "client/client.h"
#include "client/env.h"
#include "client/forge_access.h"
#include "cmd/commands.h"
#include "cmd/image_info.h"
#include "isolation/isolation.h"
#include "wire/mask.h"
#include "wire/tree.h"

enum { OUTPUTS_MAX = 64, TEXT_BYTES = 65536, TEXT_MAX = 256, WARNING_MAX = 1024 };

/* What a client needs to be allowed; the memory is for the programs that it starts, too. */
enum { DESCRIPTORS = 64, MEMORY_MIB = 256 };

/* What the options said, as text. */
struct options {
	const char *workspace;
	char *outputs[OUTPUTS_MAX];
	size_t n_outputs;
	struct env environment;
	struct env secrets;
	const char *user;
	const char *workdir;
	const char *job_id;
	const char *timeout;
	const char *result;
	const char *network_log;
	bool has_stdin;
	bool terminal;
	bool summary;
};

/* What is made of them before anything is started. */
struct run {
	struct sandbox_spec spec;
	struct forge forge;
	struct client_job job;
	struct client_output outputs[OUTPUTS_MAX];
	struct buf secrets;
	char workdir[TREE_NAME_MAX + 1];
	int workspace;
	struct files_target result;
	int network_log;
};

static int set_workspace(void *data, char *value, struct err *)
{
	((struct options *)data)->workspace = value;
	return 0;
}

static int set_output(void *data, char *value, struct err *e)
{
	struct options *o = data;
	if (o->n_outputs == OUTPUTS_MAX)
		return err_set(e, -E2BIG, "at most %d outputs are accepted", OUTPUTS_MAX);
	o->outputs[o->n_outputs++] = value;
	return 0;
}

static int set_env(void *data, char *value, struct err *e)
{
	int r = env_set(&((struct options *)data)->environment, value, e);
	return r < 0 ? err_ctx(e, r, "\"%s\"", value) : 0;
}

static int set_env_file(void *data, char *value, struct err *e)
{
	return env_read_file(&((struct options *)data)->environment, value, e);
}

static int set_secret(void *data, char *value, struct err *e)
{
	int r = env_set(&((struct options *)data)->secrets, value, e);
	/* Arguments of a process can be read by everyone on the host. */
	char *equals = strchr(value, '=');
	if (equals)
		memset(equals + 1, '*', strlen(equals + 1));
	return r;
}

static int set_secret_file(void *data, char *value, struct err *e)
{
	return env_read_file(&((struct options *)data)->secrets, value, e);
}

static int set_user(void *data, char *value, struct err *)
{
	((struct options *)data)->user = value;
	return 0;
}

static int set_workdir(void *data, char *value, struct err *)
{
	((struct options *)data)->workdir = value;
	return 0;
}

static int set_stdin(void *data, char *, struct err *)
{
	((struct options *)data)->has_stdin = true;
	return 0;
}

static int set_terminal(void *data, char *, struct err *e)
{
	if (!isatty(STDIN_FILENO))
		return err_set(e, -ENOTTY, "standard input is not a terminal");
	((struct options *)data)->terminal = true;
	return 0;
}

static int set_timeout(void *data, char *value, struct err *)
{
	((struct options *)data)->timeout = value;
	return 0;
}

static int set_job_id(void *data, char *value, struct err *e)
{
	if (strlen(value) >= JOB_ID_MAX)
		return err_set(e, -EINVAL, "at most %d bytes are accepted", JOB_ID_MAX - 1);
	((struct options *)data)->job_id = value;
	return 0;
}

static int set_result(void *data, char *value, struct err *)
{
	((struct options *)data)->result = value;
	return 0;
}

static int set_network_log(void *data, char *value, struct err *)
{
	((struct options *)data)->network_log = value;
	return 0;
}

static int set_summary(void *data, char *, struct err *)
{
	((struct options *)data)->summary = true;
	return 0;
}

static const struct command_option options[] = {
	{"workspace", 0, "DIR", "Copy this directory in, to " CLIENT_WORK_DIR "; it is not changed.",
	 set_workspace},
	{"output", 0, "PATH[:HOSTPATH]",
	 "Copy this file or directory out after the job, also after a failure, to ./NAME or as HOSTPATH.",
	 set_output},
	{"env", 0, "NAME=VALUE", "Set an environment variable of the job.", set_env},
	{"env-file", 0, "FILE", "Set variables from the NAME=VALUE lines of a file.", set_env_file},
	{"secret", 0, "NAME=VALUE", "Set a variable whose value is masked in all output.", set_secret},
	{"secret-file", 0, "FILE", "Set secret variables from the NAME=VALUE lines of a file.",
	 set_secret_file},
	{"user", 0, "USER", "Run as this user of the image, a name or number, with :GROUP if wanted.",
	 set_user},
	{"workdir", 0, "DIR", "Start in this directory inside; a relative one lies in the workspace.",
	 set_workdir},
	{"stdin", 0, NULL, "Give the job our standard input.", set_stdin},
	{"terminal", 't', NULL, "Give the job a terminal that follows the size of ours.", set_terminal},
	{"timeout", 0, "DURATION", "End the job after this time; the same as --job-timeout.", set_timeout},
	{"job-id", 0, "TEXT", "What the caller calls the job, for reports.", set_job_id},
	{"result", 0, "FILE", "Write how the job ended into this file as one JSON object.", set_result},
	{"network-log", 0, "FILE", "Write a JSON line into this file for each refused flow and DNS question.",
	 set_network_log},
	{"summary", 0, NULL, "Say on standard error how the job ended, for a person.", set_summary},
	{0},
};

/* Logs a text of several lines, one by one. */
static void log_lines(const struct buf *lines)
{
	const char *at = buf_text(lines);
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&at, &line, &n))
		log_info("%.*s", (int)n, line);
}

static void warn_lines(const struct buf *lines)
{
	const char *at = buf_text(lines);
	const char *line = NULL;
	size_t n = 0;
	while (buf_next_line(&at, &line, &n)) {
		char text[WARNING_MAX];
		(void)snprintf(text, sizeof(text), "%.*s", (int)n, line);
		command_say("warning", text);
	}
}

/* What an image of Docker's may be fed from. */
static void find_image_source(const struct config *c, struct isolation_host *host)
{
	char directory[CONFIG_PATH_MAX];
	struct image_info info = IMAGE_INFO_INIT;
	config_default_image_dir(c, directory);
	if (image_info_load(directory, &info, NULL) == 0)
		memcpy(host->image_source, info.sha256, sizeof(host->image_source));
}

/* Chooses the isolation and says why, a line each, and has it get what it needs. */
static int choose_isolation(struct sandbox_spec *spec, struct err *e)
{
	scoped_buf struct buf notes = BUF_INIT(TEXT_BYTES);
	scoped_buf struct buf warnings = BUF_INIT(TEXT_BYTES);
	const struct isolation_ops *ops = NULL;
	struct isolation_host host = {0};
	int r = isolation_select(&spec->config, &host, &ops, &notes, e);
	if (r < 0)
		return r;
	log_lines(&notes);
	spec->config.isolation = ops->kind;
	if (ops->provide) {
		find_image_source(&spec->config, &host);
		r = ops->provide(&host, spec, &warnings, e);
	}
	warn_lines(&warnings);
	return r;
}

/* Finds out whether jobs reach the forge, and says so. */
static int prepare_forge(struct run *run, struct err *e)
{
	int r = forge_read(&run->spec.config, &run->forge, e);
	if (r == 0)
		r = forge_access_resolves(&run->forge, e);
	if (r == 0 && run->forge.on)
		log_info("guest forge access: sandboxes may reach %s", run->forge.origin);
	return r;
}

static int prepare_spec(struct run *run, const struct options *o, const struct config *config, struct err *e)
{
	struct sandbox_spec *spec = &run->spec;
	*spec = (struct sandbox_spec){
		.magic = SANDBOX_SPEC_MAGIC, .size = sizeof(struct sandbox_spec), .config = *config};
	if (o->job_id)
		memcpy(spec->job_id, o->job_id, strlen(o->job_id));
	int r = o->timeout ? config_set(&spec->config, "job-timeout", o->timeout, e) : 0;
	if (r < 0)
		return err_ctx(e, r, "--timeout");
	spec->network_log = o->network_log != NULL;
	r = prepare_forge(run, e);
	return r < 0 ? r : choose_isolation(spec, e);
}

static int prepare_workspace(struct run *run, const struct options *o, struct err *e)
{
	if (!o->workspace)
		return 0;
	int r = named_open(o->workspace, O_RDONLY | O_DIRECTORY, &run->workspace, e);
	run->job.workspace = run->workspace;
	return r < 0 ? err_ctx(e, r, "--workspace %s", o->workspace) : 0;
}

static int prepare_workdir(struct run *run, const struct options *o, struct err *e)
{
	const char *dir = o->workdir ? o->workdir : "";
	bool is_relative = dir[0] != '/' && dir[0] != '\0';
	int n = snprintf(run->workdir, sizeof(run->workdir), "%s%s", is_relative ? CLIENT_WORK_DIR "/" : "",
			 dir);
	if (n < 0 || (size_t)n >= sizeof(run->workdir))
		return err_set(e, -ENAMETOOLONG, "--workdir: at most %d bytes are accepted", TREE_NAME_MAX);
	run->job.workdir = run->workdir;
	return 0;
}

/* Cuts what does not name anything off the end of a path inside, and finds its last component. */
static int prepare_output_path(struct run *run, struct client_output *out, struct err *e)
{
	char *path = out->path;
	size_t n = strlen(path);
	while (n > 1 && (path[n - 1] == '/' || (path[n - 1] == '.' && path[n - 2] == '/')))
		n--;
	path[n] = '\0';
	/* "." is the working directory itself, and is called what that is called. */
	static char work_dir[] = CLIENT_WORK_DIR;
	if (strcmp(path, ".") == 0)
		out->path = run->workdir[0] ? run->workdir : work_dir;
	const char *slash = strrchr(out->path, '/');
	out->base = slash ? slash + 1 : out->path;
	if (out->base[0] == '\0' || strcmp(out->base, "..") == 0 || strlen(out->path) > TREE_NAME_MAX)
		return err_set(e, -EINVAL, "--output %s: a path inside that ends in a name is accepted",
			       path);
	return 0;
}

static int prepare_output(struct run *run, char *value, struct err *e)
{
	struct client_output *out = &run->outputs[run->job.n_outputs];
	*out = (struct client_output){.path = value, .target = FILES_TARGET_INIT};
	char *colon = strchr(value, ':');
	if (colon)
		*colon = '\0';
	int r = prepare_output_path(run, out, e);
	if (r < 0)
		return r;
	r = files_target_open(colon ? colon + 1 : out->base, &out->target, e);
	if (r < 0)
		return err_ctx(e, r, "--output %s", value);
	run->job.n_outputs++;
	return 0;
}

static int prepare_outputs(struct run *run, const struct options *o, struct err *e)
{
	run->job.outputs = run->outputs;
	int r = 0;
	for (size_t i = 0; i < o->n_outputs && r == 0; i++)
		r = prepare_output(run, o->outputs[i], e);
	return r;
}

/* A result is put in place by renaming: over anything but a file that would be a surprise. */
static int prepare_result(struct run *run, const struct options *o, struct err *e)
{
	if (!o->result)
		return 0;
	int r = files_target_open(o->result, &run->result, e);
	if (r < 0)
		return err_ctx(e, r, "--result");
	struct stat st = {0};
	if (fstatat(run->result.dir, run->result.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
		return err_set(e, -EEXIST, "--result %s: is there and not a regular file", o->result);
	return 0;
}

/* The log is written while the job runs: only a regular file never makes us wait. */
static int prepare_network_log(struct run *run, const struct options *o, struct err *e)
{
	if (!o->network_log)
		return 0;
	struct files_target target = FILES_TARGET_INIT;
	int r = files_target_open(o->network_log, &target, e);
	if (r < 0)
		return err_ctx(e, r, "--network-log");
	run->network_log = openat(target.dir, target.name,
				  O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
	files_target_done(&target);
	if (run->network_log < 0)
		return err_sys(e, "--network-log %s", o->network_log);
	struct stat st = {0};
	if (fstat(run->network_log, &st) < 0 || !S_ISREG(st.st_mode))
		return err_set(e, -EEXIST, "--network-log %s: is there and not a regular file",
			       o->network_log);
	/* Whoever can write to the directory may have given somebody else's file this name. */
	if (st.st_nlink != 1)
		return err_set(e, -EEXIST, "--network-log %s: the file that is there has another name, too",
			       o->network_log);
	if (ftruncate(run->network_log, 0) < 0)
		return err_sys(e, "--network-log %s", o->network_log);
	run->job.network_log = run->network_log;
	return 0;
}

static void warn_if_short(const char *entry, const char *value)
{
	char text[TEXT_MAX];
	size_t n = strlen(value);
	while (n > 0 && isspace((unsigned char)value[n - 1]))
		n--;
	for (; n > 0 && isspace((unsigned char)*value); n--)
		value++;
	if (n == 0 || n >= MASK_FORM_MIN)
		return;
	(void)snprintf(text, sizeof(text), "the secret %.*s has less than %d bytes and is not masked",
		       (int)(strchr(entry, '=') - entry), entry, MASK_FORM_MIN);
	command_say("warning", text);
}

/* Secrets are variables of the job, too, and win over plain ones. */
static int prepare_environment(struct run *run, struct options *o, struct err *e)
{
	int r = forge_access_rewrite(&run->forge, &o->environment, e);
	if (r < 0)
		return r;
	run->secrets = BUF_INIT(MASK_SECRETS_MAX);
	for (size_t i = 0; i < o->secrets.n; i++) {
		const char *value = strchr(o->secrets.entries[i], '=') + 1;
		if (value[0])
			buf_add(&run->secrets, value, strlen(value) + 1);
		warn_if_short(o->secrets.entries[i], value);
		r = env_set(&o->environment, o->secrets.entries[i], e);
		if (r < 0)
			return r;
	}
	r = buf_check(&run->secrets);
	if (r < 0)
		return err_set(e, r, "all secrets together are longer than the %d bytes that are accepted",
			       MASK_SECRETS_MAX);
	run->job.secrets = buf_text(&run->secrets);
	run->job.secrets_n = run->secrets.n;
	const char *term = o->terminal && !env_get(&o->environment, "TERM") ? getenv("TERM") : NULL;
	r = term ? env_put(&o->environment, "TERM", term, e) : 0;
	run->job.environment = o->environment.entries;
	return r;
}

static int prepare(struct run *run, struct options *o, const struct config *config, char *const args[],
		   struct err *e)
{
	run->job = (struct client_job){
		.spec = &run->spec,
		.arguments = args,
		.user = o->user ? o->user : "",
		.workspace = -1,
		.network_log = -1,
		.has_stdin = o->has_stdin,
		.terminal = o->terminal,
		.say = command_say,
	};
	int r = prepare_spec(run, o, config, e);
	if (r == 0)
		r = prepare_workspace(run, o, e);
	if (r == 0)
		r = prepare_workdir(run, o, e);
	if (r == 0)
		r = prepare_outputs(run, o, e);
	if (r == 0)
		r = prepare_result(run, o, e);
	if (r == 0)
		r = prepare_environment(run, o, e);
	if (r == 0)
		r = prepare_network_log(run, o, e);
	return r < 0 ? r : client_check(&run->job, e);
}

static int write_result(const struct run *run, const struct job_result *result, struct err *e)
{
	if (run->result.dir < 0)
		return 0;
	scoped_buf struct buf text = BUF_INIT(TEXT_BYTES);
	job_result_json(result, &text);
	buf_str(&text, "\n");
	int r = buf_check(&text);
	if (r < 0)
		return err_code(e, r, "write the result");
	r = file_replace(run->result.dir, run->result.name, 0644, buf_text(&text), text.n, e);
	return r < 0 ? err_ctx(e, r, "--result") : 0;
}

static void show_summary(const struct job_result *result)
{
	scoped_buf struct buf text = BUF_INIT(TEXT_BYTES);
	job_result_text(result, &text);
	(void)file_write_all(STDERR_FILENO, buf_text(&text), text.n, NULL);
}

static void run_done(struct run *run)
{
	for (size_t i = 0; i < run->job.n_outputs; i++)
		files_target_done(&run->outputs[i].target);
	files_target_done(&run->result);
	fd_close(&run->workspace);
	fd_close(&run->network_log);
	if (run->secrets.p)
		explicit_bzero(run->secrets.p, run->secrets.n);
	buf_done(&run->secrets);
}

static int run_job(const struct config *config, void *data, char *const args[], size_t, struct err *e)
{
	struct options *o = data;
	int r = file_need_descriptors(DESCRIPTORS, e);
	if (r == 0)
		r = file_need_memory(MEMORY_MIB, e);
	if (r < 0)
		return r;
	scoped_free struct run *run = calloc(1, sizeof(*run));
	if (!run)
		return err_set(e, -ENOMEM, "out of memory");
	run->workspace = run->network_log = -1;
	run->result = FILES_TARGET_INIT;
	struct job_result result = {0};
	r = prepare(run, o, config, args, e);
	if (r == 0)
		r = client_run(&run->job, &result, e);
	if (r == 0 && o->summary)
		show_summary(&result);
	if (r == 0)
		r = write_result(run, &result, e);
	run_done(run);
	return r < 0 ? r : result.exit_status;
}

static void options_done(void *data)
{
	struct options *o = data;
	env_done(&o->environment);
	env_done(&o->secrets);
}

const struct command cmd_run = {
	.name = "run",
	.args = "[--] COMMAND [ARG...]",
	.help = "Run one job in a fresh sandbox and exit with the job's status.",
	.options = options,
	.config = command_config_all,
	.min_args = 1,
	.max_args = COMMAND_ARGS_ANY,
	.failed_status = CLIENT_FAILED,
	.usage_status = CLIENT_FAILED,
	.data_size = sizeof(struct options),
	.run = run_job,
	.done = options_done,
};
