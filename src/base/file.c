#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/num.h"
#include "base/scope.h"

#define RESOLVE_STRICT (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)

/* openat2() gives up with EAGAIN when a rename runs beside it, so it is tried this often. */
enum { OPEN_TRIES = 64 };

/* Directories are emptied this many levels deep at a time, see empty_directory(). */
enum { REMOVE_DEPTH = 32 };

/* Takes the next component off *path into name. Returns 1, 0 when there is none left, or a negative errno: ".." is
 * refused with -EXDEV, since it leaves the directory as soon as somebody moves one. */
static int next_component(const char **path, char name[static NAME_MAX + 1])
{
	const char *p = *path + strspn(*path, "/");
	size_t n = strcspn(p, "/");
	if (n == 0)
		return 0;
	if (n > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, p, n);
	name[n] = '\0';
	*path = p + n;
	return strcmp(name, "..") == 0 ? -EXDEV : 1;
}

/* Refuses what no caller has a use for below a directory: nothing, an absolute path, "..". */
static int check_beneath(const char *path)
{
	char name[NAME_MAX + 1];
	if (path[0] == '\0')
		return -ENOENT;
	if (path[0] == '/')
		return -EXDEV;
	int r = 1;
	while (r > 0)
		r = next_component(&path, name);
	return r;
}

/* Opens the last component. O_PATH with O_NOFOLLOW would open a link itself, so that is looked at. */
static int open_last(int dirfd, const char *name, int flags, mode_t mode)
{
	scoped_fd int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC, mode);
	if (fd < 0)
		return -errno;
	struct stat st = {0};
	if (fstat(fd, &st) < 0)
		return -errno;
	if (S_ISLNK(st.st_mode) && !(flags & O_NOFOLLOW))
		return -ELOOP;
	return fd_steal(&fd);
}

/* What openat2() does, for kernels and filters without it: no component may be a link. */
static int open_by_walk(int dirfd, const char *path, int flags, mode_t mode)
{
	scoped_fd int held = -1;
	int at = dirfd;
	char name[NAME_MAX + 1];
	int r = next_component(&path, name);
	while (r > 0) {
		if (path[0] == '\0')
			return open_last(at, name, flags, mode);
		if (path[strspn(path, "/")] == '\0')
			return open_last(at, name, flags | O_DIRECTORY, mode);
		int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		fd_close(&held);
		at = held = fd;
		r = next_component(&path, name);
	}
	return r < 0 ? r : -ENOENT;
}

static int open_strict(int dirfd, const char *path, int flags, mode_t mode)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)flags | O_CLOEXEC,
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_STRICT,
	};
	for (int i = 0; i < OPEN_TRIES; i++) {
		int fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (fd >= 0)
			return fd;
		if (errno == ENOSYS)
			return open_by_walk(dirfd, path, flags, mode);
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
	}
	return -EAGAIN;
}

int file_open_beneath(int dirfd, const char *path, int flags, mode_t mode, int *ret_fd, struct err *e)
{
	int r = check_beneath(path);
	if (r == 0)
		r = open_strict(dirfd, path, flags, mode);
	if (r < 0)
		return err_code(e, r, "open %s", path);
	*ret_fd = r;
	return 0;
}

/* A path without a directory is an ordinary one: /proc/self is a link, and so may be parts of /sys. */
static int open_file(int dirfd, const char *path, int flags, int *ret_fd, struct err *e)
{
	if (dirfd != AT_FDCWD)
		return file_open_beneath(dirfd, path, flags, 0, ret_fd, e);
	int fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return err_sys(e, "open %s", path);
	*ret_fd = fd;
	return 0;
}

ssize_t file_read_text(int dirfd, const char *path, char *text, size_t size, struct err *e)
{
	scoped_fd int fd = -1;
	int r = open_file(dirfd, path, O_RDONLY, &fd, e);
	if (r < 0)
		return r;
	ssize_t n = file_read_all(fd, text, size, e);
	if (n < 0)
		return err_ctx(e, (int)n, "%s", path);
	if ((size_t)n >= size)
		return err_set(e, -EFBIG, "%s: longer than %zu bytes", path, size - 1);
	if (n > 0 && text[n - 1] == '\n')
		n--;
	text[n] = '\0';
	return n;
}

