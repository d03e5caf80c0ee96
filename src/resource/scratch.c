#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"
#include "resource/resource.h"
#include "sys/loopdev.h"
#include "sys/mounts.h"

#define SCRATCH_FILE "scratch.ext4"
#define HALF_MADE    ".new"

enum {
	RESERVE_MIB = 64,  /* of the state directory's file system, so that records can always be written */
	RELEASE_MS = 2000, /* for a loop device whose last user has just ended */
};

/* Formatting takes longer than all the rest of a start: each size is formatted once, into a sparse file in
 * <state>/templates, and copied, which moves a few MiB at most. */
static int format_template(int templates_fd, const char *name, uint64_t mib, struct err *e)
{
	char temporary[48];
	char path[48];
	(void)snprintf(temporary, sizeof(temporary), "%s" HALF_MADE, name);
	scoped_fd int fd = -1;
	int r = file_open_beneath(templates_fd, temporary, O_RDWR | O_CREAT | O_TRUNC, 0600, &fd, e);
	if (r < 0)
		return r;
	if (ftruncate(fd, (off_t)(mib << 20)) < 0)
		return err_sys(e, "size the scratch template");
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), fd);
	/* No journal: what a crash leaves is deleted. No resize inode: it will never grow. Nothing of the inode tables
	 * is written: a hole reads as zeros. */
	const char *const arguments[] = {"mkfs.ext4",
					 "-q",
					 "-F",
					 "-m",
					 "0",
					 "-O",
					 "^has_journal,^resize_inode",
					 "-E",
					 "lazy_itable_init=1,nodiscard,root_owner=0:0",
					 path,
					 NULL};
	r = child_run("/sbin/mkfs.ext4", arguments, STDERR_FILENO, e);
	if (r < 0)
		return r;
	if (r > 0)
		return err_set(e, -EIO, "mkfs.ext4 ended with status %d", r);
	if (fsync(fd) < 0 || renameat(templates_fd, temporary, templates_fd, name) < 0)
		return err_sys(e, "put the scratch template in place");
	return 0;
}

