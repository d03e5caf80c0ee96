#include "isolation/system/system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "isolation/system/apparmor.h"
#include "isolation/system/container.h"
#include "isolation/system/layout.h"
#include "isolation/system/lxc.h"
#include "isolation/system/lxcfs.h"
#include "isolation/system/rootfs.h"
#include "net/nftext.h"
#include "spec/libexec.h"
#include "sys/cgroup.h"
#include "sys/mounts.h"

struct isolated {
	struct sandbox *sandbox; /* borrowed from the keeper */
	uid_t uid;               /* host id of root inside */
	struct container container;
	struct child lxcfs;
	int door_fd, listen_fd;
	int knocker; /* what waits at the door */
};

static const struct resource *const resources[] = {&resource_network, &resource_scratch, &resource_processes,
						   &resource_cgroup, NULL};

/* --- what a host needs --------------------------------------------------------------------------------------- */

static bool file_missing(const char *path)
{
	return access(path, F_OK) < 0;
}

static unsigned miss(struct buf *reasons, bool is_missing, const char *sentence)
{
	if (is_missing)
		buf_fmt(reasons, "%s%s", reasons->n ? "; " : "", sentence);
	return is_missing;
}

static bool overlay_missing(void)
{
	char text[4096];
	ssize_t n = file_read_text(AT_FDCWD, "/proc/filesystems", text, sizeof(text), NULL);
	return n < 0 || !strstr(text, "\toverlay\n");
}

static unsigned missing_controllers(struct buf *reasons)
{
	struct cgroup_host host;
	struct err e = ERR_INIT;
	if (cgroup_host_read(&host, &e) < 0)
		return miss(reasons, true, e.msg);
	unsigned have = cgroup_controllers(&host);
	return miss(reasons, !(have & CGROUP_MEMORY), "no memory cgroup controller") +
	       miss(reasons, !(have & CGROUP_PIDS), "no pids cgroup controller") +
	       miss(reasons, !(have & CGROUP_CPU), "no cpu cgroup controller");
}

static bool nft_missing(const struct config *c)
{
	return c->network_mode == NETWORK_NAT && !nftext_program();
}

static unsigned missing(const struct config *c, struct buf *reasons)
{
	char path[CONFIG_PATH_MAX];
	char image[CONFIG_PATH_MAX + 16];
	char sentence[CONFIG_PATH_MAX + 128];
	struct err e = ERR_INIT;
	unsigned n = miss(reasons, geteuid() != 0, "root is needed");
	n += miss(reasons, file_missing("/proc/self/ns/user"), "the kernel has no user namespaces");
	n += miss(reasons, overlay_missing(), "the kernel has no overlayfs (modprobe overlay)");
	n += miss(reasons, file_missing("/dev/loop-control"), "there are no loop devices (modprobe loop)");
	n += miss(reasons, file_missing("/dev/fuse"), "there is no /dev/fuse (modprobe fuse)");
	n += miss(reasons, !lxcfs_program(), "lxcfs is not installed (apt install lxcfs)");
	n += miss(reasons, apparmor_enabled() && !apparmor_parser(),
		  "apparmor_parser is not installed (apt install apparmor)");
	n += miss(reasons, nft_missing(c), "nft is not installed (apt install nftables)");
	n += missing_controllers(reasons);
	n += miss(reasons, libexec_path("ermite-lxc", path, &e) < 0, e.msg);
	config_image_dir(c, path);
	(void)snprintf(image, sizeof(image), "%s/base.ext4", path);
	(void)snprintf(sentence, sizeof(sentence), "there is no image at %s (ermite-runner image build)",
		       path);
	return n + miss(reasons, file_missing(image), sentence);
}

/* --- starting ------------------------------------------------------------------------------------------------ */

/* A socket in the job's directory that only root inside can connect to. */
static int listen_at(const char *path, uid_t uid, int backlog, int *ret_fd, struct err *e)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
	    chmod(path, 0600) < 0 || lchown(path, uid, uid) < 0 || listen(fd, backlog) < 0)
		return err_sys(e, "listen at %s", path);
	*ret_fd = fd_steal(&fd);
	return 0;
}

static int bind_externals(const char *externals, struct err *e)
{
	if (!externals[0])
		return 0;
	if (mkdir(RUN_EXTERNALS, 0755) < 0)
		return err_sys(e, "make " RUN_EXTERNALS);
	return mount_bind(externals, RUN_EXTERNALS, true, e);
}

