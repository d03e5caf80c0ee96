#include "isolation/system/container.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/chan.h"
#include "isolation/layout.h"
#include "isolation/system/apparmor.h"
#include "spec/libexec.h"
#include "sys/userns.h"

enum { CONFIG_MAX = 65535, LOG_MAX = 65536 };

int container_prepare(struct container *c, const char *id, struct err *e)
{
	char path[CONFIG_PATH_MAX];
	int ends[2] = {-1, -1};
	int r = libexec_path("ermite-lxc", path, e);
	if (r == 0)
		r = chan_pair(ends, e);
	if (r < 0)
		return r;
	c->channel = ends[0];
	scoped_fd int far = ends[1];
	const char *const arguments[] = {"ermite-lxc", id, NULL};
	/* No PATH: as root liblxc writes the id maps itself, unless it finds newuidmap, which would want the range in
	 * /etc/subuid. */
	const char *const environment[] = {"PATH=/nonexistent", NULL};
	const int fds[] = {-1, -1, STDERR_FILENO, far};
	const struct child_plan plan = {
		.path = path,
		.arguments = arguments,
		.environment = environment,
		.fds = fds,
		.n_fds = 4,
		/* What it starts cannot outlive it, at whatever instant it is killed. */
		.clone_flags = CLONE_NEWPID,
		.die_with_parent = true,
		.new_session = true};
	return child_start(&plan, &c->lxc, e);
}

static void item(struct buf *b, const char *key, const char *value)
{
	buf_str(b, key);
	buf_add(b, "", 1);
	buf_str(b, value);
	buf_add(b, "", 1);
}

/* The same for every sandbox. */
static const struct {
	const char *key, *value;
} fixed[] = {
	{"lxc.rootfs.path", "dir:" RUN_ROOT},
	{"lxc.rootfs.mount", RUN_MOUNT},
	{"lxc.init.cmd", "/opt/ermite/ermite-runner init"},
	/* The system call filter is loaded by that program, compiled when it was built: liblxc would compile it anew at
	 * every start, which takes longer than everything else it does. */
	{"lxc.net.0.type", "empty"},
	/* The control groups are entered at the door and only then made a namespace, by the guest program. */
	{"lxc.namespace.keep", "cgroup"},
	/* systemd since 256 wants to be asked before it runs on v1 hierarchies; elsewhere this says nothing. */
	{"lxc.environment", "SYSTEMD_PROC_CMDLINE=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"},
	{"lxc.autodev", "1"},
	{"lxc.pty.max", "1024"},
	{"lxc.tty.max", "0"},
	{"lxc.console.path", "none"},
	{"lxc.mount.auto", "proc:mixed sys:mixed"},
	/* Nested runtimes mount a proc and a sysfs of their own, which the kernel allows only where one without
	 * anything on top is to be seen already. */
	{"lxc.mount.entry", "proc dev/.lxc/proc proc create=dir,optional 0 0"},
	{"lxc.mount.entry", "sys dev/.lxc/sys sysfs create=dir,optional 0 0"},
	/* Mounted already, so systemd leaves it alone and the job's directory below stays in place. */
	{"lxc.mount.entry", "tmpfs run tmpfs nosuid,nodev,mode=755,size=20%,create=dir 0 0"},
	{"lxc.mount.entry", RUN_JOB " run/ermite none bind,ro,nosuid,nodev,noexec,create=dir 0 0"},
	{"lxc.mount.entry", RUN_GUEST " opt/ermite none bind,ro,nosuid,nodev,create=dir 0 0"},
	{"lxc.mount.entry", RUN_SCRATCH "/docker var/lib/docker none bind,create=dir 0 0"},
	{"lxc.mount.entry", RUN_SCRATCH "/containerd var/lib/containerd none bind,create=dir 0 0"},
	{"lxc.mount.entry", RUN_SCRATCH "/containers var/lib/containers none bind,create=dir 0 0"},
	{"lxc.mount.entry", RUN_SCRATCH "/data scratch none bind,create=dir 0 0"},
	{"lxc.mount.entry", RUN_DEV "/fuse dev/fuse none bind,create=file 0 0"},
	{"lxc.mount.entry", RUN_DEV "/tun dev/net/tun none bind,create=file 0 0"},
	/* systemd wants something there, and a user namespace cannot mount the real one; nobody needs its content. */
	{"lxc.mount.entry",
	 "tmpfs sys/fs/fuse/connections tmpfs ro,nosuid,nodev,noexec,size=0k,optional 0 0"},
	/* What Docker masks, on the proc and sysfs that everybody sees. */
	{"lxc.mount.entry", "/dev/null proc/kcore none bind,optional 0 0"},
	{"lxc.mount.entry", "/dev/null proc/keys none bind,optional 0 0"},
	{"lxc.mount.entry", "/dev/null proc/latency_stats none bind,optional 0 0"},
	{"lxc.mount.entry", "/dev/null proc/timer_list none bind,optional 0 0"},
	{"lxc.mount.entry", "/dev/null proc/sched_debug none bind,optional 0 0"},
	{"lxc.mount.entry", "/dev/null proc/interrupts none bind,optional 0 0"},
	{"lxc.mount.entry", "tmpfs proc/acpi tmpfs ro,nosuid,nodev,noexec,size=0k,optional 0 0"},
	{"lxc.mount.entry", "tmpfs proc/scsi tmpfs ro,nosuid,nodev,noexec,size=0k,optional 0 0"},
	{"lxc.mount.entry", "tmpfs sys/firmware tmpfs ro,nosuid,nodev,noexec,size=0k,optional 0 0"},
	{"lxc.mount.entry",
	 "tmpfs sys/devices/virtual/powercap tmpfs ro,nosuid,nodev,noexec,size=0k,optional 0 0"},
};

