#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "probe.h"

#define AT                "/tmp/.probe-mount"
#define EXT4_IOC_SHUTDOWN _IOR('X', 125, uint32_t)

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const types[] = {
	"ext4",      "xfs",    "btrfs",    "vfat",        "iso9660",    "squashfs", "erofs",   "udf",
	"nfs",       "cifs",   "9p",       "ceph",        "virtiofs",   "proc",     "sysfs",   "devtmpfs",
	"devpts",    "tmpfs",  "ramfs",    "mqueue",      "overlay",    "fuse",     "fuseblk", "fusectl",
	"hugetlbfs", "cgroup", "cgroup2",  "cpuset",      "debugfs",    "tracefs",  "bpf",     "securityfs",
	"configfs",  "pstore", "efivarfs", "binfmt_misc", "rpc_pipefs", "nfsd",     "resctrl", "selinuxfs",
};

/* Each controller of version 1 on its own, and a hierarchy that does not exist yet. */
static const char *const hierarchies[] = {
	"memory",     "pids",  "cpu",     "cpuacct",           "cpuset",
	"devices",    "blkio", "freezer", "hugetlb",           "net_cls",
	"perf_event", "rdma",  "misc",    "none,name=systemd", "none,name=probe",
};

/* Limits of the group that the sandbox's first process was put into; the ones that hold stand in the group above. */
static const struct {
	const char *path, *text;
} limits[] = {
	{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"},
	{"/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "-1"},
	{"/sys/fs/cgroup/memory/memory.force_empty", "0"},
	{"/sys/fs/cgroup/pids/pids.max", "max"},
	{"/sys/fs/cgroup/devices/devices.allow", "a *:* rwm"},
	{"/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device", "7:0 0"},
	{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"},
	{"/sys/fs/cgroup/cpu/cpu.rt_runtime_us", "950000"},
	{"/sys/fs/cgroup/cpuset/cpuset.cpus", "0-1023"},
	{"/sys/fs/cgroup/memory.max", "max"},
	{"/sys/fs/cgroup/pids.max", "max"},
	{"/sys/fs/cgroup/cpu.max", "max"},
	{"/sys/fs/cgroup/io.max", "7:0 rbps=max"},
	{"/sys/fs/cgroup/cgroup.subtree_control", "+memory"},
};

static long try_type(const void *argument)
{
	long r = take_namespaces();
	return r < 0 ? r : refusal_of(mount("none", AT, argument, 0, ""));
}

static long try_hierarchy(const void *argument)
{
	long r = take_namespaces();
	return r < 0 ? r : errno_of(mount("cgroup", AT, "cgroup", 0, argument));
}

/* The program that the kernel runs as root of the host when a group empties: only in the root of a hierarchy. */
static long try_release_agent(const void *argument)
{
	long r = try_hierarchy(argument);
	if (r < 0)
		return r;
	int fd = open(AT "/release_agent", O_WRONLY | O_CLOEXEC);
	return errno_of(fd);
}

static long try_limit(const void *argument)
{
	size_t i = *(const size_t *)argument;
	int fd = open(limits[i].path, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -errno : errno_of(write(fd, limits[i].text, strlen(limits[i].text)));
}

static void probe_cgroups(void)
{
	char what[96];
	for (size_t i = 0; i < COUNT(hierarchies); i++) {
		(void)snprintf(what, sizeof(what), "cgroup of %s", hierarchies[i]);
		report("mount", what, in_child(try_hierarchy, hierarchies[i]));
		(void)snprintf(what, sizeof(what), "release_agent of %s", hierarchies[i]);
		report("write", what, in_child(try_release_agent, hierarchies[i]));
	}
	for (size_t i = 0; i < COUNT(limits); i++) {
		(void)snprintf(what, sizeof(what), "%s to %s", limits[i].text, limits[i].path);
		report("limit", what, in_child(try_limit, &i));
	}
}

/* A group's name in a namespace that it does not belong to begins with "/..". */
static void probe_cgroup_names(void)
{
	char line[512];
	FILE *f = fopen("/proc/self/cgroup", "re");
	long r = -EPERM;
	while (f && fgets(line, sizeof(line), f))
		if (strstr(line, ":/..") || strstr(line, "ermite"))
			r = 0;
	if (f)
		(void)fclose(f);
	report("cgroup", "names from outside the namespace", r);
}

static int compare(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Whatever lies on a block device: only the sandbox's own scratch disk should. */
static void probe_block_mounts(void)
{
	enum { MOUNTS_MAX = 64, MOUNT_MAX = 160 };
	char line[1024];
	char found[MOUNTS_MAX][MOUNT_MAX];
	size_t n = 0;
	FILE *f = fopen("/proc/self/mounts", "re");
	while (f && fgets(line, sizeof(line), f) && n < MOUNTS_MAX) {
		char source[256];
		char target[256];
		char type[64];
		if (sscanf(line, "%255s %255s %63s", source, target, type) != 3)
			continue;
		if (strncmp(source, "/dev/", 5) == 0)
			(void)snprintf(found[n++], MOUNT_MAX, "%.90s is of a block device, %.20s", target,
				       type);
	}
	if (f)
		(void)fclose(f);
	qsort(found, n, sizeof(found[0]), compare);
	for (size_t i = 0; i < n; i++)
		report("mounted", found[i], 0);
}

static long try_writable(const void *argument)
{
	long r = take_namespaces();
	return r < 0 ? r : errno_of(mount(NULL, argument, NULL, MS_REMOUNT | MS_BIND, NULL));
}

static long try_unmount(const void *argument)
{
	long r = take_namespaces();
	return r < 0 ? r : errno_of(umount2(argument, MNT_DETACH));
}

static void probe_masks(void)
{
	static const char *const read_only[] = {"/opt/ermite", "/run/ermite", "/proc/sys", "/sys"};
	static const char *const covers[] = {"/proc/sys", "/proc/keys", "/proc/timer_list", "/sys/firmware",
					     "/proc/meminfo"};
	for (size_t i = 0; i < COUNT(read_only); i++)
		report("make writable", read_only[i], in_child(try_writable, read_only[i]));
	for (size_t i = 0; i < COUNT(covers); i++)
		report("unmount", covers[i], in_child(try_unmount, covers[i]));
}

static long try_core_pattern(const void *)
{
	long r = take_namespaces();
	if (r < 0)
		return r;
	/* Also without what makes /proc/sys read-only. */
	(void)umount2("/proc/sys", MNT_DETACH);
	return errno_of(open("/proc/sys/kernel/core_pattern", O_WRONLY | O_CLOEXEC));
}

static long try_ioctl(unsigned long request, void *argument)
{
	int fd = open("/scratch", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : errno_of(ioctl(fd, request, argument));
}

static long try_freeze(const void *)
{
	long r = try_ioctl(FIFREEZE, NULL);
	if (r == 0)
		(void)try_ioctl(FITHAW, NULL);
	return r;
}

static long try_trim(const void *)
{
	struct fstrim_range range = {.len = 4096};
	return try_ioctl(FITRIM, &range);
}

static long try_shutdown(const void *)
{
	uint32_t flags = 2;
	return try_ioctl(EXT4_IOC_SHUTDOWN, &flags);
}

void probe_mounts(void)
{
	char what[64];
	if (mkdir(AT, 0700) < 0 && errno != EEXIST)
		return;
	for (size_t i = 0; i < COUNT(types); i++)
		report("mount", types[i], in_child(try_type, types[i]));
	probe_block_mounts();
	probe_masks();
	report("write", "core_pattern with /proc/sys uncovered", in_child(try_core_pattern, NULL));
	probe_cgroup_names();
	probe_cgroups();
	(void)snprintf(what, sizeof(what), "freeze the scratch disk");
	report("deed", what, in_child(try_freeze, NULL));
	report("deed", "trim the scratch disk", in_child(try_trim, NULL));
	report("deed", "shut the scratch disk down", in_child(try_shutdown, NULL));
}
