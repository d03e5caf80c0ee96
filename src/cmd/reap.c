#include "cmd/reap.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "cmd/commands.h"
#include "resource/resource.h"

enum { LINE_MAX_BYTES = 4096, DESCRIPTORS = 64 };

struct options {
	bool json;
	bool dry_run;
	int output; /* what standard output answered, 0 or a negative errno */
};

static int set_json(void *data, char *, struct err *)
{
	((struct options *)data)->json = true;
	return 0;
}

static int set_dry_run(void *data, char *, struct err *)
{
	((struct options *)data)->dry_run = true;
	return 0;
}

static const struct command_option options[] = {
	{"dry-run", 0, NULL, "Remove nothing, say what would be removed.", set_dry_run},
	{"json", 0, NULL, "Print one JSON object per thing and line.", set_json},
	{0},
};

static const char *const config[] = {"state-dir", "log", "log-level", NULL};

static void add_json(const struct options *o, const struct leftover *l, struct buf *line)
{
	const char *state = l->reason ? "left" : o->dry_run ? "found" : "removed";
	buf_fmt(line, "{\"kind\":\"%s\",\"name\":", l->kind);
	buf_json(line, l->name, strlen(l->name));
	buf_fmt(line, ",\"state\":\"%s\",\"reason\":", state);
	if (l->reason)
		buf_json(line, l->reason, strlen(l->reason));
	else
		buf_str(line, "null");
	buf_str(line, "}\n");
}

/* A failing standard output keeps nobody from reaping. */
static void print_leftover(void *data, const struct leftover *l)
{
	struct options *o = data;
	scoped_buf struct buf line = BUF_INIT(LINE_MAX_BYTES);
	if (o->json) {
		add_json(o, l, &line);
	} else if (l->reason) {
		leftover_text(l, &line);
		command_say(NULL, buf_text(&line));
		return;
	} else if (o->dry_run) {
		buf_fmt(&line, "would remove %s %s\n", l->kind, l->name);
	} else {
		leftover_text(l, &line);
		buf_str(&line, "\n");
	}
	int r = file_write_all(STDOUT_FILENO, buf_text(&line), line.n, NULL);
	if (o->output == 0)
		o->output = r;
}

const char *reap_find_docker(char path[static DOCKER_SOCKET_SIZE])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || docker_socket(getenv("DOCKER_HOST"), path, NULL) < 0)
		return NULL;
	memcpy(address.sun_path, path, strlen(path));
	return connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ? NULL : path;
}

static int run_reap(const struct config *c, void *data, char *const[], size_t, struct err *e)
{
	struct options *o = data;
	struct host host = HOST_INIT;
	scoped_fd int store = -1;
	int r = file_need_descriptors(DESCRIPTORS, e);
	if (r == 0)
		r = host_open(&host, e);
	if (r == 0)
		r = record_open_store(c->state_dir, &store, e);
	char docker[DOCKER_SOCKET_SIZE];
	struct reap reap = {.store_fd = store,
			    .host = &host,
			    .docker_socket = reap_find_docker(docker),
			    .dry_run = o->dry_run,
			    .tell = print_leftover,
			    .data = o};
	if (r == 0)
		r = resources_reap(&reap, e);
	host_close(&host);
	if (r == 0 && o->output < 0)
		r = err_code(e, o->output, "standard output");
	return r < 0 ? r : reap.n_left > 0 ? COMMAND_FAILED : 0;
}

const struct command cmd_reap = {
	.name = "reap",
	.args = "",
	.help = "Remove what sandboxes left behind that were killed.",
	.options = options,
	.config = config,
	.data_size = sizeof(struct options),
	.run = run_reap,
};
