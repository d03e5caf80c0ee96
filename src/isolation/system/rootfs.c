#include "isolation/system/rootfs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "isolation/system/layout.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"
#include "sys/userns.h"

enum { RUN_KIB = 8192, IDS = 65536, ETHERNET_MTU = 1500 };

static const char *const run_dirs[] = {RUN_BASE, RUN_SCRATCH, RUN_ROOT, RUN_JOB,  RUN_GUEST,
				       RUN_DEV,  RUN_LXCFS,   RUN_LXC,  RUN_MOUNT};

/* Directories on the scratch file system, with the ids that they have inside. Docker, containerd and podman keep their
 * layers here and not on the overlay, which could not carry another overlay. */
static const struct {
	const char *path;
	mode_t mode;
} scratch_dirs[] = {
	{RUN_SCRATCH "/upper", 0755},      {RUN_SCRATCH "/work", 0755},       {RUN_SCRATCH "/docker", 0710},
	{RUN_SCRATCH "/containerd", 0711}, {RUN_SCRATCH "/containers", 0755}, {RUN_SCRATCH "/data", 01777},
	{RUN_SCRATCH "/upper/etc", 0755},
};

/* A directory with exactly this mode, whatever the umask. */
static int make_dir(const char *path, mode_t mode, struct err *e)
{
	if (mkdir(path, mode) < 0 || chmod(path, mode) < 0)
		return err_sys(e, "make %s", path);
	return 0;
}

/* Our own nodes: a host's may have modes that shut out the ids of a sandbox. */
static int make_device(const char *path, unsigned minor_number, struct err *e)
{
	if (mknod(path, S_IFCHR | 0666, makedev(10, minor_number)) < 0 || chmod(path, 0666) < 0)
		return err_sys(e, "make %s", path);
	return 0;
}

static int copy_file(int from_dir, int to_dir, const char *name, mode_t mode, struct err *e)
{
	scoped_fd int from = -1;
	scoped_fd int to = -1;
	int r = file_open_beneath(from_dir, name, O_RDONLY, 0, &from, e);
	if (r == 0)
		r = file_open_beneath(to_dir, name, O_WRONLY | O_CREAT | O_EXCL, mode, &to, e);
	if (r < 0)
		return r;
	if (fchmod(to, mode) < 0)
		return err_sys(e, "make %s", name);
	for (;;) {
		ssize_t n = sendfile(to, from, NULL, 1 << 30);
		if (n == 0)
			return 0;
		if (n < 0)
			return err_sys(e, "copy %s", name);
	}
}

/* Copied and not bound: a bind would show every sandbox a piece of the file system that the host lives on, its free
 * space and its paths included. */
static int copy_guest(const char *guest_dir, struct err *e)
{
	scoped_fd int from = open(guest_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int to = open(RUN_GUEST, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (from < 0 || to < 0)
		return err_sys(e, "open %s", from < 0 ? guest_dir : RUN_GUEST);
	int r = copy_file(from, to, "ermite-runner", 0755, e);
	if (r == 0)
		r = copy_file(from, to, "seccomp.bpf", 0644, e);
	return r < 0 ? r : mount_program(RUN_GUEST, e);
}

int rootfs_prepare_run(const char *guest_dir, struct err *e)
{
	int r = mount_own_namespace(e);
	if (r == 0)
		r = mount_tmpfs("/run", RUN_KIB, true, e);
	for (size_t i = 0; r == 0 && i < sizeof(run_dirs) / sizeof(run_dirs[0]); i++)
		r = make_dir(run_dirs[i], 0755, e);
	if (r == 0)
		r = make_device(RUN_DEV "/fuse", 229, e);
	if (r == 0)
		r = make_device(RUN_DEV "/tun", 200, e);
	return r < 0 ? r : copy_guest(guest_dir, e);
}

int rootfs_mount_base(const char *image_dir, struct err *e)
{
	char device[LOOPDEV_PATH_MAX];
	scoped_fd int image = -1;
	scoped_fd int loop = -1;
	int r = mount_open_unnamed(image_dir, "base.ext4", O_RDONLY, &image, e);
	if (r == 0)
		r = loopdev_share(image, &loop, device, e);
	return r < 0 ? r : mount_ext4(device, RUN_BASE, true, e);
}

/* Follows links as the image means them, never out of it. */
static bool is_program(int base_fd, const char *path, char *ret_target, size_t size)
{
	struct stat st;
	char link[64];
	scoped_fd int fd = -1;
	if (file_open_in_root(base_fd, path, O_PATH, &fd, NULL) < 0)
		return false;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & 0111))
		return false;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, ret_target, size - 1);
	ret_target[n < 0 ? 0 : n] = '\0';
	return true;
}

