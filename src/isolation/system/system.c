#include "isolation/system/system.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/scope.h"
#include "isolation/disk.h"
#include "isolation/door.h"
#include "isolation/layout.h"
#include "isolation/lxcfs.h"
#include "isolation/needs.h"
#include "isolation/private_run.h"
#include "isolation/system/apparmor.h"
#include "isolation/system/container.h"
#include "isolation/system/lxc.h"
#include "isolation/system/rootfs.h"
#include "spec/libexec.h"
#include "sys/mounts.h"

struct isolated {
	struct sandbox *sandbox; /* borrowed from the keeper */
	uid_t uid;               /* host id of root inside */
	struct container container;
	struct child lxcfs;
	int door_fd, listen_fd;
	struct door_visitor init;
};

static const struct resource *const resources[] = {&resource_network, &resource_scratch, &resource_processes,
						   &resource_cgroup, NULL};

/* --- what a host needs --------------------------------------------------------------------------------------- */

static unsigned missing(const struct config *c, struct isolation_host *, struct buf *reasons)
{
	char path[CONFIG_PATH_MAX];
	char image[CONFIG_PATH_MAX + 16];
	char sentence[CONFIG_PATH_MAX + 128];
	struct err e = ERR_INIT;
	unsigned n = needs_common(c, reasons);
	n += needs_miss(reasons, needs_file_missing("/proc/self/ns/user"),
			"the kernel has no user namespaces");
	n += needs_miss(reasons, apparmor_enabled() && !apparmor_parser(),
			"apparmor_parser is not installed (apt install apparmor)");
	n += needs_miss(reasons, libexec_path("ermite-lxc", path, &e) < 0, e.msg);
	config_image_dir(c, path);
	(void)snprintf(image, sizeof(image), "%s/base.ext4", path);
	(void)snprintf(sentence, sizeof(sentence), "there is no image at %s (ermite-runner image build)",
		       path);
	return n + needs_miss(reasons, needs_file_missing(image), sentence);
}

/* --- starting ------------------------------------------------------------------------------------------------ */

static int start_helpers(struct isolated *i, struct err *e)
{
	int r = lxcfs_start(&i->lxcfs, e);
	if (r == 0)
		r = container_prepare(&i->container, i->sandbox->id, e);
	if (r == 0)
		r = record_add_process(i->sandbox->record, "lxcfs", i->lxcfs.pid, e);
	return r < 0 ? r : record_add_process(i->sandbox->record, "lxc", i->container.lxc.pid, e);
}

static int prepare_steps(struct isolated *i, struct isolated_view *view, struct err *e)
{
	const struct config *c = &i->sandbox->spec->config;
	char guest[CONFIG_PATH_MAX];
	char image[CONFIG_PATH_MAX];
	bool systemd = false;
	int r = apparmor_load(e);
	if (r == 0)
		r = private_run_guest(guest, e);
	if (r == 0)
		r = rootfs_prepare_run(guest, e);
	if (r == 0)
		r = start_helpers(i, e);
	if (r == 0)
		r = door_listen(RUN_EXEC_SOCKET, i->uid, 8, &i->listen_fd, e);
	if (r == 0)
		r = door_listen(RUN_DOOR_SOCKET, i->uid, 1, &i->door_fd, e);
	if (r == 0)
		r = private_run_externals(c->externals, e);
	config_image_dir(c, image);
	if (r == 0)
		r = mount_image_base(image, RUN_BASE, e);
	if (r < 0)
		return r;
	(void)rootfs_has_init(&systemd);
	*view = (struct isolated_view){
		.listen_fd = fd_steal(&i->listen_fd),
		.peer_uid = i->uid,
		.door_fd = i->door_fd,
		.gone_fd = i->container.lxc.pidfd,
		.weaker_fd = i->lxcfs.pidfd,
		.weaker = "lxcfs ended: free, uptime and /proc/meminfo inside no longer work",
		.has_init = systemd};
	return 0;
}

static int end(struct isolated *i, bool keep_disk, struct err *e)
{
	(void)e;
	door_end(&i->init);
	container_end(&i->container);
	child_kill(&i->lxcfs);
	rootfs_unmount(keep_disk);
	fd_close(&i->door_fd);
	fd_close(&i->listen_fd);
	free(i);
	return 0;
}

static int prepare(struct sandbox *s, struct isolated **ret, struct isolated_view *view, struct err *e)
{
	struct isolated *i = calloc(1, sizeof(*i));
	if (!i)
		return err_set(e, -ENOMEM, "system sandbox: out of memory");
	*i = (struct isolated){.sandbox = s,
			       .uid = slot_uid_first(s->spec->config.uid_base, s->slot),
			       .container = CONTAINER_INIT,
			       .lxcfs = CHILD_INIT,
			       .door_fd = -1,
			       .listen_fd = -1,
			       .init = DOOR_VISITOR_INIT};
	s->root_uid = i->uid;
	int r = prepare_steps(i, view, e);
	if (r < 0) {
		(void)end(i, false, NULL);
		return r;
	}
	*ret = i;
	return 0;
}

static int boot(struct isolated *i, struct err *e)
{
	const struct config *c = &i->sandbox->spec->config;
	int r = rootfs_mount(i->sandbox, i->uid, e);
	if (r == 0)
		r = lxcfs_wait(&i->lxcfs, e);
	if (r == 0)
		r = container_start(&i->container, i->sandbox->id, i->uid, true, c, e);
	return r;
}

static int knock(struct isolated *i, int *ret_netns, struct err *e)
{
	int r = door_take(i->door_fd, i->uid, &i->init, e);
	fd_close(&i->door_fd);
	(void)unlink(RUN_DOOR_SOCKET);
	return r < 0 ? r : door_bind(i->sandbox, &i->init, ret_netns, e);
}

static int admit(struct isolated *i, struct err *e)
{
	return door_admit(&i->init, NULL, 0, e);
}

/* --- ending -------------------------------------------------------------------------------------------------- */

static void why_gone(struct isolated *i, bool *ret_start_failed, struct buf *reason)
{
	struct container *c = &i->container;
	if (!c->ended)
		c->ended = child_wait(&c->lxc, 1000, &c->end, NULL) == 0;
	*ret_start_failed = i->init.pidfd < 0;
	door_last_words(&i->init, reason);
	if (reason->n > 0)
		return;
	bool ran = c->ended && c->end.status == LXC_ENDED;
	if (c->ended && c->end.signal)
		buf_fmt(reason, "ermite-lxc was killed by signal %d", c->end.signal);
	else if (*ret_start_failed && !ran)
		container_log(reason);
	else
		buf_str(reason, "the system inside ended: init exited, or it was powered off");
	if (reason->n == 0)
		buf_str(reason, "the container ended before its first program ran");
}

static void disk(struct isolated *, struct isolated_disk *ret)
{
	disk_usage(ret);
}

const struct isolation_ops isolation_system = {
	.kind = ISOLATION_SYSTEM,
	.resources = resources,
	.missing = missing,
	.prepare = prepare,
	.boot = boot,
	.knock = knock,
	.admit = admit,
	.why_gone = why_gone,
	.disk = disk,
	.end = end,
};
