#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/docker_progress.h"
#include "isolation/container/engine_answer.h"
#include "spec/docker.h"
#include "sys/mounts.h"

#define TAR_PROGRAM "/usr/bin/tar"

enum { IMAGE_JSON_MAX = 8 << 20, SHA256_SIZE = 65, TAR_END_MS = 30'000, REMOVE_MS = 30'000 };

/* An image on its way from the file system to the daemon. */
struct feed {
	struct child tar;
	int reader; /* what tar writes */
	uint64_t done, total;
	char id[DOCKER_IMAGE_ID_SIZE]; /* of the image, once the daemon has told it */
	struct docker_progress progress;
};

/* The SHA-256 that the image's own description states of base.ext4. */
static int read_source(const char *directory, char ret[static SHA256_SIZE], struct err *e)
{
	scoped_free char *path = NULL;
	scoped_free char *text = malloc(IMAGE_JSON_MAX);
	scoped_json json_t *description = NULL;
	const char *sha256 = "";
	if (!text || asprintf(&path, "%s/image.json", directory) < 0)
		return err_set(e, -ENOMEM, "out of memory");
	ssize_t n = file_read_text(AT_FDCWD, path, text, IMAGE_JSON_MAX, e);
	if (n < 0)
		return (int)n;
	int r = answer_parse(text, (size_t)n, &description, e);
	if (r == 0)
		r = answer_text(description, "sha256", &sha256, e);
	if (r == 0 &&
	    (strlen(sha256) != SHA256_SIZE - 1 || strspn(sha256, "0123456789abcdef") != SHA256_SIZE - 1))
		r = err_set(e, -EPROTO, "the member sha256 is no SHA-256");
	if (r < 0)
		return err_ctx(e, r, "%s", path);
	memcpy(ret, sha256, SHA256_SIZE);
	return 0;
}

/* Mounts the image over its own directory, in a mount namespace that ends with this process. */
static int mount_source(const char *directory, uint64_t *ret_bytes, struct err *e)
{
	struct statvfs fs;
	int r = mount_own_namespace(e);
	if (r == 0)
		r = mount_image_base(directory, directory, e);
	if (r == 0 && statvfs(directory, &fs) < 0)
		r = err_sys(e, "look at the size of %s", directory);
	if (r == 0)
		*ret_bytes = (uint64_t)(fs.f_blocks - fs.f_bfree) * fs.f_frsize;
	return r;
}

static int start_tar(const char *directory, struct feed *f, struct err *e)
{
	const char *const arguments[] = {"tar",
					 "--create",
					 "--file=-",
					 "--format=pax",
					 "--numeric-owner",
					 "--xattrs",
					 "--xattrs-include=security.capability",
					 "--one-file-system",
					 "--exclude=./lost+found",
					 "--directory",
					 directory,
					 ".",
					 NULL};
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(e, "make a pipe");
	f->reader = ends[0];
	scoped_fd int writer = ends[1];
	const int fds[] = {-1, writer, STDERR_FILENO};
	const struct child_plan plan = {
		.path = TAR_PROGRAM,
		.arguments = arguments,
		.environment = child_environment,
		.fds = fds,
		.n_fds = 3,
		.die_with_parent = true,
	};
	return child_start(&plan, &f->tar, e);
}

/* The end of what tar writes is the end of the image only if tar says so. */
static int end_tar(struct feed *f, struct err *e)
{
	struct child_end end;
	int r = child_wait(&f->tar, TAR_END_MS, &end, e);
	if (r < 0)
		return err_ctx(e, r, "tar");
	if (end.status != 0)
		return err_set(e, -EIO, "tar ended with %s %d", end.signal ? "signal" : "status",
			       end.signal ? end.signal : end.status);
	return 0;
}

static ssize_t feed_bytes(void *data, char *p, size_t n, struct err *e)
{
	struct feed *f = data;
	ssize_t got;
	do
		got = read(f->reader, p, n);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return err_sys(e, "read what tar writes");
	if (got == 0)
		return end_tar(f, e);
	f->done += (uint64_t)got;
	docker_progress_tell(&f->progress, f->done, f->total);
	return got;
}

/* The daemon says the id of what it made, in the end. */
static int feed_line(void *data, const json_t *value, struct err *e)
{
	struct feed *f = data;
	const char *status = "";
	int r = answer_text_or_empty(value, "status", &status, e);
	if (r == 0 && docker_image_id_valid(status))
		memcpy(f->id, status, sizeof(f->id));
	return r;
}