bool rootfs_has_init(bool *ret_systemd)
{
	static const char *const candidates[] = {"sbin/init", "lib/systemd/systemd"};
	scoped_fd int base = open(RUN_BASE, O_PATH | O_DIRECTORY | O_CLOEXEC);
	*ret_systemd = false;
	for (size_t i = 0; base >= 0 && i < sizeof(candidates) / sizeof(candidates[0]); i++) {
		char target[256];
		if (!is_program(base, candidates[i], target, sizeof(target)))
			continue;
		const char *name = strrchr(target, '/');
		*ret_systemd = name && strcmp(name, "/systemd") == 0;
		return true;
	}
	return false;
}

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

/* Docker takes the MTU of its bridge from this file alone. An image that brings one has chosen. */
static int write_docker_mtu(uint32_t mtu, struct err *e)
{
	char text[32];
	scoped_fd int base = open(RUN_BASE, O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int theirs = -1;
	if (mtu == ETHERNET_MTU ||
	    file_open_in_root(base, "etc/docker/daemon.json", O_PATH, &theirs, NULL) == 0)
		return 0;
	(void)snprintf(text, sizeof(text), "{\"mtu\": %u}\n", mtu);
	int r = make_dir(RUN_SCRATCH "/upper/etc/docker", 0755, e);
	return r < 0 ? r : write_etc(RUN_SCRATCH "/upper/etc/docker/daemon.json", text, e);
}

/* What the system inside has to know of its network. */
static int write_network(const struct sandbox_network *network, struct err *e)
{
	char address[NETWORK_ADDRESS_TEXT];
	char resolver[48];
	if (network->netns < 0)
		return 0;
	network_address_text(network->gateway, address);
	(void)snprintf(resolver, sizeof(resolver), "nameserver %s\n", address);
	int r = write_etc(RUN_SCRATCH "/upper/etc/resolv.conf", resolver, e);
	return r < 0 ? r : write_docker_mtu(network->mtu, e);
}

int rootfs_mount(const struct sandbox *s, uid_t uid, dev_t *ret_disk, struct err *e)
{
	scoped_fd int ids = -1;
	int r = mount_scratch(s, ret_disk, e);
	/* Made before the ids are mapped: root here is root inside, on disk and so in any later slot. */
	for (size_t i = 0; r == 0 && i < sizeof(scratch_dirs) / sizeof(scratch_dirs[0]); i++)
		r = make_dir(scratch_dirs[i].path, scratch_dirs[i].mode, e);
	if (r == 0)
		r = write_name(s->id, e);
	if (r == 0)
		r = write_network(&s->network, e);
	if (r == 0)
		r = userns_make(uid, IDS, &ids, e);
	if (r == 0)
		r = mount_idmap(RUN_BASE, ids, e);
	if (r == 0)
		r = mount_idmap(RUN_SCRATCH, ids, e);
	return r < 0 ? r
		     : mount_overlay(RUN_BASE, RUN_SCRATCH "/upper", RUN_SCRATCH "/work", RUN_ROOT, uid, e);
}

/* Deepest first. An idmapped mount covers the plain one, so two are under such a path. */
void rootfs_unmount(bool keep_disk)
{
	static const char *const mounts[] = {RUN_LXCFS, RUN_ROOT, RUN_SCRATCH, RUN_SCRATCH,
					     RUN_BASE,  RUN_BASE, RUN_GUEST};
	if (!keep_disk)
		mount_ext4_stop(RUN_SCRATCH);
	for (size_t i = 0; i < sizeof(mounts) / sizeof(mounts[0]); i++)
		(void)umount2(mounts[i], MNT_DETACH | UMOUNT_NOFOLLOW);
}