static int open_templates(int store_fd, int *ret_fd, struct err *e)
{
	if (mkdirat(store_fd, "../templates", 0700) < 0 && errno != EEXIST)
		return err_sys(e, "make the directory of templates");
	/* The store is <state>/sandboxes, opened from the checked state directory, which only root can change. */
	int fd = openat(store_fd, "../templates", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "open the directory of templates");
	int r = file_check_owned(fd, "the directory of templates", e);
	if (r < 0) {
		fd_close(&fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

static int open_template(int store_fd, uint64_t mib, int *ret_fd, struct err *e)
{
	char name[40];
	scoped_fd int templates = -1;
	(void)snprintf(name, sizeof(name), "scratch-%llu.ext4", (unsigned long long)mib);
	int r = open_templates(store_fd, &templates, e);
	if (r < 0)
		return r;
	if (file_open_beneath(templates, name, O_RDONLY, 0, ret_fd, NULL) == 0)
		return 0;
	if (flock(templates, LOCK_EX) < 0)
		return err_sys(e, "lock the templates");
	if (faccessat(templates, name, F_OK, 0) < 0) {
		r = format_template(templates, name, mib, e);
		if (r < 0)
			return r;
	}
	return file_open_beneath(templates, name, O_RDONLY, 0, ret_fd, e);
}

static int copy_range(int from, int to, off_t start, off_t end, struct err *e)
{
	off_t in = start;
	off_t out = start;
	while (in < end) {
		ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - in), 0);
		if (n < 0)
			return err_sys(e, "copy the scratch template");
		if (n == 0)
			return err_set(e, -EIO, "the scratch template is shorter than it was");
	}
	return 0;
}

/* A clone where the file system can, else a copy of the parts that hold data. */
static int copy_sparse(int from, int to, struct err *e)
{
	if (ioctl(to, FICLONE, from) == 0)
		return 0;
	struct stat st;
	if (fstat(from, &st) < 0 || ftruncate(to, st.st_size) < 0)
		return err_sys(e, "size the scratch file");
	for (off_t data = lseek(from, 0, SEEK_DATA); data >= 0;) {
		off_t hole = lseek(from, data, SEEK_HOLE);
		int r = copy_range(from, to, data, hole, e);
		if (r < 0)
			return r;
		data = lseek(from, hole, SEEK_DATA);
	}
	return errno == ENXIO ? 0 : err_sys(e, "read the scratch template");
}

/* Adds the bytes that a scratch file may still take. */
static int add_promised(void *data, int dir_fd, const char *, struct err *)
{
	uint64_t *sum = data;
	struct stat st;
	if (fstatat(dir_fd, SCRATCH_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_size > st.st_blocks * 512)
		*sum += (uint64_t)(st.st_size - st.st_blocks * 512);
	return 0;
}

/* What is promised to all sandboxes together must be there, or be overcommitted knowingly. */
static int check_room(int store_fd, const struct config *c, struct err *e)
{
	struct statvfs fs;
	uint64_t others = 0;
	if (fstatvfs(store_fd, &fs) < 0)
		return err_sys(e, "look at the free space");
	unsigned long long free_mib = fs.f_bavail * fs.f_frsize >> 20;
	int r = record_each(store_fd, add_promised, &others, e);
	if (r < 0)
		return r;
	if (free_mib < RESERVE_MIB)
		return err_set(e, -ENOSPC,
			       "%llu MiB are free in the state directory, of which %d MiB must stay free",
			       free_mib, RESERVE_MIB);
	if ((others >> 20) + c->job_disk_mib <= (free_mib - RESERVE_MIB) * c->disk_overcommit)
		return 0;
	return err_set(e, -ENOSPC,
		       "%llu MiB of disk are asked for, but %llu MiB are free in the state directory, %d MiB "
		       "of them "
		       "must stay free, and %llu MiB are promised to other sandboxes: a smaller "
		       "ERMITE_RUNNER_JOB_DISK or an ERMITE_RUNNER_DISK_OVERCOMMIT above %u would do",
		       (unsigned long long)c->job_disk_mib, free_mib, RESERVE_MIB,
		       (unsigned long long)others >> 20, c->disk_overcommit);
}

static int make_locked(struct sandbox *s, int from, struct err *e)
{
	scoped_fd int to = -1;
	int r = check_room(s->store_fd, &s->spec->config, e);
	if (r == 0)
		r = file_open_beneath(record_dir(s->record), SCRATCH_FILE, O_RDWR | O_CREAT | O_EXCL, 0600,
				      &to, e);
	return r < 0 ? r : copy_sparse(from, to, e);
}

static int make(struct sandbox *s, struct err *e)
{
	scoped_fd int from = -1;
	int r = open_template(s->store_fd, s->spec->config.job_disk_mib, &from, e);
	if (r < 0)
		return r;
	/* Nobody else may take the room between the look and the file. */
	if (flock(s->store_fd, LOCK_EX) < 0)
		return err_sys(e, "lock the store of sandboxes");
	r = make_locked(s, from, e);
	(void)flock(s->store_fd, LOCK_UN);
	return r;
}

/* Detaches a device that holds the file, device and inode, behind data. */
static int release(void *data, const struct loopdev *l)
{
	const struct stat *file = data;
	return l->file_dev == file->st_dev && l->file_ino == file->st_ino
		       ? loopdev_release(l, RELEASE_MS, NULL)
		       : 0;
}

/* A deleted file that something still writes to would take space that nobody can find. */
static int unmake(struct sandbox *s, struct err *e)
{
	struct stat file;
	if (fstatat(record_dir(s->record), SCRATCH_FILE, &file, AT_SYMLINK_NOFOLLOW) == 0 &&
	    loopdev_each(release, &file) < 0)
		return err_set(e, -EBUSY, "something keeps the disk mounted");
	if (unlinkat(record_dir(s->record), SCRATCH_FILE, 0) < 0 && errno != ENOENT)
		return err_sys(e, "remove the scratch file");
	return 0;
}

int scratch_open(const struct sandbox *s, int *ret_fd, struct err *e)
{
	char directory[CONFIG_PATH_MAX + 32];
	(void)snprintf(directory, sizeof(directory), "%s/sandboxes/%s", s->spec->config.state_dir, s->id);
	return mount_open_unnamed(directory, SCRATCH_FILE, O_RDWR, ret_fd, e);
}

/* --- files without a record ----------------------------------------------------------------------------------- */

/* Whoever formats a template has the directory locked: then what is there is not left behind. */
static int sweep(struct reap *reap, struct err *e)
{
	scoped_fd int templates = -1;
	int r = open_templates(reap->store_fd, &templates, e);
	scoped_fd int again = r < 0 ? -1 : openat(templates, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r < 0 || flock(templates, LOCK_EX | LOCK_NB) < 0)
		return r;
	scoped_dir DIR *d = again < 0 ? NULL : fdopendir(again);
	if (!d)
		return err_sys(e, "read the directory of templates");
	(void)fd_steal(&again);
	for (struct dirent *entry = readdir(d); entry; entry = readdir(d)) {
		struct err own = ERR_INIT;
		const char *end = strrchr(entry->d_name, '.');
		if (!end || strcmp(end, HALF_MADE) != 0)
			continue;
		if (!reap->dry_run && unlinkat(templates, entry->d_name, 0) < 0)
			r = err_sys(&own, "remove it");
		reap_tell(reap, "template", entry->d_name, r < 0 ? own.msg : NULL);
		r = 0;
	}
	return 0;
}

const struct resource resource_scratch = {.name = "scratch", .make = make, .unmake = unmake, .sweep = sweep};
