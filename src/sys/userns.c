#include "sys/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "io/child.h"

/* The child makes the namespace as its owner, with the capabilities of root, says so, and stands in read(2) until we
 * close our end: its namespace must be there while it gets the map. An owner who may have no inotify instance is found
 * out here: no system can start without one, and few say what they lack. */
static int hold(uint32_t owner, int socket)
{
	char byte = 0;
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0 ||
	    syscall(SYS_setresuid, -1, owner, -1) < 0 || unshare(CLONE_NEWUSER) < 0 ||
	    inotify_init1(IN_CLOEXEC) < 0)
		return errno;
	if (write(socket, &byte, 1) != 1)
		return EPIPE;
	while (read(socket, &byte, 1) < 0 && errno == EINTR)
		;
	return 0;
}

static int write_map(pid_t pid, const char *which, const char *map, struct err *e)
{
	char path[48];
	(void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, which);
	return file_put(AT_FDCWD, path, map, e);
}

static int open_mapped(pid_t pid, const char *map, int *ret_fd, struct err *e)
{
	char path[48];
	int r = write_map(pid, "uid_map", map, e);
	if (r == 0)
		r = write_map(pid, "gid_map", map, e);
	if (r < 0)
		return r;
	(void)snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "open %s", path);
	*ret_fd = fd;
	return 0;
}

static int refused(int code, uint32_t owner, struct err *e)
{
	if (code == EMFILE)
		return err_set(e, -code,
			       "user %u of the host, on whom the sandbox's are counted, has no inotify "
			       "instance left: see the sysctl fs.inotify.max_user_instances",
			       owner);
	if (code == ENOSPC)
		return err_set(e, -code,
			       "no more user namespaces are allowed: see the sysctl "
			       "user.max_user_namespaces");
	return err_code(e, -code, "make a user namespace");
}

static int make(uint32_t owner, const char *map, int *ret_fd, struct err *e)
{
	int ends[2];
	char byte;
	int status = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_sys(e, "make a user namespace");
	scoped_fd int ours = ends[0];
	scoped_fd int theirs = ends[1];
	pid_t pid = fork();
	if (pid < 0) {
		int r = child_refused(e);
		return err_ctx(e, r, "make a user namespace");
	}
	if (pid == 0) {
		(void)close(ours);
		_exit(hold(owner, theirs));
	}
	fd_close(&theirs);
	int r = read(ours, &byte, 1) == 1 ? open_mapped(pid, map, ret_fd, e) : 1;
	fd_close(&ours);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (r <= 0)
		return r;
	return refused(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : EIO, owner, e);
}

int userns_make(uint32_t first, uint32_t count, int *ret_fd, struct err *e)
{
	char map[64];
	if (first == 0 || count == 0 || first + (count - 1) < first)
		return err_set(e, -EINVAL, "id map 0 %u %u", first, count);
	(void)snprintf(map, sizeof(map), "0 %u %u", first, count);
	return make(first, map, ret_fd, e);
}

int userns_make_owned(uint32_t owner, int *ret_fd, struct err *e)
{
	return make(owner, "0 0 4294967295", ret_fd, e);
}
