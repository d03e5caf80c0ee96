#include "sys/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"

/* The child only has to be there while its namespace gets the map; it stands in read(2) until we close our end. */
static pid_t start_holder(int ret_pipe[2])
{
	if (pipe2(ret_pipe, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid != 0)
		return pid;
	char byte;
	(void)close(ret_pipe[1]);
	while (read(ret_pipe[0], &byte, 1) < 0 && errno == EINTR)
		;
	_exit(0);
}

static int write_map(pid_t pid, const char *which, uint32_t first, uint32_t count, struct err *e)
{
	char path[48];
	char map[64];
	(void)snprintf(path, sizeof(path), "/proc/%d/%s", pid, which);
	(void)snprintf(map, sizeof(map), "0 %u %u", first, count);
	return file_put(AT_FDCWD, path, map, e);
}

int userns_make(uint32_t first, uint32_t count, int *ret_fd, struct err *e)
{
	if (first == 0 || count == 0 || first + (count - 1) < first)
		return err_set(e, -EINVAL, "id map 0 %u %u", first, count);
	int ends[2] = {-1, -1};
	pid_t pid = start_holder(ends);
	[[maybe_unused]] scoped_fd int read_end = ends[0];
	scoped_fd int write_end = ends[1];
	if (pid < 0)
		return err_sys(e, "make a user namespace");
	int r = write_map(pid, "uid_map", first, count, e);
	if (r == 0)
		r = write_map(pid, "gid_map", first, count, e);
	scoped_fd int ns = -1;
	if (r == 0) {
		char path[48];
		(void)snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
		ns = open(path, O_RDONLY | O_CLOEXEC);
		if (ns < 0)
			r = err_sys(e, "open %s", path);
	}
	fd_close(&write_end);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (r == 0)
		*ret_fd = fd_steal(&ns);
	return r;
}