int file_write_all(int fd, const void *p, size_t n, struct err *e)
{
	const char *at = p;
	while (n > 0) {
		ssize_t done = write(fd, at, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_sys(e, "write");
		at += done;
		n -= (size_t)done;
	}
	return 0;
}

ssize_t file_read_all(int fd, void *p, size_t n, struct err *e)
{
	char *at = p;
	size_t got = 0;
	while (got < n) {
		ssize_t done = read(fd, at + got, n - got);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_sys(e, "read");
		if (done == 0)
			break;
		got += (size_t)done;
	}
	return (ssize_t)got;
}

int file_put(int dirfd, const char *path, const char *text, struct err *e)
{
	scoped_fd int fd = -1;
	int r = open_file(dirfd, path, O_WRONLY, &fd, e);
	if (r < 0)
		return r;
	size_t n = strlen(text);
	ssize_t done = -1;
	do
		done = write(fd, text, n);
	while (done < 0 && errno == EINTR);
	if (done < 0)
		return err_sys(e, "write \"%s\" to %s", text, path);
	if ((size_t)done != n)
		return err_set(e, -EIO, "write \"%s\" to %s: only %zd bytes were taken", text, path, done);
	return 0;
}

int file_read_u64(int dirfd, const char *path, uint64_t *ret, struct err *e)
{
	char text[32];
	ssize_t n = file_read_text(dirfd, path, text, sizeof(text), e);
	if (n < 0)
		return (int)n;
	if (strcmp(text, "max") == 0) {
		*ret = UINT64_MAX;
		return 0;
	}
	int r = num_parse(text, 0, UINT64_MAX, ret);
	if (r < 0)
		return err_set(e, r, "%s: \"%s\" is not a number", path, text);
	return 0;
}

/* True for a name that stays in its directory. */
static bool is_plain_name(const char *name)
{
	return name[0] != '\0' && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int write_temporary(int dirfd, const char *name, mode_t mode, const void *p, size_t n, struct err *e)
{
	/* A leftover of a crash is in the way; it never was the file. */
	if (unlinkat(dirfd, name, 0) < 0 && errno != ENOENT)
		return err_sys(e, "remove %s", name);
	scoped_fd int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
	if (fd < 0)
		return err_sys(e, "make %s", name);
	if (fchmod(fd, mode) < 0)
		return err_sys(e, "chmod %s", name);
	int r = file_write_all(fd, p, n, e);
	if (r < 0)
		return err_ctx(e, r, "%s", name);
	if (fsync(fd) < 0)
		return err_sys(e, "fsync %s", name);
	return 0;
}

int file_replace(int dirfd, const char *name, mode_t mode, const void *p, size_t n, struct err *e)
{
	char temporary[NAME_MAX + 1];
	int length = snprintf(temporary, sizeof(temporary), ".%s.new", name);
	if (!is_plain_name(name) || length < 0 || (size_t)length >= sizeof(temporary))
		return err_set(e, -EINVAL, "\"%s\" is not a file name", name);
	int r = write_temporary(dirfd, temporary, mode, p, n, e);
	if (r == 0 && renameat(dirfd, temporary, dirfd, name) < 0)
		r = err_sys(e, "rename %s to %s", temporary, name);
	if (r < 0) {
		(void)unlinkat(dirfd, temporary, 0);
		return r;
	}
	/* The new name is durable only with its directory; a descriptor opened with O_PATH cannot be synced. */
	scoped_fd int dir = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || fsync(dir) < 0)
		return err_sys(e, "fsync the directory of %s", name);
	return 0;
}

/* One removal under way. */
struct removal {
	int top;          /* the directory to be removed; borrowed */
	dev_t dev;        /* its file system */
	unsigned n_moved; /* directories moved up into it because they lay too deep */
};

/* Opens a directory to be emptied; a mount point, or a link put in its place, is refused. */
static int open_directory(int dirfd, const char *name)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	struct open_how how = {.flags = (uint64_t)flags, .resolve = RESOLVE_STRICT | RESOLVE_NO_XDEV};
	int fd = -1;
	for (int i = 0; i < OPEN_TRIES; i++) {
		fd = (int)syscall(SYS_openat2, dirfd, name, &how, sizeof(how));
		if (fd < 0 && errno == ENOSYS)
			fd = openat(dirfd, name, flags);
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
	}
	return fd < 0 ? -errno : fd;
}

/* Moves a directory up into the top one, under a name that is free there. */
static int move_to_top(struct removal *rm, int dirfd, const char *name)
{
	for (;;) {
		char moved[32];
		(void)snprintf(moved, sizeof(moved), "moved-%u", rm->n_moved++);
		if (renameat2(dirfd, name, rm->top, moved, RENAME_NOREPLACE) == 0)
			return 0;
		if (errno != EEXIST)
			return -errno;
	}
}

/* Removes what can go at once. Returns 0 when it is gone, 1 for a directory with something in it, or a negative errno
 * (-EBUSY for a mount point). */
static int remove_simple(int dirfd, const char *name)
{
	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR)
		return -errno;
	if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	return errno == ENOTEMPTY || errno == EEXIST ? 1 : -errno;
}

static int empty_directory(struct removal *rm, int fd, unsigned depth, struct err *e);

