#include "isolation/container/provide.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isolation/container/capabilities.h"
#include "isolation/container/facts.h"
#include "isolation/needs.h"
#include "resource/docker.h"

enum { SENTENCE_MAX = 1024 };

/* --- what is missing ----------------------------------------------------------------------------------------- */

/* Asks the daemon once for both forms. */
static void ask(const struct config *c, struct isolation_host *host)
{
	struct err e = ERR_INIT;
	if (host->docker_asked)
		return;
	host->docker_asked = true;
	if (docker_socket(getenv("DOCKER_HOST"), host->docker_socket, &e) < 0)
		(void)snprintf(host->docker.trouble, sizeof(host->docker.trouble), "%s", e.msg);
	else if (needs_file_missing(host->docker_socket))
		(void)snprintf(
			host->docker.trouble, sizeof(host->docker.trouble),
			"Docker's daemon does not run: there is no socket at %s (apt install docker.io; "
			"systemctl start docker)",
			host->docker_socket);
	else
		facts_ask(host->docker_socket, c->image_oci, &host->docker);
}

static bool is_fed(const struct config *c)
{
	return strcmp(c->image_oci, CONFIG_IMAGE_OCI) == 0;
}

/* The default image can be fed, any other one can be pulled. */
static unsigned missing_image(const struct config *c, const struct isolation_host *host, struct buf *reasons)
{
	char directory[CONFIG_PATH_MAX];
	char file[CONFIG_PATH_MAX + 16];
	char sentence[SENTENCE_MAX];
	if (host->docker.trouble[0] || host->docker.image_id[0] || !is_fed(c))
		return 0;
	config_default_image_dir(c, directory);
	(void)snprintf(file, sizeof(file), "%s/base.ext4", directory);
	(void)snprintf(sentence, sizeof(sentence),
		       "Docker has no image " CONFIG_IMAGE_OCI
		       ", and there is none at %s to make it from (ermite-runner image build)",
		       directory);
	return needs_miss(reasons, needs_file_missing(file), sentence);
}

static unsigned missing_both(const struct config *c, struct isolation_host *host, struct buf *reasons)
{
	unsigned n = needs_common(c, reasons);
	ask(c, host);
	n += needs_miss(reasons, host->docker.trouble[0], host->docker.trouble);
	return n + missing_image(c, host, reasons);
}

unsigned provide_missing_sysbox(const struct config *c, struct isolation_host *host, struct buf *reasons)
{
	unsigned n = missing_both(c, host, reasons);
	return n + needs_miss(reasons, !host->docker.trouble[0] && !host->docker.sysbox,
			      "Docker's daemon has no runtime sysbox-runc (install Sysbox)");
}

unsigned provide_missing_privileged(const struct config *c, struct isolation_host *host, struct buf *reasons)
{
	unsigned n = missing_both(c, host, reasons);
	return n + needs_miss(reasons, c->deny_privileged,
			      "privileged containers are refused (" CONFIG_PREFIX "DENY_PRIVILEGED=1), and "
			      "Docker's daemon has no runtime sysbox-runc (install Sysbox)");
}

/* --- getting it ---------------------------------------------------------------------------------------------- */

static int call(const char *const *arguments, struct err *e)
{
	const struct docker_call call = {
		.arguments = arguments, .mounts = -1, .ms = UINT64_MAX, .progress = true};
	return docker_call(&call, e);
}

/* Feeds the default image from <state>/image when Docker does not have it, or has it from an older one; pulls any
 * other that is absent. Returns 1 when it got one, 0, or a negative errno. */
static int get_image(const struct config *c, const struct isolation_host *host, struct err *e)
{
	char directory[CONFIG_PATH_MAX];
	config_default_image_dir(c, directory);
	const char *const import[] = {"ermite-docker",  "import",  host->docker_socket,
				      CONFIG_IMAGE_OCI, directory, NULL};
	const char *const pull[] = {"ermite-docker", "pull", host->docker_socket, c->image_oci, NULL};
	const struct docker_facts *docker = &host->docker;
	bool is_stale =
		is_fed(c) && host->image_source[0] && strcmp(host->image_source, docker->image_source) != 0;
	if (docker->image_id[0] && !is_stale)
		return 0;
	int r = call(is_fed(c) ? import : pull, e);
	return r < 0 ? err_ctx(e, r, "image %s", c->image_oci) : 1;
}

int provide_feed(const struct config *c, const char *sha256, struct err *e)
{
	bool wanted = c->isolation == ISOLATION_CONTAINER;
	struct isolation_host host = {0};
	if (!is_fed(c))
		return 0;
	(void)snprintf(host.image_source, sizeof(host.image_source), "%s", sha256);
	ask(c, &host);
	if (host.docker.trouble[0])
		return wanted ? err_set(e, -EIO, "%s", host.docker.trouble) : 0;
	return wanted || host.docker.image_id[0] ? get_image(c, &host, e) : 0;
}

static int provide(struct isolation_host *host, struct sandbox_spec *spec, bool sysbox, struct err *e)
{
	const struct config *c = &spec->config;
	int r = get_image(c, host, e);
	if (r < 0)
		return r;
	if (r > 0)
		facts_ask(host->docker_socket, c->image_oci, &host->docker);
	if (host->docker.trouble[0])
		return err_set(e, -EIO, "%s", host->docker.trouble);
	if (!host->docker.image_id[0])
		return err_set(e, -ENOENT, "Docker has no image %s though it was just made", c->image_oci);
	spec->docker.sysbox = sysbox;
	memcpy(spec->docker.socket, host->docker_socket, sizeof(spec->docker.socket));
	memcpy(spec->docker.image, host->docker.image_id, sizeof(spec->docker.image));
	return 0;
}

int provide_sysbox(struct isolation_host *host, struct sandbox_spec *spec, struct buf *, struct err *e)
{
	return provide(host, spec, true, e);
}

static int warn(struct buf *warnings, struct err *e)
{
	uint64_t have = 0;
	uint64_t all = 0;
	int r = capabilities_read(&have, &all, e);
	if (r < 0)
		return r;
	buf_str(warnings,
		"root inside this sandbox is root of this host: the container is privileged. Use the "
		"isolation system, or install Sysbox\n");
	if (have == all)
		return 0;
	buf_str(warnings, "this host's root itself lacks ");
	capabilities_names(all & ~have, warnings);
	buf_str(warnings, ": the container has every capability that is left, named singly\n");
	return 0;
}

int provide_privileged(struct isolation_host *host, struct sandbox_spec *spec, struct buf *warnings,
		       struct err *e)
{
	int r = provide(host, spec, false, e);
	return r < 0 ? r : warn(warnings, e);
}
