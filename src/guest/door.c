#include "guest/door.h"

#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/scope.h"

#define DOOR_SOCKET "/run/ermite/init.sock"

int door_knock(struct err *e)
{
	const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DOOR_SOCKET};
	char byte;
	ssize_t n = -1;
	if (access(DOOR_SOCKET, F_OK) < 0)
		return 0;
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return err_sys(e, "knock at %s", DOOR_SOCKET);
	do {
		n = read(fd, &byte, 1);
	} while (n < 0 && errno == EINTR);
	if (n != 1)
		return err_set(e, -ECONNRESET, "the host did not answer the knock");
	if (unshare(CLONE_NEWCGROUP) < 0)
		return err_sys(e, "make a cgroup namespace");
	return 1;
}
