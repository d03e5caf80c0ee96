#include "sys/loopdev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/num.h"
#include "base/scope.h"

/* Between LOOP_CTL_GET_FREE and LOOP_CONFIGURE another process may take the number: try so many times. */
enum { ATTACH_TRIES = 64 };

static int open_device(uint64_t number, int flags, int *ret_fd, char path[static LOOPDEV_PATH_MAX])
{
	(void)snprintf(path, LOOPDEV_PATH_MAX, "/dev/loop%u", (unsigned)number);
	int fd = open(path, flags | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/* True when the device holds this file. */
static bool holds(int device, const struct stat *file)
{
	struct loop_info64 info;
	if (ioctl(device, LOOP_GET_STATUS64, &info) < 0)
		return false;
	return info.lo_device == file->st_dev && info.lo_inode == file->st_ino;
}

static int stat_regular(int file_fd, struct stat *ret, struct err *e)
{
	if (fstat(file_fd, ret) < 0)
		return err_sys(e, "look at the image file");
	if (!S_ISREG(ret->st_mode))
		return err_set(e, -EINVAL, "the image is not a regular file");
	return 0;
}

int loopdev_attach(int file_fd, bool read_only, int *ret_fd, char path[static LOOPDEV_PATH_MAX],
		   struct err *e)
{
	struct stat file;
	int r = stat_regular(file_fd, &file, e);
	if (r < 0)
		return r;
	scoped_fd int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (control < 0)
		return err_sys(e, "open /dev/loop-control");
	struct loop_config config = {
		.fd = (uint32_t)file_fd,
		.info = {.lo_flags = LO_FLAGS_AUTOCLEAR | (read_only ? LO_FLAGS_READ_ONLY : 0)},
	};
	for (int i = 0; i < ATTACH_TRIES; i++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);
		if (number < 0)
			return err_sys(e, "find a free loop device");
		scoped_fd int device = -1;
		r = open_device((uint64_t)number, read_only ? O_RDONLY : O_RDWR, &device, path);
		if (r < 0)
			return err_code(e, r, "open %s", path);
		if (ioctl(device, LOOP_CONFIGURE, &config) < 0) {
			if (errno == EBUSY)
				continue;
			return err_sys(e, "attach the image to %s", path);
		}
		if (!holds(device, &file))
			return err_set(e, -EIO, "%s does not hold the image it was given", path);
		*ret_fd = fd_steal(&device);
		return 0;
	}
	return err_set(e, -EBUSY, "no loop device stayed free for %d tries", ATTACH_TRIES);
}

/* Opening one that is about to be detached is fine: as long as we hold it, it stays. */
static bool share_one(const char *name, const struct stat *file, int *ret_fd,
		      char path[static LOOPDEV_PATH_MAX])
{
	uint64_t number = 0;
	if (strncmp(name, "loop", 4) != 0 || num_parse(name + 4, 0, UINT32_MAX, &number) < 0)
		return false;
	char backing[64];
	(void)snprintf(backing, sizeof(backing), "/sys/block/loop%u/loop/backing_file", (unsigned)number);
	if (access(backing, F_OK) < 0)
		return false;
	scoped_fd int device = -1;
	if (open_device(number, O_RDONLY, &device, path) < 0 || !holds(device, file))
		return false;
	struct loop_info64 info;
	if (ioctl(device, LOOP_GET_STATUS64, &info) < 0 || !(info.lo_flags & LO_FLAGS_READ_ONLY) ||
	    !(info.lo_flags & LO_FLAGS_AUTOCLEAR) || info.lo_offset || info.lo_sizelimit)
		return false;
	*ret_fd = fd_steal(&device);
	return true;
}

int loopdev_share(int file_fd, int *ret_fd, char path[static LOOPDEV_PATH_MAX], struct err *e)
{
	struct stat file;
	int r = stat_regular(file_fd, &file, e);
	if (r < 0)
		return r;
	scoped_dir DIR *d = opendir("/sys/block");
	for (struct dirent *entry = d ? readdir(d) : NULL; entry; entry = readdir(d))
		if (share_one(entry->d_name, &file, ret_fd, path))
			return 0;
	return loopdev_attach(file_fd, true, ret_fd, path, e);
}