/* The request: name, tag and, as an instruction of a recipe, our label. */
static int feed_path(const char *reference, const char *sha256, struct buf *path, struct err *e)
{
	buf_str(path, "/images/create?fromSrc=-&repo=");
	int r = docker_reference_add(reference, path, e);
	buf_fmt(path, "&changes=LABEL%%20" DOCKER_LABEL_IMAGE "%%3D%s", sha256);
	return r < 0 ? r : buf_check(path) < 0 ? err_set(e, -ENAMETOOLONG, "%s", reference) : 0;
}

static int transfer(struct engine *g, const char *path, struct feed *f, struct err *e)
{
	const struct engine_transfer t = {.path = path, .feed = feed_bytes, .line = feed_line, .data = f};
	int r = engine_transfer(g, &t, e);
	docker_progress_end(&f->progress);
	if (r == 0 && !f->id[0])
		r = err_set(e, -EPROTO, "the Docker daemon does not tell the id of the image");
	return r;
}

/* The image that bears the name now, if it was fed: its id, or an empty one. Not to know it is no failure. */
static void find_earlier(struct engine *g, const char *reference, char ret[static DOCKER_IMAGE_ID_SIZE])
{
	scoped_json json_t *image = NULL;
	json_t *config = NULL, *labels = NULL;
	const char *source = "", *id = "";
	ret[0] = '\0';
	if (docker_image_inspect(g, reference, &image, NULL) == 0 &&
	    answer_need(image, "Config", JSON_OBJECT, &config, NULL) == 0 &&
	    answer_need(config, "Labels", JSON_OBJECT, &labels, NULL) == 0 &&
	    answer_text(labels, DOCKER_LABEL_IMAGE, &source, NULL) == 0 &&
	    answer_text(image, "Id", &id, NULL) == 0 && docker_image_id_valid(id))
		memcpy(ret, id, DOCKER_IMAGE_ID_SIZE);
}

/* Without its name it would take its gigabytes for nothing. Docker keeps it while a container uses it, or another name
 * leads to it. */
static void remove_earlier(struct engine *g, const char *id)
{
	char path[DOCKER_IMAGE_ID_SIZE + 16];
	(void)snprintf(path, sizeof(path), "/images/%s", id);
	const struct engine_request q = {.method = "DELETE", .path = path, .ms = REMOVE_MS};
	(void)!engine_call(g, &q, NULL, NULL);
}

static int import(const char *socket, const char *reference, const char *directory, struct err *e)
{
	scoped_engine struct engine *g = NULL;
	scoped_buf struct buf path = BUF_INIT(ENGINE_PATH_MAX);
	scoped_buf struct buf what = BUF_INIT(1024);
	char sha256[SHA256_SIZE];
	char earlier[DOCKER_IMAGE_ID_SIZE] = "";
	struct feed f = {.tar = CHILD_INIT, .reader = -1};
	int r = read_source(directory, sha256, e);
	if (r == 0)
		r = feed_path(reference, sha256, &path, e);
	/* The connection first: its socket may lie where the image is mounted. */
	if (r == 0)
		r = engine_new(socket, ENGINE_LIMITS, &g, e);
	if (r == 0)
		r = mount_source(directory, &f.total, e);
	if (r == 0)
		r = start_tar(directory, &f, e);
	if (r == 0) {
		buf_fmt(&what, "feeding the image %s to Docker", reference);
		find_earlier(g, reference, earlier);
		docker_progress_begin(&f.progress, buf_text(&what));
		r = transfer(g, buf_text(&path), &f, e);
	}
	if (r == 0 && earlier[0] && strcmp(earlier, f.id) != 0)
		remove_earlier(g, earlier);
	fd_close(&f.reader);
	child_kill(&f.tar);
	return r;
}

int docker_import(char **arguments, struct err *e)
{
	const char *reference = arguments[1];
	if (!docker_reference_valid(reference) || strchr(reference, '@') || docker_image_id_valid(reference))
		return err_set(e, -EINVAL, "%s is not a name that an image can be given", reference);
	if (*arguments[2] != '/')
		return err_set(e, -EINVAL, "%s is not an absolute path", arguments[2]);
	int r = import(arguments[0], reference, arguments[2], e);
	return r < 0 ? err_ctx(e, r, "import %s", reference) : 0;
}
