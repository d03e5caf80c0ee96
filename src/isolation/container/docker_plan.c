#include "isolation/container/docker_plan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "isolation/container/capabilities.h"
#include "isolation/container/docker_parts.h"
#include "isolation/container/engine_answer.h"

#define GUEST_DIR "/opt/ermite"
#define DOOR_DIR  "/run/ermite"

enum {
	CPU_PERIOD_US = 100'000,
	TMPFS_BYTES = 1 << 20, /* before the sandbox has its own root, next to nothing is written */
	TMPFS_MODE = 0755,
	VOLUMES_MAX = 64,
	VOLUME_PATH_MAX = 1024,
	/* The interface that came with the engine that knows all capabilities; the one before knows none above
	 * CAP_AUDIT_READ. */
	VERSION_ALL_CAPABILITIES = 42,
	CAPABILITIES_OLD = 38,
	CAPABILITIES_MAX = 64,
};

static bool is_text(const char *text, size_t size)
{
	return strnlen(text, size) < size;
}

int docker_plan_read(const void *p, size_t n, struct docker_plan *ret, struct err *e)
{
	struct docker_plan plan;
	if (n != sizeof(plan))
		return err_set(e, -EINVAL, "the plan of the container has %zu bytes, not %zu", n,
			       sizeof(plan));
	memcpy(&plan, p, sizeof(plan));
	if (!is_text(plan.choice.socket, sizeof(plan.choice.socket)) ||
	    !is_text(plan.choice.image, sizeof(plan.choice.image)) || !is_text(plan.id, sizeof(plan.id)) ||
	    !is_text(plan.job_id, sizeof(plan.job_id)) || !is_text(plan.store, sizeof(plan.store)) ||
	    !is_text(plan.guest_dir, sizeof(plan.guest_dir)) ||
	    !is_text(plan.door_dir, sizeof(plan.door_dir)))
		return err_set(e, -EINVAL, "the plan of the container has a text without an end");
	if (!id_valid(plan.id) || !docker_image_id_valid(plan.choice.image))
		return err_set(e, -EINVAL, "the plan of the container has a bad id");
	if (*plan.guest_dir != '/' || *plan.door_dir != '/' || plan.memory_bytes > INT64_MAX || !plan.cpus ||
	    plan.cpus > 1024 || !plan.pids)
		return err_set(e, -EINVAL, "the plan of the container has a bad value");
	*ret = plan;
	return 0;
}

/* Every capability of the host that this interface knows. NULL when memory is out. */
static json_t *capabilities(uint64_t bits, unsigned version)
{
	unsigned known = version < VERSION_ALL_CAPABILITIES ? CAPABILITIES_OLD : CAPABILITIES_MAX;
	json_t *names = json_array();
	for (unsigned i = 0; names && i < known && capability_name(i); i++)
		if (bits & UINT64_C(1) << i)
			(void)json_array_append_new(names, json_string(capability_name(i)));
	return names;
}

/* What makes the container as good as the host: the whole sandbox is root's, and what keeps it in is built inside. */
static int add_rights(const struct docker_plan *plan, unsigned version, json_t *host)
{
	json_t *rights;
	if (plan->choice.sysbox)
		rights = json_pack("{s:s, s:b}", "Runtime", "sysbox-runc", "Privileged", 0);
	else
		rights = json_pack("{s:b, s:s, s:s, s:[s, s], s:[], s:[], s:[s]}", "Privileged", plan->full,
				   "UsernsMode", "host", "CgroupnsMode", "private", "SecurityOpt",
				   "seccomp=unconfined", "apparmor=unconfined", "MaskedPaths",
				   "ReadonlyPaths", "DeviceCgroupRules", "a *:* rwm");
	int r = json_object_update_new(host, rights);
	if (r < 0 || plan->choice.sysbox || plan->full)
		return r;
	return json_object_update_new(host, json_pack("{s:[s], s:o}", "CapDrop", "ALL", "CapAdd",
						      capabilities(plan->capabilities, version)));
}

static int add_bind(json_t *mounts, const char *source, const char *target)
{
	return json_array_append_new(mounts,
				     json_pack("{s:s, s:s, s:s, s:b, s:{s:s, s:b}}", "Type", "bind", "Source",
					       source, "Target", target, "ReadOnly", 1, "BindOptions",
					       "Propagation", "rprivate", "NonRecursive", 1));
}

static int add_tmpfs(json_t *mounts, const char *target)
{
	return json_array_append_new(mounts,
				     json_pack("{s:s, s:s, s:{s:i, s:i}}", "Type", "tmpfs", "Target", target,
					       "TmpfsOptions", "SizeBytes", TMPFS_BYTES, "Mode", TMPFS_MODE));
}

static bool has_target(const json_t *mounts, const char *path)
{
	const json_t *mount;
	size_t i;
	json_array_foreach(mounts, i, mount)
	{
		if (strcmp(json_string_value(json_object_get(mount, "Target")), path) == 0)
			return true;
	}
	return false;
}

