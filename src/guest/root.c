#include "guest/root.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "guest/paths.h"

/* On the tmpfs that Docker mounts at /run, for as long as this takes. Once the root is changed, a relative path is one
 * of Docker's root and an absolute one is the sandbox's. */
#define RUN_SCRATCH "run/scratch"
#define RUN_LXCFS   "run/lxcfs"
#define RUN_ROOT    "run/root"

#define NOTHING (MS_NOSUID | MS_NODEV | MS_NOEXEC)

static int make_dir(const char *path, struct err *e)
{
	static const struct user root = {0};
	return paths_make(path, &root, e);
}

static int attach(int fd, const char *path, struct err *e)
{
	int r = make_dir(path, e);
	if (r == 0 && move_mount(fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		r = err_sys(e, "mount what the host sent at %s", path);
	return r;
}

bool root_is_hosts(void)
{
	/* Only the first user namespace has every id. */
	static const char *const words[] = {"0", "0", "4294967295"};
	char text[128];
	size_t n = 0;
	if (file_read_text(AT_FDCWD, "/proc/self/uid_map", text, sizeof(text), NULL) < 0)
		return false;
	char *rest = text;
	for (const char *word = strsep(&rest, " "); word; word = strsep(&rest, " ")) {
		if (!*word)
			continue;
		if (n == sizeof(words) / sizeof(words[0]) || strcmp(word, words[n]) != 0)
			return false;
		n++;
	}
	return n == sizeof(words) / sizeof(words[0]);
}

static int attach_layers(const struct door_mounts *mounts, struct err *e)
{
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_sys(e, "make the mounts private");
	int r = attach(mounts->fds[DOOR_SCRATCH], "/" RUN_SCRATCH, e);
	return r < 0 ? r : attach(mounts->fds[DOOR_LXCFS], "/" RUN_LXCFS, e);
}

/* Mounts the overlay and makes it the root; Docker's stays the current directory. */
static int change_root(const struct door_mounts *, struct err *e)
{
	const char *options = root_is_hosts() ? "lowerdir=/,upperdir=/" RUN_SCRATCH
						"/upper,workdir=/" RUN_SCRATCH "/work"
					      : "lowerdir=/,upperdir=/" RUN_SCRATCH
						"/upper,workdir=/" RUN_SCRATCH "/work,userxattr";
	scoped_fd int old = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = make_dir("/" RUN_ROOT, e);
	if (r < 0)
		return r;
	if (mount("overlay", "/" RUN_ROOT, "overlay", MS_NODEV, options) < 0)
		return err_sys(e, "mount the overlay");
	if (old < 0 || chdir("/" RUN_ROOT) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || fchdir(old) < 0)
		return err_sys(e, "change the root");
	return 0;
}

/* Docker's views of the kernel come along, without its control groups. */
static int move_kernel(const struct door_mounts *, struct err *e)
{
	static const char *const paths[] = {"/proc", "/sys", "/dev"};
	(void)umount2("sys/fs/cgroup", MNT_DETACH);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		int r = make_dir(paths[i], e);
		if (r < 0)
			return r;
		if (mount(paths[i] + 1, paths[i], NULL, MS_MOVE, NULL) < 0)
			return err_sys(e, "move %s", paths[i]);
	}
	return 0;
}

/* File systems of our own. A nested runtime in a user namespace mounts a proc and a sysfs, which the kernel allows only
 * where one without anything on top is to be seen already. Docker passes over this one name when it walks through /dev
 * for a nested privileged container. */
static const struct {
	const char *path, *type, *options;
	unsigned long flags;
} fresh[] = {
	{"/run", "tmpfs", "mode=755,size=20%", MS_NOSUID | MS_NODEV},
	{"/run/lock", "tmpfs", "mode=1777,size=5m", NOTHING},
	{"/dev/.lxc/proc", "proc", NULL, NOTHING},
	{"/dev/.lxc/sys", "sysfs", NULL, NOTHING},
};

static int mount_fresh(const struct door_mounts *, struct err *e)
{
	for (size_t i = 0; i < sizeof(fresh) / sizeof(fresh[0]); i++) {
		int r = make_dir(fresh[i].path, e);
		if (r < 0)
			return r;
		if (mount(fresh[i].type, fresh[i].path, fresh[i].type, fresh[i].flags, fresh[i].options) < 0)
			return err_sys(e, "mount a %s at %s", fresh[i].type, fresh[i].path);
	}
	return chmod("/dev/.lxc", 0700) < 0 ? err_sys(e, "close /dev/.lxc") : 0;
}

/* Whole mounts that the host sent, read-only. */
static const struct {
	enum door_mount which;
	const char *path;
	uint64_t attributes;
} sent[] = {
	{DOOR_JOB, "/run/ermite",
	 MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC},
	{DOOR_GUEST, "/opt/ermite", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV},
	{DOOR_EXTERNALS, "/opt/externals", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV},
};

static int mount_sent(const struct door_mounts *mounts, struct err *e)
{
	for (size_t i = 0; i < sizeof(sent) / sizeof(sent[0]); i++) {
		struct mount_attr attributes = {.attr_set = sent[i].attributes};
		int fd = mounts->fds[sent[i].which];
		if (fd < 0)
			continue;
		int r = attach(fd, sent[i].path, e);
		if (r < 0)
			return r;
		if (mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof(attributes)) < 0)
			return err_sys(e, "make %s read-only", sent[i].path);
	}
	return 0;
}

