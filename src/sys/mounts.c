#include "sys/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/named.h"
#include "base/scope.h"
#include "sys/loopdev.h"

/* From fs/ext4/ext4.h; not in the exported headers of Debian 12. */
#define EXT4_IOC_SHUTDOWN           _IOR('X', 125, uint32_t)
#define EXT4_GOING_FLAGS_NOLOGFLUSH 2u

int mount_own_namespace(struct err *e)
{
	if (unshare(CLONE_NEWNS) < 0)
		return err_sys(e, "make a mount namespace");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return err_sys(e, "make mounts private");
	return 0;
}

int mount_tmpfs(const char *target, uint32_t kib, bool devices, struct err *e)
{
	char options[48];
	int n = snprintf(options, sizeof(options), "mode=755,size=%uk", kib);
	if (n < 0 || (size_t)n >= sizeof(options))
		return err_set(e, -EINVAL, "tmpfs size %u", kib);
	unsigned long flags = MS_NOSUID | MS_NOEXEC | (devices ? 0 : MS_NODEV);
	if (mount("ermite", target, "tmpfs", flags, options) < 0)
		return err_sys(e, "mount a tmpfs on %s", target);
	return 0;
}

int mount_ext4(const char *device, const char *target, bool read_only, struct err *e)
{
	unsigned long flags = MS_NODEV | (read_only ? MS_RDONLY : MS_NOATIME);
	const char *options =
		read_only ? "errors=remount-ro,noload" : "errors=remount-ro,nobarrier,noinit_itable";
	if (mount(device, target, "ext4", flags, options) < 0)
		return err_sys(e, "mount %s on %s", device, target);
	return 0;
}

int mount_idmap(const char *path, int userns_fd, struct err *e)
{
	scoped_fd int tree = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (tree < 0)
		return err_sys(e, "clone the mount %s", path);
	struct mount_attr attributes = {
		.attr_set = MOUNT_ATTR_IDMAP,
		.userns_fd = (unsigned)userns_fd,
	};
	if (mount_setattr(tree, "", AT_EMPTY_PATH, &attributes, sizeof(attributes)) < 0)
		return err_sys(e, "map the ids of %s", path);
	if (move_mount(tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		return err_sys(e, "put the mapped mount on %s", path);
	return 0;
}

/* setfsuid() to anything but 0 takes CAP_CHOWN and its like out of the effective set; the overlay needs them. */
static int raise_permitted(struct err *e)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &header, data) < 0)
		return err_sys(e, "read capabilities");
	for (int i = 0; i < 2; i++)
		data[i].effective = data[i].permitted;
	if (syscall(SYS_capset, &header, data) < 0)
		return err_sys(e, "raise capabilities");
	return 0;
}

/* The two calls report the previous id and no error: whether it worked is asked by a second, impossible, change. */
static int take_fs_ids(uid_t uid, struct err *e)
{
	setfsgid(uid);
	setfsuid(uid);
	if ((uid_t)setfsuid((uid_t)-1) != uid || (gid_t)setfsgid((gid_t)-1) != (gid_t)uid)
		return err_set(e, -EPERM, "take the file system id %u", uid);
	return raise_permitted(e);
}

int mount_overlay(const char *lower, const char *upper, const char *work, const char *target, uid_t mounter,
		  struct err *e)
{
	scoped_free char *options = NULL;
	if (asprintf(&options, "lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work) < 0)
		return err_set(e, -ENOMEM, "overlay on %s: out of memory", target);
	int r = take_fs_ids(mounter, e);
	if (r == 0 && mount("overlay", target, "overlay", MS_NODEV, options) < 0)
		r = err_sys(e, "mount an overlay on %s", target);
	struct err back = ERR_INIT;
	int r_back = take_fs_ids(0, &back);
	if (r == 0 && r_back < 0)
		return err_set(e, r_back, "%s", back.msg);
	return r;
}

int mount_bind(const char *source, const char *target, bool read_only, struct err *e)
{
	if (mount(source, target, NULL, MS_BIND, NULL) < 0)
		return err_sys(e, "bind %s on %s", source, target);
	if (!read_only)
		return 0;
	struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
	if (mount_setattr(AT_FDCWD, target, 0, &attributes, sizeof(attributes)) < 0)
		return err_sys(e, "make %s read-only", target);
	return 0;
}

int mount_program(const char *path, struct err *e)
{
	if (mount(path, path, NULL, MS_BIND, NULL) < 0)
		return err_sys(e, "bind %s on itself", path);
	struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV,
					.attr_clr = MOUNT_ATTR_NOEXEC};
	if (mount_setattr(AT_FDCWD, path, 0, &attributes, sizeof(attributes)) < 0)
		return err_sys(e, "let programs in %s run", path);
	return 0;
}

int mount_open_unnamed(const char *directory, const char *name, int flags, int *ret_fd, struct err *e)
{
	scoped_fd int place = -1;
	scoped_fd int file = -1;
	int r = named_open(directory, O_PATH | O_DIRECTORY, &place, e);
	if (r < 0)
		return err_ctx(e, r, "%s", directory);
	scoped_fd int tree = open_tree(place, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
	if (tree < 0)
		return err_sys(e, "clone the mount of %s", directory);
	r = file_open_beneath(tree, name, flags, 0, &file, e);
	if (r == 0)
		r = file_check_owned(file, name, e);
	if (r < 0)
		return err_ctx(e, r, "%s", directory);
	*ret_fd = fd_steal(&file);
	return 0;
}

int mount_image_base(const char *directory, const char *target, struct err *e)
{
	char device[LOOPDEV_PATH_MAX];
	scoped_fd int image = -1;
	scoped_fd int loop = -1;
	int r = mount_open_unnamed(directory, "base.ext4", O_RDONLY, &image, e);
	if (r == 0)
		r = loopdev_share(image, &loop, device, e);
	return r < 0 ? r : mount_ext4(device, target, true, e);
}

int mount_detached(const char *path, uint64_t attributes, int *ret_fd, struct err *e)
{
	scoped_fd int tree = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
	struct mount_attr change = {.attr_set = attributes};
	if (tree < 0)
		return err_sys(e, "clone the mount of %s", path);
	if (attributes && mount_setattr(tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &change, sizeof(change)) < 0)
		return err_sys(e, "restrict the mount of %s", path);
	*ret_fd = fd_steal(&tree);
	return 0;
}

void mount_ext4_stop(const char *path)
{
	scoped_fd int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint32_t flags = EXT4_GOING_FLAGS_NOLOGFLUSH;
	if (fd >= 0)
		(void)ioctl(fd, EXT4_IOC_SHUTDOWN, &flags);
}