/* Removes one entry of a directory, with what is below it. */
static int remove_entry(struct removal *rm, int dirfd, const char *name, unsigned depth, struct err *e)
{
	int r = remove_simple(dirfd, name);
	if (r <= 0)
		return r < 0 ? err_code(e, r, "%s", name) : 0;
	if (depth == REMOVE_DEPTH) {
		r = move_to_top(rm, dirfd, name);
		return r < 0 ? err_code(e, r, "move %s", name) : 0;
	}
	scoped_fd int fd = open_directory(dirfd, name);
	struct stat st = {0};
	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(e, "%s", name);
	if (st.st_dev != rm->dev)
		return err_set(e, -EXDEV, "%s: lies in another file system", name);
	r = empty_directory(rm, fd, depth + 1, e);
	if (r < 0)
		return err_ctx(e, r, "%s", name);
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return err_sys(e, "%s", name);
	return 0;
}

/* Removes everything in a directory. Goes on after an error and returns the first. */
static int empty_directory(struct removal *rm, int fd, unsigned depth, struct err *e)
{
	scoped_fd int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = own < 0 ? NULL : fdopendir(own);
	if (!dir)
		return err_sys(e, "list");
	(void)fd_steal(&own);
	int first = 0;
	struct dirent *entry = NULL;
	while ((entry = readdir(dir))) {
		if (!is_plain_name(entry->d_name))
			continue;
		int r = remove_entry(rm, fd, entry->d_name, depth, first < 0 ? NULL : e);
		first = first < 0 ? first : r;
	}
	(void)closedir(dir);
	return first;
}

/* What lies deeper than REMOVE_DEPTH is moved up and met again in the next round: so a tree of any depth goes with a
 * bounded number of descriptors and bounded stack, however a sandbox made it. */
int file_remove_tree(int dirfd, const char *name, struct err *e)
{
	if (!is_plain_name(name))
		return err_set(e, -EINVAL, "\"%s\" is not a file name", name);
	int r = remove_simple(dirfd, name);
	if (r <= 0)
		return r < 0 ? err_code(e, r, "remove %s", name) : 0;
	scoped_fd int top = open_directory(dirfd, name);
	struct stat st = {0};
	if (top < 0 || fstat(top, &st) < 0)
		return err_sys(e, "remove %s", name);
	struct removal rm = {.top = top, .dev = st.st_dev};
	unsigned before = 0;
	do {
		before = rm.n_moved;
		r = empty_directory(&rm, top, 0, e);
	} while (r == 0 && rm.n_moved != before);
	if (r < 0)
		return err_ctx(e, r, "remove %s", name);
	if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return err_sys(e, "remove %s", name);
	return 0;
}

/* Makes one directory unless it is there. The mode is set apart from mkdirat(), which applies the umask. */
static int make_directory(int dirfd, const char *name, mode_t mode)
{
	if (mkdirat(dirfd, name, mode) == 0)
		return fchmodat(dirfd, name, mode, 0) < 0 ? -errno : 0;
	return errno == EEXIST ? 0 : -errno;
}

int file_make_dirs(const char *path, mode_t mode, struct err *e)
{
	if (path[0] != '/')
		return err_set(e, -EINVAL, "make %s: not an absolute path", path);
	scoped_fd int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return err_sys(e, "open /");
	char name[NAME_MAX + 1];
	const char *rest = path;
	int r = next_component(&rest, name);
	while (r > 0) {
		bool is_last = rest[strspn(rest, "/")] == '\0';
		r = make_directory(at, name, is_last ? mode : 0755);
		if (r < 0)
			break;
		int next = openat(at, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (next < 0)
			return err_sys(e, "make %s", path);
		fd_close(&at);
		at = next;
		r = next_component(&rest, name);
	}
	return r < 0 ? err_code(e, r, "make %s", path) : 0;
}

/* Whether only root can change what stands in a directory, the first n bytes of path. */
static int check_owned(int fd, const char *path, int n, struct err *e)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_sys(e, "look at %.*s", n, path);
	if (st.st_uid != 0)
		return err_set(e, -EPERM, "%.*s must belong to root, not to user %u", n, path, st.st_uid);
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return err_set(e, -EPERM, "%.*s must not be writable by group or others", n, path);
	return 0;
}

int file_check_owned(int fd, const char *path, struct err *e)
{
	return check_owned(fd, path, (int)strlen(path), e);
}

