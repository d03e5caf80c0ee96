#include "isolation/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "isolation/layout.h"
#include "isolation/private_run.h"
#include "sys/cgroup.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"

enum { ETHERNET_MTU = 1500 };

/* Directories on the scratch file system, with the ids that they have inside. Docker, containerd and podman keep
 * their layers here and not on the overlay, which could not carry another overlay. */
static const struct {
	const char *path;
	mode_t mode;
} scratch_dirs[] = {
	{RUN_SCRATCH "/upper", 0755},      {RUN_SCRATCH "/work", 0755},       {RUN_SCRATCH "/docker", 0710},
	{RUN_SCRATCH "/containerd", 0711}, {RUN_SCRATCH "/containers", 0755}, {RUN_SCRATCH "/data", 01777},
	{RUN_SCRATCH "/upper/etc", 0755},
};

static int mount_scratch(const struct sandbox *s, dev_t *ret_disk, struct err *e)
{
	char device[LOOPDEV_PATH_MAX];
	struct stat st;
	scoped_fd int file = -1;
	scoped_fd int loop = -1;
	int r = scratch_open(s, &file, e);
	if (r == 0)
		r = loopdev_attach(file, false, &loop, device, e);
	if (r < 0)
		return r;
	if (fstat(loop, &st) < 0)
		return err_sys(e, "look at %s", device);
	*ret_disk = st.st_rdev;
	return mount_ext4(device, RUN_SCRATCH, false, e);
}

static int write_etc(const char *path, const char *text, struct err *e)
{
	scoped_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || fchmod(fd, 0644) < 0)
		return err_sys(e, "make %s of the sandbox", path + strlen(RUN_SCRATCH "/upper"));
	return file_write_all(fd, text, strlen(text), e);
}

/* The sandbox has its id for a name, whatever the image is called, and the name resolves: else sudo and many test
 * suites stumble. */
static int write_name(const char *id, struct err *e)
{
	char hosts[128];
	char name[ID_SIZE + 1];
	(void)snprintf(hosts, sizeof(hosts),
		       "127.0.0.1\tlocalhost\n127.0.1.1\t%s\n::1\tlocalhost ip6-localhost\n", id);
	(void)snprintf(name, sizeof(name), "%s\n", id);
	int r = write_etc(RUN_SCRATCH "/upper/etc/hosts", hosts, e);
	return r < 0 ? r : write_etc(RUN_SCRATCH "/upper/etc/hostname", name, e);
}

static bool has_docker_settings(const char *image)
{
	scoped_fd int base = image ? open(image, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	scoped_fd int theirs = -1;
	return base >= 0 && file_open_in_root(base, "etc/docker/daemon.json", O_PATH, &theirs, NULL) == 0;
}

/* Docker takes the MTU of its bridge from this file alone. An image that brings one has chosen, where it can be
 * seen. */
static int write_docker_mtu(const char *image, uint32_t mtu, struct err *e)
{
	char text[32];
	if (mtu == ETHERNET_MTU || has_docker_settings(image))
		return 0;
	(void)snprintf(text, sizeof(text), "{\"mtu\": %u}\n", mtu);
	int r = private_run_dir(RUN_SCRATCH "/upper/etc/docker", 0755, e);
	return r < 0 ? r : write_etc(RUN_SCRATCH "/upper/etc/docker/daemon.json", text, e);
}

/* What the system inside has to know of its network. */
static int write_network(const struct sandbox_network *network, const char *image, struct err *e)
{
	char address[NETWORK_ADDRESS_TEXT];
	char resolver[48];
	if (network->netns < 0)
		return 0;
	network_address_text(network->gateway, address);
	(void)snprintf(resolver, sizeof(resolver), "nameserver %s\n", address);
	int r = write_etc(RUN_SCRATCH "/upper/etc/resolv.conf", resolver, e);
	return r < 0 ? r : write_docker_mtu(image, network->mtu, e);
}

static int limit_rates(const struct sandbox *s, dev_t disk, struct err *e)
{
	const struct config *c = &s->spec->config;
	struct cgroup_host host;
	int r = cgroup_host_read(&host, e);
	return r < 0 ? r : cgroup_limit_disk(&host, s->id, disk, c->job_disk_bandwidth, c->job_disk_iops, e);
}

int disk_mount(const struct sandbox *s, const char *image, struct err *e)
{
	dev_t disk = 0;
	int r = mount_scratch(s, &disk, e);
	if (r == 0)
		r = limit_rates(s, disk, e);
	for (size_t i = 0; r == 0 && i < sizeof(scratch_dirs) / sizeof(scratch_dirs[0]); i++)
		r = private_run_dir(scratch_dirs[i].path, scratch_dirs[i].mode, e);
	if (r == 0)
		r = write_name(s->id, e);
	return r < 0 ? r : write_network(&s->network, image, e);
}

void disk_usage(struct isolated_disk *ret)
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

void disk_unmount(bool keep)
{
	if (!keep)
		mount_ext4_stop(RUN_SCRATCH);
	/* An idmapped mount covers the plain one. */
	while (umount2(RUN_SCRATCH, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		;
}