static int guest_directory(char path[static CONFIG_PATH_MAX], struct err *e)
{
	int r = libexec_path("guest/seccomp.bpf", path, e);
	if (r == 0 && access(path, R_OK) < 0)
		r = err_sys(e, "the system call filter %s", path);
	if (r == 0)
		r = libexec_path("guest/ermite-runner", path, e);
	if (r == 0)
		r = libexec_check_static(path, e);
	if (r == 0)
		*strrchr(path, '/') = '\0';
	return r;
}

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
		r = guest_directory(guest, e);
	if (r == 0)
		r = rootfs_prepare_run(guest, e);
	if (r == 0)
		r = start_helpers(i, e);
	if (r == 0)
		r = listen_at(RUN_EXEC_SOCKET, i->uid, 8, &i->listen_fd, e);
	if (r == 0)
		r = listen_at(RUN_DOOR_SOCKET, i->uid, 1, &i->door_fd, e);
	if (r == 0)
		r = bind_externals(c->externals, e);
	config_image_dir(c, image);
	if (r == 0)
		r = rootfs_mount_base(image, e);
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
	container_end(&i->container);
	child_kill(&i->lxcfs);
	rootfs_unmount(keep_disk);
	fd_close(&i->door_fd);
	fd_close(&i->listen_fd);
	fd_close(&i->knocker);
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
			       .knocker = -1};
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
	dev_t disk = 0;
	struct cgroup_host host;
	int r = rootfs_mount(i->sandbox, i->uid, &disk, e);
	if (r == 0)
		r = cgroup_host_read(&host, e);
	if (r == 0)
		r = cgroup_limit_disk(&host, i->sandbox->id, disk, c->job_disk_bandwidth, c->job_disk_iops,
				      e);
	if (r == 0)
		r = lxcfs_wait(&i->lxcfs, e);
	if (r == 0)
		r = container_start(&i->container, i->sandbox->id, i->uid, true, c, e);
	return r;
}

static int open_netns(pid_t init, int *ret, struct err *e)
{
	char path[32];
	(void)snprintf(path, sizeof(path), "/proc/%d/ns/net", init);
	*ret = open(path, O_RDONLY | O_CLOEXEC);
	return *ret < 0 ? err_sys(e, "open %s", path) : 0;
}

static int knock(struct isolated *i, int *ret_netns, struct err *e)
{
	struct cgroup_host host;
	pid_t init = -1;
	scoped_fd int netns = -1;
	int r = container_knock(&i->container, i->door_fd, i->uid, &i->knocker, &init, e);
	fd_close(&i->door_fd);
	(void)unlink(RUN_DOOR_SOCKET);
	if (r == 0)
		r = record_add_process(i->sandbox->record, "init", init, e);
	if (r == 0)
		r = cgroup_host_read(&host, e);
	if (r == 0)
		r = cgroup_enter(&host, i->sandbox->id, init, e);
	if (r == 0)
		r = open_netns(init, &netns, e);
	/* It still waits, so the number was its own until now. */
	if (r == 0 && pidfd_send_signal(i->container.init_pidfd, 0, NULL, 0) < 0)
		r = err_sys(e, "the first program inside");
	if (r == 0)
		*ret_netns = fd_steal(&netns);
	return r;
}

static int admit(struct isolated *i, struct err *e)
{
	int r = file_write_all(i->knocker, "g", 1, e);
	fd_close(&i->knocker);
	return r;
}

/* --- ending -------------------------------------------------------------------------------------------------- */

static void why_gone(struct isolated *i, bool *ret_start_failed, struct buf *reason)
{
	struct container *c = &i->container;
	if (!c->ended)
		c->ended = child_wait(&c->lxc, 1000, &c->end, NULL) == 0;
	*ret_start_failed = c->init_pidfd < 0;
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
	struct statvfs fs;
	*ret = (struct isolated_disk){0};
	if (statvfs(RUN_SCRATCH, &fs) < 0)
		return;
	ret->size_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
	ret->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
	ret->used_bytes = ret->size_bytes - (uint64_t)fs.f_bfree * fs.f_frsize;
	ret->no_inodes = fs.f_ffree == 0;
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