/* Opens the next directory of a path, whose first n bytes lead to it. */
static int open_next(int dirfd, const char *name, const char *path, int n, struct err *e)
{
	struct stat st;
	int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	int r = err_sys(e, "open %.*s as a directory", n, path);
	if (r == -ENOTDIR && fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
		r = err_set(e, -ENOTDIR, "%.*s is a link: name the directory that it leads to", n, path);
	return r;
}

int file_open_owned(const char *path, int *ret_fd, struct err *e)
{
	char name[NAME_MAX + 1];
	const char *rest = path;
	scoped_fd int at = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return err_sys(e, "open /");
	int r = path[0] == '/' ? check_owned(at, "/", 1, e)
			       : err_set(e, -EINVAL, "open %s: not an absolute path", path);
	while (r == 0) {
		r = next_component(&rest, name);
		if (r <= 0) {
			r = r < 0 ? err_code(e, r, "open %s", path) : 1;
			break;
		}
		int n = (int)(rest - path);
		int next = open_next(at, name, path, n, e);
		if (next < 0)
			return next;
		fd_close(&at);
		at = next;
		r = check_owned(at, path, n, e);
	}
	if (r < 0)
		return r;
	*ret_fd = fd_steal(&at);
	return 0;
}

/* File systems that another machine or another program answers for. Numbers that linux/magic.h does not have are those
 * that statfs(2) lists. */
static const struct {
	unsigned magic;
	const char *name;
} foreign[] = {
	{NFS_SUPER_MAGIC, "NFS"},   {SMB_SUPER_MAGIC, "SMB"},     {CIFS_SUPER_MAGIC, "CIFS"},
	{SMB2_SUPER_MAGIC, "SMB"},  {V9FS_MAGIC, "9p"},           {FUSE_SUPER_MAGIC, "FUSE"},
	{AFS_SUPER_MAGIC, "AFS"},   {AFS_FS_MAGIC, "AFS"},        {CEPH_SUPER_MAGIC, "Ceph"},
	{CODA_SUPER_MAGIC, "Coda"}, {OCFS2_SUPER_MAGIC, "OCFS2"}, {0x01161970, "GFS2"},
	{0x0bd00bd0, "Lustre"},
};

int file_check_local(int fd, const char *path, struct err *e)
{
	struct statfs fs;
	if (fstatfs(fd, &fs) < 0)
		return err_sys(e, "look at the file system of %s", path);
	for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
		if ((unsigned)fs.f_type == foreign[i].magic)
			return err_set(e, -ENOTSUP, "%s must lie on a local file system, not on %s", path,
				       foreign[i].name);
	return 0;
}

/* True when the limit is as high as needed, or could be raised. */
static bool is_allowed(__rlimit_resource_t resource, rlim_t needed, rlim_t *ret_allowed)
{
	struct rlimit limit = {0};
	(void)getrlimit(resource, &limit); /* of oneself it cannot fail */
	*ret_allowed = limit.rlim_cur;
	if (limit.rlim_cur >= needed)
		return true;
	limit.rlim_cur = needed;
	if (limit.rlim_max < needed)
		limit.rlim_max = needed;
	return setrlimit(resource, &limit) == 0;
}

int file_need_descriptors(unsigned n, struct err *e)
{
	rlim_t allowed = 0;
	if (is_allowed(RLIMIT_NOFILE, n, &allowed))
		return 0;
	return err_set(e, -EMFILE, "%u open files are needed, and %llu are allowed: see ulimit -n", n,
		       (unsigned long long)allowed);
}

int file_need_memory(unsigned mib, struct err *e)
{
	rlim_t allowed = 0;
	if (is_allowed(RLIMIT_AS, (rlim_t)mib << 20, &allowed))
		return 0;
	return err_set(e, -ENOMEM, "%u MiB of address space are needed, and %llu are allowed: see ulimit -v",
		       mib, (unsigned long long)(allowed >> 20));
}

int file_path(int fd, char *path, size_t size, struct err *e)
{
	char link[32];
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, size);
	if (n < 0)
		return err_sys(e, "find the path of an open file");
	if ((size_t)n == size)
		return err_set(e, -ENAMETOOLONG, "the path of an open file has more than %zu bytes",
			       size - 1);
	path[n] = '\0';
	return 0;
}

int file_memfd(const char *name, const void *p, size_t n, int *ret_fd, struct err *e)
{
	scoped_fd int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return err_sys(e, "memfd %s", name);
	int r = file_write_all(fd, p, n, e);
	if (r < 0)
		return err_ctx(e, r, "memfd %s", name);
	if (lseek(fd, 0, SEEK_SET) < 0)
		return err_sys(e, "memfd %s", name);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
		return err_sys(e, "seal memfd %s", name);
	*ret_fd = fd_steal(&fd);
	return 0;
}

int file_open_in_root(int dirfd, const char *path, int flags, int *ret_fd, struct err *e)
{
	struct open_how how = {
		.flags = (unsigned)(flags | O_CLOEXEC),
		.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
	};
	int fd = -1;
	for (int i = 0; i < OPEN_TRIES && fd < 0; i++) {
		fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (fd < 0 && errno != EAGAIN)
			break;
	}
	if (fd < 0)
		return err_sys(e, "open %s in the root file system", path);
	*ret_fd = fd;
	return 0;
}