/* Nested Docker and its kin keep their layers beside the overlay, which could not carry another one. */
static const struct {
	const char *source, *path;
} scratch[] = {
	{RUN_SCRATCH "/data", "/scratch"},
	{RUN_SCRATCH "/docker", "/var/lib/docker"},
	{RUN_SCRATCH "/containerd", "/var/lib/containerd"},
	{RUN_SCRATCH "/containers", "/var/lib/containers"},
};

static int bind_scratch(const struct door_mounts *, struct err *e)
{
	for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
		int r = make_dir(scratch[i].path, e);
		if (r < 0)
			return r;
		if (mount(scratch[i].source, scratch[i].path, NULL, MS_BIND, NULL) < 0)
			return err_sys(e, "bind %s", scratch[i].path);
	}
	return 0;
}

/* Where lxcfs shows the limits instead of the host's numbers. */
static const char *const lxcfs_files[] = {
	"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo",
	"/proc/stat",    "/proc/swaps",     "/proc/uptime",
};

static int bind_lxcfs(const struct door_mounts *, struct err *e)
{
	char source[64];
	for (size_t i = 0; i < sizeof(lxcfs_files) / sizeof(lxcfs_files[0]); i++) {
		(void)snprintf(source, sizeof(source), RUN_LXCFS "%s", lxcfs_files[i]);
		if (mount(source, lxcfs_files[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
			return err_sys(e, "bind %s of lxcfs", lxcfs_files[i]);
	}
	return 0;
}

static int hide_file(const char *path)
{
	return mount("/dev/null", path, NULL, MS_BIND, NULL);
}

static int hide_directory(const char *path)
{
	return mount("tmpfs", path, "tmpfs", NOTHING | MS_RDONLY, "size=0k");
}

/* Docker's sysfs can be read-only as a whole; in a user namespace it stays so. */
static int open_up(const char *path)
{
	(void)mount(NULL, path, NULL, NOTHING | MS_REMOUNT, NULL);
	return 0;
}

static int keep(const char *path)
{
	return mount(path, path, NULL, MS_BIND, NULL);
}

static int protect(const char *path)
{
	struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY};
	return mount_setattr(AT_FDCWD, path, 0, &attributes, sizeof(attributes));
}

/* What Docker hides and protects; in this order, since a place that is kept writable must be a mount of its own before
 * what is around it is protected. In a privileged container this is only decency: root inside can take it all away. */
static const struct {
	int (*how)(const char *path);
	const char *path;
} masks[] = {
	{hide_file, "/proc/kcore"},
	{hide_file, "/proc/keys"},
	{hide_file, "/proc/latency_stats"},
	{hide_file, "/proc/timer_list"},
	{hide_file, "/proc/sched_debug"},
	{hide_file, "/proc/interrupts"},
	{hide_directory, "/proc/acpi"},
	{hide_directory, "/proc/scsi"},
	{hide_directory, "/sys/firmware"},
	{hide_directory, "/sys/devices/virtual/powercap"},
	{keep, "/proc/sysrq-trigger"},
	{protect, "/proc/sysrq-trigger"},
	{keep, "/proc/sys"},
	{keep, "/proc/sys/net"},
	{protect, "/proc/sys"},
	{open_up, "/sys"},
	{keep, "/sys/devices/virtual/net"},
	{protect, "/sys"},
};

static int mask(const struct door_mounts *, struct err *e)
{
	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++)
		if (masks[i].how(masks[i].path) < 0 && errno != ENOENT)
			return err_sys(e, "mask %s", masks[i].path);
	return 0;
}

/* Docker leaves them out. Where this is not the host's root it may not make any, and goes without. */
static int make_devices(const struct door_mounts *, struct err *e)
{
	static const struct {
		const char *path;
		unsigned minor;
	} devices[] = {{"/dev/fuse", 229}, {"/dev/net/tun", 200}};
	int r = make_dir("/dev/net", e);
	for (size_t i = 0; r == 0 && i < sizeof(devices) / sizeof(devices[0]); i++) {
		const char *path = devices[i].path;
		if (mknod(path, S_IFCHR | 0666, makedev(10, devices[i].minor)) < 0) {
			if (errno != EEXIST && errno != EPERM)
				r = err_sys(e, "make %s", path);
		} else if (chmod(path, 0666) < 0)
			r = err_sys(e, "make %s", path);
	}
	return r;
}

static int let_go(const struct door_mounts *, struct err *e)
{
	if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
		return err_sys(e, "let go of Docker's root");
	return 0;
}

int root_build(struct door_mounts *mounts, struct err *e)
{
	static int (*const steps[])(const struct door_mounts *mounts, struct err *e) = {
		attach_layers, change_root, move_kernel, mount_fresh,  mount_sent,
		bind_scratch,  bind_lxcfs,  mask,        make_devices, let_go,
	};
	int r = 0;
	for (size_t i = 0; r == 0 && i < sizeof(steps) / sizeof(steps[0]); i++)
		r = steps[i](mounts, e);
	door_mounts_done(mounts);
	return r;
}
