#include "resource/docker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"
#include "resource/resource.h"
#include "spec/docker.h"
#include "spec/libexec.h"

/* A daemon that does not answer must not keep a sandbox from its end: what stays is removed by the next reap. */
enum { REMOVE_MS = 30000, LIST_MS = 15000, OUTPUT_MAX = 65536 };

/* Appends what was written into a memfd. */
static int read_back(int fd, struct buf *ret, struct err *e)
{
	char text[4096];
	if (lseek(fd, 0, SEEK_SET) < 0)
		return err_sys(e, "read what ermite-docker said");
	for (;;) {
		ssize_t n = file_read_all(fd, text, sizeof(text), e);
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		buf_add(ret, text, (size_t)n);
	}
	int r = buf_check(ret);
	return r < 0 ? err_code(e, r, "read what ermite-docker said") : 0;
}

/* The sentence that a failed call ended with. */
static int fail(const struct docker_call *call, const struct child_end *end, int reason, struct err *e)
{
	static const char prefix[] = "ermite-docker: ";
	scoped_buf struct buf text = BUF_INIT(OUTPUT_MAX);
	const char *command = call->arguments[1];
	if (end->signal)
		return err_set(e, -EIO, "ermite-docker %s was killed by signal %d", command, end->signal);
	int r = read_back(reason, &text, e);
	if (r < 0)
		return r;
	if (text.n == 0)
		return err_set(e, -EIO, "ermite-docker %s failed with status %d", command, end->status);
	const char *sentence = buf_text(&text);
	if (strncmp(sentence, prefix, strlen(prefix)) == 0)
		sentence += strlen(prefix);
	return err_set(e, -EIO, "%.*s", (int)strcspn(sentence, "\n"), sentence);
}

int docker_call(const struct docker_call *call, struct err *e)
{
	char path[CONFIG_PATH_MAX];
	struct child child = CHILD_INIT;
	struct child_end end;
	scoped_fd int out = memfd_create("ermite-docker-output", MFD_CLOEXEC);
	scoped_fd int reason = memfd_create("ermite-docker-reason", MFD_CLOEXEC);
	if (out < 0 || reason < 0)
		return err_sys(e, "make a memory file");
	int r = libexec_path("ermite-docker", path, e);
	if (r < 0)
		return r;
	const int fds[] = {-1, out, call->progress ? STDERR_FILENO : reason, call->mounts};
	const struct child_plan plan = {.path = path,
					.arguments = call->arguments,
					.environment = child_environment,
					.fds = fds,
					.n_fds = 4,
					.die_with_parent = true};
	r = child_start(&plan, &child, e);
	if (r < 0)
		return r;
	r = child_wait(&child, call->ms, &end, e);
	if (r < 0) {
		child_kill(&child);
		return r == -ETIMEDOUT ? err_set(e, r, "Docker's daemon did not answer within %llu s",
						 (unsigned long long)(call->ms / 1000))
				       : r;
	}
	if (end.status != 0)
		return fail(call, &end, reason, e);
	return call->output ? read_back(out, call->output, e) : 0;
}

int docker_store(int store_fd, char ret[static CONFIG_PATH_MAX], struct err *e)
{
	static const char below[] = "/sandboxes";
	size_t cut = strlen(below);
	int r = file_path(store_fd, ret, CONFIG_PATH_MAX, e);
	if (r < 0)
		return err_ctx(e, r, "the store of sandboxes");
	size_t n = strlen(ret);
	if (n <= cut || strcmp(ret + n - cut, below) != 0)
		return err_set(e, -EINVAL, "the store of sandboxes has a path of another form");
	ret[n - cut] = '\0';
	return 0;
}

/* The keeper has ermite-docker make the container only when everything else is there; the record, synced, names the
 * daemon already. */
static int make(struct sandbox *, struct err *)
{
	return 0;
}

static int mounts_of(const struct host *host)
{
	return host ? host->mounts : -1;
}

/* Returns 1 when it removed anything, 0 when nothing was there. */
static int remove_objects(const char *socket, const char *id, const struct host *host, struct err *e)
{
	scoped_buf struct buf removed = BUF_INIT(OUTPUT_MAX);
	const char *const arguments[] = {"ermite-docker", "remove", socket, id, NULL};
	const struct docker_call call = {
		.arguments = arguments, .mounts = mounts_of(host), .ms = REMOVE_MS, .output = &removed};
	int r = docker_call(&call, e);
	return r < 0 ? r : removed.n > 0;
}

static int unmake(struct sandbox *s, struct err *e)
{
	const struct record_info *info = record_info(s->record);
	/* A torn record names no daemon, and nothing was made before it was whole. */
	return info->docker[0] ? remove_objects(info->docker, s->id, s->host, e) : 0;
}

static void sweep_one(struct reap *reap, const char *id)
{
	struct err own = ERR_INIT;
	/* Records are made before containers and removed after them, and the container was found before its record is
	 * looked for here: one that is just starting has its record by now. */
	if (!id_valid(id) || faccessat(reap->store_fd, id, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
		return;
	/* 0: another process has removed it since, and tells of it. */
	int r = reap->dry_run ? 1 : remove_objects(reap->docker_socket, id, reap->host, &own);
	if (r != 0)
		reap_tell(reap, "container", id, r < 0 ? own.msg : NULL);
}

static int sweep(struct reap *reap, struct err *e)
{
	char store[CONFIG_PATH_MAX];
	scoped_buf struct buf ids = BUF_INIT(OUTPUT_MAX);
	if (!reap->docker_socket)
		return 0;
	int r = docker_store(reap->store_fd, store, e);
	if (r < 0)
		return r;
	const char *const arguments[] = {"ermite-docker", "list", reap->docker_socket, store, NULL};
	const struct docker_call call = {
		.arguments = arguments, .mounts = mounts_of(reap->host), .ms = LIST_MS, .output = &ids};
	r = docker_call(&call, e);
	const char *at = buf_text(&ids);
	const char *line = NULL;
	size_t n = 0;
	while (r == 0 && buf_next_line(&at, &line, &n)) {
		char id[ID_SIZE];
		(void)snprintf(id, sizeof(id), "%.*s", (int)n, line);
		if (n + 1 == sizeof(id))
			sweep_one(reap, id);
	}
	return r;
}

const struct resource resource_docker = {.name = "docker", .make = make, .unmake = unmake, .sweep = sweep};
