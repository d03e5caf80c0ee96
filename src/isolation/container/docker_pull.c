#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "isolation/container/docker_parts.h"
#include "isolation/container/docker_progress.h"
#include "isolation/container/engine_answer.h"

enum { LAYERS_MAX = 256, LAYER_ID_SIZE = 16 };

/* What is known of one layer on its way. */
struct layer {
	char id[LAYER_ID_SIZE];
	uint64_t done, total; /* bytes */
};

struct pull {
	struct docker_progress progress;
	unsigned n_layers;
	struct layer layers[LAYERS_MAX];
};

/* The layer of this id, or NULL when there are too many. */
static struct layer *layer_of(struct pull *p, const char *id)
{
	for (unsigned i = 0; i < p->n_layers; i++)
		if (strcmp(p->layers[i].id, id) == 0)
			return &p->layers[i];
	if (p->n_layers == LAYERS_MAX || strlen(id) >= LAYER_ID_SIZE)
		return NULL;
	struct layer *l = &p->layers[p->n_layers++];
	(void)snprintf(l->id, sizeof(l->id), "%s", id);
	return l;
}

/* A number of bytes that may be missing. */
static int read_bytes(const json_t *detail, const char *name, uint64_t *ret, struct err *e)
{
	json_t *value = NULL;
	int r = answer_find(detail, name, JSON_INTEGER, &value, e);
	if (r < 0)
		return r;
	json_int_t bytes = json_integer_value(value);
	*ret = bytes > 0 ? (uint64_t)bytes : 0;
	return 0;
}

static void tell(struct pull *p)
{
	uint64_t done = 0, total = 0;
	for (unsigned i = 0; i < p->n_layers; i++) {
		/* Sums of hostile numbers may wrap: they are only shown. */
		done += p->layers[i].done;
		total += p->layers[i].total;
	}
	docker_progress_tell(&p->progress, done, total);
}

/* A line tells of one layer: "Downloading" with bytes, then "Download complete", then that it is unpacked. */
static int pull_line(void *data, const json_t *value, struct err *e)
{
	struct pull *p = data;
	const char *status = "", *id = "";
	json_t *detail = NULL;
	uint64_t done = 0, total = 0;
	int r = answer_text_or_empty(value, "status", &status, e);
	if (r == 0)
		r = answer_text_or_empty(value, "id", &id, e);
	if (r == 0)
		r = answer_find(value, "progressDetail", JSON_OBJECT, &detail, e);
	if (r == 0 && detail)
		r = read_bytes(detail, "current", &done, e);
	if (r == 0 && detail)
		r = read_bytes(detail, "total", &total, e);
	if (r < 0)
		return err_ctx(e, r, "the Docker daemon's answer to the pull");
	struct layer *l = *id ? layer_of(p, id) : NULL;
	if (!l)
		return 0;
	if (strcmp(status, "Downloading") == 0 && total > 0) {
		l->done = done;
		l->total = total;
	} else if (strcmp(status, "Download complete") == 0 || strcmp(status, "Pull complete") == 0) {
		l->done = l->total;
	}
	tell(p);
	return 0;
}

int docker_pull(char **arguments, struct err *e)
{
	scoped_engine struct engine *g = NULL;
	scoped_buf struct buf path = BUF_INIT(ENGINE_PATH_MAX);
	scoped_buf struct buf what = BUF_INIT(1024);
	scoped_json json_t *image = NULL;
	const char *reference = arguments[1];
	if (!docker_reference_valid(reference))
		return err_set(e, -EINVAL, "%s is not the name of an image", reference);
	if (docker_image_id_valid(reference))
		return err_set(e, -EINVAL, "the image %s is not there, and by its id it cannot be pulled",
			       reference);
	/* Without a tag all of them would come. */
	buf_str(&path, "/images/create?fromImage=");
	int r = docker_reference_add(reference, &path, e);
	if (r == 0)
		r = engine_new(arguments[0], ENGINE_LIMITS, &g, e);
	if (r < 0)
		return r;
	struct pull p = {0};
	buf_fmt(&what, "pulling the image %s", reference);
	const struct engine_transfer t = {.path = buf_text(&path), .line = pull_line, .data = &p};
	docker_progress_begin(&p.progress, buf_text(&what));
	r = engine_transfer(g, &t, e);
	docker_progress_end(&p.progress);
	if (r == 0)
		r = docker_image_inspect(g, reference, &image, e);
	return r < 0 ? err_ctx(e, r, "%s", buf_text(&what)) : 0;
}
