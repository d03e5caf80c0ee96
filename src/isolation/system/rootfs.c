#include "isolation/system/rootfs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "isolation/disk.h"
#include "isolation/layout.h"
#include "isolation/private_run.h"
#include "sys/mounts.h"
#include "sys/userns.h"

static const char *const run_dirs[] = {RUN_BASE, RUN_ROOT, RUN_DEV, RUN_LXC, RUN_MOUNT};

/* Our own nodes: a host's may have modes that shut out the ids of a sandbox. */
static int make_device(const char *path, unsigned minor_number, struct err *e)
{
	if (mknod(path, S_IFCHR | 0666, makedev(10, minor_number)) < 0 || chmod(path, 0666) < 0)
		return err_sys(e, "make %s", path);
	return 0;
}

int rootfs_prepare_run(const char *guest_dir, struct err *e)
{
	int r = private_run_make(guest_dir, e);
	for (size_t i = 0; r == 0 && i < sizeof(run_dirs) / sizeof(run_dirs[0]); i++)
		r = private_run_dir(run_dirs[i], 0755, e);
	if (r == 0)
		r = make_device(RUN_DEV "/fuse", 229, e);
	return r < 0 ? r : make_device(RUN_DEV "/tun", 200, e);
}

/* Follows links as the image means them, never out of it. */
static bool is_program(int base_fd, const char *path, char *ret_target, size_t size)
{
	struct stat st;
	scoped_fd int fd = -1;
	if (file_open_in_root(base_fd, path, O_PATH, &fd, NULL) < 0)
		return false;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & 0111))
		return false;
	if (file_path(fd, ret_target, size, NULL) < 0)
		ret_target[0] = '\0';
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

int rootfs_mount(const struct sandbox *s, uid_t uid, struct err *e)
{
	scoped_fd int ids = -1;
	/* Filled before the ids are mapped: root here is root inside, on disk and so in any later slot. */
	int r = disk_mount(s, RUN_BASE, e);
	if (r == 0)
		r = userns_make(uid, SLOT_IDS, &ids, e);
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
	static const char *const before[] = {RUN_LXCFS, RUN_ROOT};
	static const char *const after[] = {RUN_BASE, RUN_BASE, RUN_GUEST};
	for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++)
		(void)umount2(before[i], MNT_DETACH | UMOUNT_NOFOLLOW);
	disk_unmount(keep_disk);
	for (size_t i = 0; i < sizeof(after) / sizeof(after[0]); i++)
		(void)umount2(after[i], MNT_DETACH | UMOUNT_NOFOLLOW);
}
