#include "guest/door.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/scope.h"

#define DOOR_SOCKET "/run/ermite/init.sock"

void door_mounts_done(struct door_mounts *m)
{
	for (size_t i = 0; i < DOOR_MOUNTS_MAX; i++)
		fd_close(&m->fds[i]);
	m->n = 0;
}

/* Takes the descriptors out of a message. The kernel has not let more of them in than there is room for. */
static void take_mounts(struct msghdr *message, struct door_mounts *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		ret->n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(ret->fds, CMSG_DATA(c), ret->n * sizeof(int));
	}
}

/* Receives the answer, one byte and the mounts. */
static int receive_answer(int fd, struct door_mounts *ret, struct err *e)
{
	char byte;
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(DOOR_MOUNTS_MAX * sizeof(int))];
	} control;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_LEN(DOOR_MOUNTS_MAX * sizeof(int)),
	};
	ssize_t n = -1;
	do {
		n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n != 1)
		return err_set(e, -ECONNRESET, "the host did not answer the knock");
	take_mounts(&message, ret);
	if (message.msg_flags & MSG_CTRUNC || (ret->n > 0 && ret->n <= DOOR_LXCFS))
		return err_set(e, -EPROTO, "the host sent a number of mounts that is none of ours");
	return 0;
}

int door_knock(struct door_mounts *ret, int *ret_host, struct err *e)
{
	const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = DOOR_SOCKET};
	struct door_mounts mounts = DOOR_MOUNTS_INIT;
	if (access(DOOR_SOCKET, F_OK) < 0)
		return 0;
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		return err_sys(e, "knock at %s", DOOR_SOCKET);
	int r = receive_answer(fd, &mounts, e);
	if (r == 0 && unshare(CLONE_NEWCGROUP) < 0)
		r = err_sys(e, "make a cgroup namespace");
	if (r < 0) {
		door_mounts_done(&mounts);
		return r;
	}
	*ret = mounts;
	*ret_host = fd_steal(&fd);
	return 1;
}
