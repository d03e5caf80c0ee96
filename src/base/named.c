#include "base/named.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/scope.h"

enum { LINKS_MAX = 40, PROC_ROOT_INODE = 1 };

struct walk {
	int at;              /* the directory that was reached; owned */
	int flags;           /* of the last component */
	unsigned n_links;    /* that were followed */
	uid_t owner;         /* of one that is not to be trusted, or 0 */
	char rest[PATH_MAX]; /* what is still to be gone */
};

/* Takes the next component off w->rest into name. Returns the flags to open it with, or a negative errno. */
static int next(struct walk *w, char name[static NAME_MAX + 1])
{
	size_t from = strspn(w->rest, "/");
	size_t n = strcspn(w->rest + from, "/");
	size_t slashes = strspn(w->rest + from + n, "/");
	if (n > NAME_MAX)
		return -ENAMETOOLONG;
	memcpy(name, n ? w->rest + from : ".", n ? n : 1);
	name[n ? n : 1] = '\0';
	const char *rest = w->rest + from + n + slashes;
	bool is_last = rest[0] == '\0';
	memmove(w->rest, rest, strlen(rest) + 1);
	return is_last ? w->flags | (slashes ? O_DIRECTORY : 0) : O_PATH | O_DIRECTORY;
}

/* Puts the target of a link in front of what is still to be gone. */
static int take_target(struct walk *w, int link)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(link, "", target, sizeof(target));
	if (n <= 0)
		return n < 0 ? -errno : -ENOENT;
	size_t have = (size_t)n;
	size_t rest_n = strlen(w->rest);
	if (have + rest_n + 2 > sizeof(w->rest))
		return -ENAMETOOLONG;
	memmove(w->rest + have + (rest_n > 0), w->rest, rest_n + 1);
	memcpy(w->rest, target, have);
	if (rest_n > 0)
		w->rest[have] = '/';
	if (target[0] != '/')
		return 0;
	fd_close(&w->at);
	w->at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return w->at < 0 ? -errno : 0;
}

/* "self" and the other links right below /proc are the kernel's own, though in a user namespace they seem to belong to
 * nobody. */
static bool is_kernels(const struct walk *w, const struct statfs *fs)
{
	struct stat st;
	return fs->f_type == PROC_SUPER_MAGIC && fstat(w->at, &st) == 0 && st.st_ino == PROC_ROOT_INODE;
}

/* What could not be opened without following may be a link. Returns 0, *ret_fd then being -1 when its target is to be
 * gone now, a descriptor where the kernel had to follow it; or a negative errno, code if it is no link. */
static int follow(struct walk *w, const char *name, int flags, int code, int *ret_fd)
{
	struct stat st;
	struct statfs fs;
	scoped_fd int link = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (link < 0 || fstat(link, &st) < 0 || fstatfs(link, &fs) < 0)
		return -errno;
	if (!S_ISLNK(st.st_mode))
		return code;
	if (++w->n_links > LINKS_MAX)
		return -ELOOP;
	if (st.st_uid != 0 && st.st_uid != geteuid() && !is_kernels(w, &fs)) {
		if (w->owner != 0 && w->owner != st.st_uid)
			return -EPERM;
		w->owner = st.st_uid;
	}
	/* Those of /proc are no text: "pipe:[7]". */
	if (fs.f_type != PROC_SUPER_MAGIC)
		return take_target(w, link);
	*ret_fd = openat(w->at, name, flags | O_CLOEXEC);
	return *ret_fd < 0 ? -errno : 0;
}

/* Goes to the end of w->rest. Returns a descriptor or a negative errno. */
static int go(struct walk *w)
{
	for (;;) {
		char name[NAME_MAX + 1];
		int flags = next(w, name);
		bool is_last = w->rest[0] == '\0';
		if (flags < 0)
			return flags;
		int fd = openat(w->at, name, flags | O_NOFOLLOW | O_CLOEXEC);
		bool may_be_link = fd < 0 && (errno == ELOOP || errno == ENOTDIR) && !(flags & O_NOFOLLOW);
		int r = may_be_link ? follow(w, name, flags, -errno, &fd) : fd < 0 ? -errno : 0;
		if (r < 0)
			return r;
		if (fd < 0)
			continue;
		if (is_last)
			return fd;
		fd_close(&w->at);
		w->at = fd;
	}
}

int named_open(const char *path, int flags, int *ret_fd, struct err *e)
{
	struct stat st;
	size_t n = strlen(path);
	struct walk w = {.at = -1, .flags = flags};
	if (n == 0 || n >= sizeof(w.rest))
		return err_code(e, n == 0 ? -ENOENT : -ENAMETOOLONG, "its name");
	memcpy(w.rest, path, n + 1);
	w.at = open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	scoped_fd int fd = w.at < 0 ? -errno : go(&w);
	fd_close(&w.at);
	if (fd >= 0 && fstat(fd, &st) < 0)
		return err_sys(e, "look at it");
	if (w.owner != 0 && (fd == -EPERM || (fd >= 0 && st.st_uid != w.owner)))
		return err_set(e, -EPERM, "a link of user %u leads to what is not theirs", w.owner);
	if (fd < 0)
		return err_set(e, fd, "%s", err_text(fd));
	*ret_fd = fd_steal(&fd);
	return 0;
}
