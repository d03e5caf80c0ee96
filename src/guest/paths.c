#include "guest/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/scope.h"

#define WORK "/home/runner/work"

static int open_resolved(int dirfd, const char *path, int flags, uint64_t resolve, int *ret_fd, struct err *e)
{
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.resolve = resolve | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	/* Kernels before 5.6, and seccomp filters written for them, do not know the call. */
	if (fd < 0 && errno == ENOSYS)
		fd = openat(dirfd, path, flags | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "%s", path);
	*ret_fd = (int)fd;
	return 0;
}

int paths_open(int dirfd, const char *path, int flags, int *ret_fd, struct err *e)
{
	return open_resolved(dirfd, path, flags, 0, ret_fd, e);
}

int paths_open_root(int root, const char *path, int flags, int *ret_fd, struct err *e)
{
	return open_resolved(root, path, flags, RESOLVE_IN_ROOT, ret_fd, e);
}

/* Makes one directory; one that is there already is fine. */
static int make_one(const char *path, const struct user *u, struct err *e)
{
	if (mkdir(path, 0755) < 0)
		return errno == EEXIST ? 0 : err_sys(e, "%s", path);
	if (lchown(path, u->uid, u->gid) < 0)
		return err_sys(e, "give %s to user %u", path, u->uid);
	return 0;
}

int paths_make(const char *path, const struct user *u, struct err *e)
{
	char part[PATH_MAX];
	if (path[0] != '/')
		return err_set(e, -EINVAL, "%s: not an absolute path", path);
	if (snprintf(part, sizeof(part), "%s", path) >= (int)sizeof(part))
		return err_set(e, -ENAMETOOLONG, "path too long");
	for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		int r = make_one(part, u, e);
		if (r < 0)
			return r;
		*slash = '/';
	}
	return make_one(part, u, e);
}

static bool can_be_entered(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && access(path, X_OK) == 0;
}

const char *paths_default(const struct user *u)
{
	if (can_be_entered(WORK))
		return WORK;
	return can_be_entered(u->home) ? u->home : "/";
}

int paths_enter(const char *path, struct err *e)
{
	char now[PATH_MAX];
	scoped_fd int fd = -1;
	if (path[0] != '/')
		return err_set(e, -EINVAL, "%s: not an absolute path", path);
	int r = paths_open(AT_FDCWD, path, O_PATH | O_DIRECTORY, &fd, e);
	if (r < 0)
		return r;
	if (fchdir(fd) < 0)
		return err_sys(e, "%s", path);
	/* A directory outside the root would be an escape, and its name does not begin with "/". */
	if (!getcwd(now, sizeof(now)) || now[0] != '/')
		return err_set(e, -EXDEV, "%s: has no name in here", path);
	return 0;
}