/* Where lxcfs shows the limits instead of the host's numbers. */
static const char *const lxcfs_files[] = {
	"proc/cpuinfo", "proc/diskstats", "proc/loadavg", "proc/meminfo",
	"proc/stat",    "proc/swaps",     "proc/uptime",
};

static int build_config(struct buf *b, const char *id, uid_t uid, bool lxcfs, const struct config *config)
{
	char text[128];
	for (size_t i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
		item(b, fixed[i].key, fixed[i].value);
	item(b, "lxc.uts.name", id);
	for (const char *kind = "ug"; *kind; kind++) {
		(void)snprintf(text, sizeof(text), "%c 0 %u 65536", *kind, uid);
		item(b, "lxc.idmap", text);
	}
	for (size_t i = 0; lxcfs && i < sizeof(lxcfs_files) / sizeof(lxcfs_files[0]); i++) {
		(void)snprintf(text, sizeof(text), RUN_LXCFS "/%s %s none bind,optional 0 0", lxcfs_files[i],
			       lxcfs_files[i]);
		item(b, "lxc.mount.entry", text);
	}
	if (config->externals[0])
		item(b, "lxc.mount.entry",
		     RUN_EXTERNALS " opt/externals none bind,ro,nosuid,nodev,create=dir 0 0");
	if (apparmor_enabled())
		item(b, "lxc.apparmor.profile", APPARMOR_PROFILE);
	return buf_check(b);
}

int container_start(struct container *c, const char *id, uid_t uid, bool lxcfs, const struct config *config,
		    struct err *e)
{
	scoped_buf struct buf b = BUF_INIT(CONFIG_MAX);
	scoped_fd int fd = -1;
	int r = build_config(&b, id, uid, lxcfs, config);
	if (r < 0)
		return err_code(e, r, "write the configuration of the container");
	scoped_fd int userns = -1;
	r = file_memfd("lxc-config", b.p, b.n, &fd, e);
	if (r == 0)
		r = userns_make_owned(uid, &userns, e);
	if (r < 0)
		return r;
	const struct chan_message m = {.type = 1, .n_fds = 2, .fds = {fd, userns}};
	r = chan_send(c->channel, &m, e);
	return r < 0 ? err_ctx(e, r, "ermite-lxc") : 0;
}

void container_end(struct container *c)
{
	fd_close(&c->channel);
	/* liblxc has nothing to put back: no cgroup, no network device, no file outside its own mounts. Killing it
	 * also kills an init that has not knocked yet. */
	if (!c->ended)
		child_kill(&c->lxc);
}

void container_log(struct buf *out)
{
	char text[LOG_MAX / 8];
	scoped_fd int fd = open(RUN_LXC_LOG, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = fd < 0 ? 0 : file_read_all(fd, text, sizeof(text) - 1, NULL);
	if (n <= 0)
		return;
	text[n] = '\0';
	/* "name date level file - place - message": the first line is the cause, what follows are its consequences. */
	text[strcspn(text, "\n")] = '\0';
	const char *message = strstr(text, " - ");
	const char *rest = message ? strstr(message + 3, " - ") : NULL;
	buf_str(out, rest ? rest + 3 : text);
}
