#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "isolation/container/docker.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/engine_answer.h"
#include "spec/docker.h"

/* The daemon runs its runtimes to answer, which takes its time on a busy host. */
enum { INFO_MS = 30'000 };

/* How long a value of struct docker_facts may be. */
#define FACT_MAX(field) (sizeof(((struct docker_facts *)NULL)->field) - 1)

/* A line of the answer, whatever the value is: of at most so many bytes. */
static void say(const char *name, const char *value, size_t max)
{
	scoped_buf struct buf line = BUF_INIT(4096);
	buf_plain(&line, value, strnlen(value, max));
	(void)printf("%s %.*s\n", name, (int)max, buf_text(&line));
}

/* Whether the daemon sees the same files under the same paths: it is to mount them. The peer of a socket is who listens
 * at it, which is systemd where that does it for the daemon. */
static int check_same_root(int socket, struct err *e)
{
	struct ucred peer = {0};
	socklen_t n = sizeof(peer);
	char path[32];
	struct stat ours, theirs;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
		return err_sys(e, "ask who the Docker daemon is");
	if (peer.pid <= 0)
		return err_set(e, -EXDEV,
			       "the Docker daemon runs outside of the container that this is in: "
			       "it cannot mount our files");
	(void)snprintf(path, sizeof(path), "/proc/%d/root", (int)peer.pid);
	if (stat("/", &ours) < 0 || stat(path, &theirs) < 0)
		return err_sys(e, "compare the root directory of the Docker daemon with ours");
	if (ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino)
		return err_set(e, -EXDEV,
			       "the Docker daemon has another root directory than this host: "
			       "it cannot mount our files");
	return 0;
}

/* Security options are texts like "name=rootless" or "name=seccomp,profile=default". */
static bool has_option(const json_t *options, const char *wanted)
{
	const json_t *option;
	size_t i;
	json_array_foreach(options, i, option)
	{
		const char *text = json_string_value(option);
		if (text && strcmp(text, wanted) == 0)
			return true;
	}
	return false;
}

/* What of the daemon's own settings is in the way. */
static int check_settings(const char *system, const json_t *options, bool sysbox, struct err *e)
{
	if (strcmp(system, "linux") != 0)
		return err_set(e, -ENOTSUP, "the Docker daemon runs containers of %.20s, not of Linux",
			       system);
	if (has_option(options, "name=rootless"))
		return err_set(e, -ENOTSUP,
			       "the Docker daemon is a rootless one: it has no rights to give a sandbox what "
			       "it needs");
	/* A container can be left out of the mapping, but the files of its image belong to the mapped users all the
	 * same: there is no sudo, and root owns nothing. */
	if (has_option(options, "name=userns") && !sysbox)
		return err_set(e, -ENOTSUP,
			       "the Docker daemon maps users (userns-remap): in a privileged container the "
			       "files of the image would belong to the wrong ones");
	return 0;
}

static int probe_info(struct engine *g, struct err *e)
{
	const struct engine_request q = {.method = "GET", .path = "/info", .ms = INFO_MS};
	scoped_json json_t *info = NULL;
	const char *system = "", *version = "";
	json_t *options = NULL, *runtimes = NULL;
	int r = engine_call(g, &q, &info, e);
	if (r < 0)
		return r;
	r = answer_text(info, "ServerVersion", &version, e);
	if (r == 0)
		r = answer_text(info, "OSType", &system, e);
	if (r == 0)
		r = answer_find(info, "SecurityOptions", JSON_ARRAY, &options, e);
	if (r == 0)
		r = answer_need(info, "Runtimes", JSON_OBJECT, &runtimes, e);
	if (r < 0)
		return err_ctx(e, r, "the Docker daemon's answer to /info");
	say("version", version, FACT_MAX(version));
	bool sysbox = json_object_get(runtimes, "sysbox-runc") != NULL;
	if (sysbox)
		(void)puts("runtime sysbox-runc");
	return check_settings(system, options, sysbox, e);
}

static int probe_image(struct engine *g, const char *reference, struct err *e)
{
	scoped_json json_t *image = NULL;
	json_t *config = NULL, *labels = NULL;
	const char *id = "", *source = "";
	int r = docker_image_inspect(g, reference, &image, e);
	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = answer_text(image, "Id", &id, e);
	if (r == 0)
		r = answer_find(image, "Config", JSON_OBJECT, &config, e);
	if (r == 0 && config)
		r = answer_find(config, "Labels", JSON_OBJECT, &labels, e);
	if (r == 0 && labels)
		r = answer_text_or_empty(labels, DOCKER_LABEL_IMAGE, &source, e);
	if (r == 0 && !docker_image_id_valid(id))
		r = err_set(e, -EPROTO, "the id is none");
	if (r < 0)
		return err_ctx(e, r, "the image %s", reference);
	say("image", id, FACT_MAX(image_id));
	if (*source)
		say("source", source, FACT_MAX(image_source));
	return 0;
}

/* Whatever is wrong with the daemon is the answer, not a failure to give one. */
int docker_probe(char **arguments, struct err *e)
{
	struct engine *g = NULL;
	struct err why = ERR_INIT;
	if (!docker_reference_valid(arguments[1]))
		return err_set(e, -EINVAL, "%s is not the name of an image", arguments[1]);
	int r = engine_new(arguments[0], ENGINE_LIMITS, &g, &why);
	if (r == 0)
		r = check_same_root(engine_socket(g), &why);
	if (r == 0)
		r = probe_info(g, &why);
	if (r == 0)
		r = probe_image(g, arguments[1], &why);
	if (r < 0)
		say("trouble", why.msg, FACT_MAX(trouble));
	engine_free(g);
	return fflush(stdout) == 0 ? 0 : err_sys(e, "standard output");
}
