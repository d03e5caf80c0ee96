#include "sys/loopdev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/loop.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
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
			return err_sys(e, "no loop device is free (losetup lists who has them)");
		scoped_fd int device = -1;
		r = open_device((uint64_t)number, read_only ? O_RDONLY : O_RDWR, &device, path);
		if (r == -ENOENT)
			return err_set(e, r,
				       "no loop device is free: all that are in /dev are in use, and mknod "
				       "%s b 7 %d adds one",
				       path, number);
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

static bool number_of(const char *name, uint64_t *ret)
{
	return strncmp(name, "loop", 4) == 0 && num_parse(name + 4, 0, UINT32_MAX, ret) == 0;
}

/* The name of the file that a device holds. False when it holds none. */
static bool read_backing(uint64_t number, char *name, size_t size)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "/sys/block/loop%u/loop/backing_file", (unsigned)number);
	return file_read_text(AT_FDCWD, path, name, size, NULL) >= 0;
}

/* Opening one that is about to be detached is fine: as long as we hold it, it stays. */
static bool share_one(const char *name, const struct stat *file, int *ret_fd,
		      char path[static LOOPDEV_PATH_MAX])
{
	uint64_t number = 0;
	if (!number_of(name, &number))
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

int loopdev_each(loopdev_fn *fn, void *data)
{
	scoped_dir DIR *d = opendir("/sys/block");
	int r = 0;
	for (struct dirent *entry = d ? readdir(d) : NULL; entry && r == 0; entry = readdir(d)) {
		struct loopdev l;
		struct loop_info64 info;
		char name[PATH_MAX];
		uint64_t number = 0;
		scoped_fd int device = -1;
		if (!number_of(entry->d_name, &number) || !read_backing(number, name, sizeof(name)) ||
		    open_device(number, O_RDONLY, &device, l.path) < 0 ||
		    ioctl(device, LOOP_GET_STATUS64, &info) < 0)
			continue;
		l.file_dev = info.lo_device;
		l.file_ino = info.lo_inode;
		/* Held by us it could not be released. */
		fd_close(&device);
		r = fn(data, &l);
	}
	return r;
}

/* The device is the file's as long as we have it open. When somebody else has, too, the kernel only notes that it is
 * to be detached with the last of them. */
static bool is_released(const struct loopdev *l)
{
	const struct stat file = {.st_dev = l->file_dev, .st_ino = l->file_ino};
	scoped_fd int device = open(l->path, O_RDONLY | O_CLOEXEC);
	if (device < 0 || !holds(device, &file))
		return true;
	return ioctl(device, LOOP_CLR_FD) == 0 && !holds(device, &file);
}

int loopdev_release(const struct loopdev *l, uint64_t ms, struct err *e)
{
	uint64_t deadline_ms = clock_boot_ms() + ms;
	while (!is_released(l)) {
		if (clock_boot_ms() >= deadline_ms)
			return err_set(e, -EBUSY, "%s is still in use", l->path);
		(void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
	}
	return 0;
}