/* Adds a tmpfs over a volume of the image's, unless something of ours is there. */
static int cover_volume(const char *declared, json_t *mounts, struct err *e)
{
	char path[VOLUME_PATH_MAX + 2];
	int n = snprintf(path, sizeof(path), "%s/", declared);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, -EPROTO, "the image declares a volume whose path is too long");
	/* With a slash at its end, a component that means nothing or leads up looks the same everywhere. */
	while (n > 2 && path[n - 2] == '/')
		path[--n] = '\0';
	if (*path != '/' || n < 2 || strstr(path, "//") || strstr(path, "/./") || strstr(path, "/../"))
		return err_set(e, -EPROTO, "the image declares a volume that is no plain path");
	path[n - 1] = '\0';
	if (!has_target(mounts, path) && add_tmpfs(mounts, path) < 0)
		return err_set(e, -ENOMEM, "the request to Docker: out of memory");
	return 0;
}

/* Each volume that the image declares would become one of the daemon's, on its disk and without our label. The
 * sandbox's own root shows what the image has there. */
static int cover_volumes(const json_t *image, json_t *mounts, struct err *e)
{
	json_t *config = NULL, *volumes = NULL, *ignored;
	const char *path;
	int r = answer_find(image, "Config", JSON_OBJECT, &config, e);
	if (r == 0 && config)
		r = answer_find(config, "Volumes", JSON_OBJECT, &volumes, e);
	if (r < 0)
		return err_ctx(e, r, "the image");
	if (json_object_size(volumes) > VOLUMES_MAX)
		return err_set(e, -EPROTO, "the image declares more than %d volumes", VOLUMES_MAX);
	json_object_foreach(volumes, path, ignored)
	{
		if (r == 0)
			r = cover_volume(path, mounts, e);
	}
	return r;
}

static json_t *host_config(const struct docker_plan *plan)
{
	json_int_t memory = (json_int_t)plan->memory_bytes;
	return json_pack("{s:s, s:s, s:b, s:b, s:{s:s}, s:{s:s, s:{}}, s:[], s:I, s:I, s:I, s:i, s:i, s:i}",
			 "NetworkMode", "none", "IpcMode", "private", "ReadonlyRootfs", 1, "AutoRemove", 0,
			 "RestartPolicy", "Name", "no", "LogConfig", "Type", "none", "Config", "Ulimits",
			 "ShmSize", memory / 2, "Memory", memory, "MemorySwap", memory, "CpuPeriod",
			 CPU_PERIOD_US, "CpuQuota", (int)plan->cpus * CPU_PERIOD_US, "PidsLimit",
			 (int)plan->pids);
}

static json_t *labels(const struct docker_plan *plan)
{
	scoped_buf struct buf caller = BUF_INIT(4 * JOB_ID_MAX + 1);
	buf_plain(&caller, plan->job_id, strlen(plan->job_id));
	return json_pack("{s:s, s:s, s:s}", DOCKER_LABEL_JOB, plan->id, DOCKER_LABEL_STORE, plan->store,
			 DOCKER_LABEL_CALLER, buf_text(&caller));
}

/* An image's own healthcheck would run programs in the sandbox, and its entrypoint and working directory are not for
 * the guest program. */
static json_t *container_config(const struct docker_plan *plan)
{
	return json_pack(
		"{s:s, s:s, s:s, s:s, s:[s, s], s:[], s:[s, s], s:b, s:b, s:b, s:b, s:b, s:b, s:s, "
		"s:{s:[s]}, s:o}",
		"Image", plan->choice.image, "Hostname", plan->id, "User", "0:0", "WorkingDir", "/",
		"Entrypoint", GUEST_DIR "/ermite-runner", "init", "Cmd", "Env", "ermite.sandbox=container",
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "Tty", 0, "OpenStdin", 0,
		"AttachStdin", 0, "AttachStdout", 0, "AttachStderr", 0, "NetworkDisabled", 1, "StopSignal",
		"SIGTERM", "Healthcheck", "Test", "NONE", "Labels", labels(plan));
}

static int add_mounts(const struct docker_plan *plan, const json_t *image, json_t *host, struct err *e)
{
	json_t *mounts = json_array();
	if (json_object_set_new(host, "Mounts", mounts) < 0 || add_tmpfs(mounts, "/run") < 0 ||
	    add_bind(mounts, plan->guest_dir, GUEST_DIR) < 0 ||
	    add_bind(mounts, plan->door_dir, DOOR_DIR) < 0)
		return err_set(e, -EINVAL, "the request to Docker: a path that is not UTF-8");
	return cover_volumes(image, mounts, e);
}

int docker_plan_request(const struct docker_plan *plan, unsigned version, const json_t *image, json_t **ret,
			struct err *e)
{
	scoped_json json_t *request = container_config(plan);
	scoped_json json_t *host = host_config(plan);
	if (!request || !host || add_rights(plan, version, host) < 0)
		return err_set(e, -EINVAL, "the request to Docker: a text that is not UTF-8");
	/* Ours to remove again, and no process of the daemon's own in it. */
	if (json_object_set_new(host, "Init", json_false()) < 0)
		return err_set(e, -ENOMEM, "the request to Docker: out of memory");
	int r = add_mounts(plan, image, host, e);
	if (r < 0)
		return r;
	if (json_object_set(request, "HostConfig", host) < 0)
		return err_set(e, -ENOMEM, "the request to Docker: out of memory");
	*ret = json_incref(request);
	return 0;
}
