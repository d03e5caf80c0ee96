#include <errno.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/scope.h"
#include "isolation/container/docker.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/engine_answer.h"

enum { DELETE_MS = 25'000, DELETE_TRIES = 3 };

/* What may bear our labels. */
struct kind {
	const char *what;
	const char *list;   /* with room for the filter */
	const char *member; /* the answer is an object with the array in it; NULL: it is the array */
	const char *name;   /* the member that it is called by */
	const char *delete_prefix, *delete_suffix;
	const char *
		wait; /* answers when it is gone, after the delete_prefix and the name; NULL: it goes at once */
};

static const struct kind kinds[] = {
	{"container", "/containers/json?all=1&filters=", NULL, "Id", "/containers/", "?force=1&v=1",
	 "/wait?condition=removed"},
	{"volume", "/volumes?filters=", "Volumes", "Name", "/volumes/", "?force=1", NULL},
	{"network", "/networks?filters=", NULL, "Id", "/networks/", "", NULL},
};

/* Goes where the host's paths are, when the caller's are others. */
static int enter_mounts(struct err *e)
{
	if (ioctl(DOCKER_MOUNTS_FD, NS_GET_NSTYPE) != CLONE_NEWNS)
		return 0;
	return setns(DOCKER_MOUNTS_FD, CLONE_NEWNS) < 0 ? err_sys(e, "enter the host's mount namespace") : 0;
}

/* Ids and names of Docker's are such; anything else does not get into a path. */
static bool name_valid(const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
	size_t n = strlen(name);
	return n > 0 && n <= 255 && strspn(name, allowed) == n && *name != '.';
}

/* Everything of a kind that bears the label. *ret is the array in *ret_answer, which is the caller's. */
static int list_kind(struct engine *g, const struct kind *k, const char *label, const char *value,
		     json_t **ret_answer, json_t **ret, struct err *e)
{
	scoped_buf struct buf path = BUF_INIT(ENGINE_PATH_MAX);
	scoped_json json_t *filter = json_pack("{s:[s++]}", "label", label, "=", value);
	scoped_free char *text = filter ? json_dumps(filter, JSON_COMPACT) : NULL;
	if (!text)
		return err_set(e, -EINVAL, "the label %s=%s is no text for Docker", label, value);
	buf_str(&path, k->list);
	docker_escape(&path, text);
	const struct engine_request q = {.method = "GET", .path = buf_text(&path), .ms = DOCKER_LOOK_MS};
	scoped_json json_t *answer = NULL;
	json_t *array = NULL;
	int r = buf_check(&path) < 0 ? err_set(e, -ENAMETOOLONG, "%s", value)
				     : engine_call(g, &q, &answer, e);
	if (r < 0)
		return r;
	if (k->member)
		r = answer_find(answer, k->member, JSON_ARRAY, &array, e);
	else if (json_is_array(answer))
		array = answer;
	else
		r = err_set(e, -EPROTO, "no list");
	if (r < 0)
		return err_ctx(e, r, "the Docker daemon's list of %ss", k->what);
	*ret = array;
	*ret_answer = ptr_steal(&answer);
	return 0;
}

static int request_named(struct engine *g, const char *method, const struct kind *k, const char *name,
			 const char *suffix, struct err *e)
{
	scoped_buf struct buf path = BUF_INIT(ENGINE_PATH_MAX);
	buf_fmt(&path, "%s%s%s", k->delete_prefix, name, suffix);
	const struct engine_request q = {.method = method, .path = buf_text(&path), .ms = DELETE_MS};
	return engine_call(g, &q, NULL, e);
}

/* Removes one object, and says so on standard output. One that is gone is fine; one that another request removes is
 * waited for. */
static int remove_one(struct engine *g, const struct kind *k, const char *name, struct err *e)
{
	int r = request_named(g, "DELETE", k, name, k->delete_suffix, e);
	for (int i = 1; r == -EEXIST && k->wait && i < DELETE_TRIES; i++) {
		r = request_named(g, "POST", k, name, k->wait, e);
		if (r == 0)
			r = request_named(g, "DELETE", k, name, k->delete_suffix, e);
	}
	if (r == 0)
		(void)printf("%s %s\n", k->what, name);
	return r == -ENOENT || r == 0 ? 0 : err_ctx(e, r, "remove the %s %.12s", k->what, name);
}

typedef int object_fn(void *data, struct engine *g, const struct kind *k, const json_t *object,
		      struct err *e);

static int each_of_kind(struct engine *g, const struct kind *k, const char *label, const char *value,
			object_fn *fn, void *data, struct err *e)
{
	scoped_json json_t *answer = NULL;
	json_t *array = NULL;
	const json_t *object;
	size_t i;
	int r = list_kind(g, k, label, value, &answer, &array, e);
	json_array_foreach(array, i, object)
	{
		if (r == 0)
			r = fn(data, g, k, object, e);
	}
	return r;
}

/* Calls fn for every object that bears the label, until it returns an error. */
static int each(const char *socket, const char *label, const char *value, object_fn *fn, void *data,
		struct err *e)
{
	scoped_engine struct engine *g = NULL;
	int r = enter_mounts(e);
	if (r == 0)
		r = engine_new(socket, ENGINE_LIMITS, &g, e);
	for (size_t i = 0; r == 0 && i < sizeof(kinds) / sizeof(*kinds); i++)
		r = each_of_kind(g, &kinds[i], label, value, fn, data, e);
	return r;
}

static int remove_object(void *, struct engine *g, const struct kind *k, const json_t *object, struct err *e)
{
	const char *name = NULL;
	int r = answer_text(object, k->name, &name, e);
	if (r == 0 && !name_valid(name))
		r = err_set(e, -EPROTO, "the Docker daemon names a %s what none can be named", k->what);
	return r < 0 ? r : remove_one(g, k, name, e);
}

int docker_remove(char **arguments, struct err *e)
{
	const char *id = arguments[1];
	if (!id_valid(id))
		return err_set(e, -EINVAL, "not the id of a sandbox");
	int r = each(arguments[0], DOCKER_LABEL_JOB, id, remove_object, NULL, e);
	return r < 0 ? err_ctx(e, r, "%s", id) : 0;
}

/* Adds the id in an object's labels to the lines, unless it is there. A label that is no id of ours is passed over:
 * whoever may speak to Docker can make one. */
static int add_id(void *data, struct engine *, const struct kind *, const json_t *object, struct err *e)
{
	struct buf *lines = data;
	json_t *labels = NULL;
	const char *id = "";
	int r = answer_need(object, "Labels", JSON_OBJECT, &labels, e);
	if (r == 0)
		r = answer_text_or_empty(labels, DOCKER_LABEL_JOB, &id, e);
	if (r == 0 && id_valid(id) && !strstr(buf_text(lines), id))
		buf_fmt(lines, "%s\n", id);
	return r;
}

int docker_list(char **arguments, struct err *e)
{
	scoped_buf struct buf lines = BUF_INIT(1u << 20);
	int r = each(arguments[0], DOCKER_LABEL_STORE, arguments[1], add_id, &lines, e);
	if (r == 0 && buf_check(&lines) < 0)
		r = err_set(e, -ENOBUFS, "the Docker daemon lists more sandboxes than there can be");
	if (r < 0)
		return r;
	(void)fputs(buf_text(&lines), stdout);
	return fflush(stdout) == 0 ? 0 : err_sys(e, "standard output");
}
