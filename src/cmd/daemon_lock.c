#include "cmd/daemon_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"

enum { COMMAND_BYTES = 256, LOCK_TRIES = 8 };

/* Cuts path into a directory and a name in it, which points into path. */
static int split(const char *path, char dir[static PATH_MAX], const char **ret_name, struct err *e)
{
	const char *slash = strrchr(path, '/');
	size_t n = slash > path ? (size_t)(slash - path) : 1;
	if (path[0] != '/' || slash[1] == '\0' || n >= PATH_MAX || strlen(slash + 1) > NAME_MAX)
		return err_set(e, -EINVAL, "an absolute path that ends in a name is accepted");
	memcpy(dir, path, n);
	dir[n] = '\0';
	*ret_name = slash + 1;
	return 0;
}

/* Whoever may open the file, even only for reading, could hold a lock on it for ever. */
static int check_file(int fd, struct err *e)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return err_sys(e, "look at it");
	if (!S_ISREG(st.st_mode))
		return err_set(e, -EPERM, "it is not a regular file");
	if (st.st_uid != 0)
		return err_set(e, -EPERM, "it must belong to root, not to user %u", st.st_uid);
	if (st.st_mode & (S_IRWXG | S_IRWXO))
		return err_set(e, -EPERM, "only root may have access to it (mode 600)");
	if (st.st_nlink != 1)
		return err_set(e, -EPERM, "it has more than one name");
	return 0;
}

static int open_file(const char *path, int *ret_fd, struct err *e)
{
	char dir[PATH_MAX];
	const char *name = NULL;
	scoped_fd int at = -1;
	int r = split(path, dir, &name, e);
	if (r == 0)
		r = file_open_owned(dir, &at, e);
	if (r == 0)
		r = file_check_local(at, dir, e);
	if (r < 0)
		return r;
	scoped_fd int fd =
		openat(at, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
	if (fd < 0 && errno == ELOOP)
		return err_set(e, -ELOOP, "it is a link");
	if (fd < 0)
		return err_sys(e, "open it");
	r = check_file(fd, e);
	if (r == 0)
		*ret_fd = fd_steal(&fd);
	return r;
}

/* The command of a process, its words with a blank between them; "" when it is gone. */
static void command_of(pid_t pid, char text[static COMMAND_BYTES])
{
	char path[32];
	(void)snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
	scoped_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : file_read_all(fd, text, COMMAND_BYTES - 1, NULL);
	n = n < 0 ? 0 : n;
	while (n > 0 && text[n - 1] == '\0')
		n--;
	for (ssize_t i = 0; i < n; i++)
		text[i] = text[i] == '\0' ? ' ' : text[i];
	text[n] = '\0';
}

/* Says who holds the lock. Returns -EBUSY, or 0 when nobody does any more. */
static int tell_holder(int fd, struct err *e)
{
	char command[COMMAND_BYTES];
	struct flock held = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	if (fcntl(fd, F_GETLK, &held) < 0)
		return err_sys(e, "ask who holds it");
	if (held.l_type == F_UNLCK)
		return 0;
	if (held.l_pid <= 0)
		return err_set(e, -EBUSY, "it is held by a process that cannot be seen from here");
	command_of(held.l_pid, command);
	return err_set(e, -EBUSY, "a daemon runs on this host: process %d, %s", (int)held.l_pid,
		       command[0] ? command : "which is just ending");
}

static int take(int fd, struct err *e)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		const struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		if (fcntl(fd, F_SETLK, &all) == 0)
			return 0;
		if (errno != EAGAIN && errno != EACCES && errno != EINTR)
			return err_sys(e, "lock it");
		int r = tell_holder(fd, e);
		if (r < 0)
			return r;
	}
	return err_set(e, -EBUSY, "it is taken again and again");
}

/* A file that cannot be written, on a full disk say, is locked all the same. */
static void write_holder(int fd)
{
	char command[COMMAND_BYTES];
	command_of(getpid(), command);
	if (ftruncate(fd, 0) == 0)
		(void)dprintf(fd, "%d %s\n", getpid(), command);
}

int daemon_lock_take(const char *path, int *ret_fd, struct err *e)
{
	scoped_fd int fd = -1;
	int r = open_file(path, &fd, e);
	if (r == 0)
		r = take(fd, e);
	if (r < 0)
		return err_ctx(e, r, "lock file %s", path);
	write_holder(fd);
	*ret_fd = fd_steal(&fd);
	return 0;
}

void daemon_lock_drop(int *fd)
{
	if (*fd >= 0)
		(void)!ftruncate(*fd, 0);
	fd_close(fd);
}
