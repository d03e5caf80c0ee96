#include "isolation/door.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/scope.h"
#include "sys/cgroup.h"

enum { END_MS = 5000, FDS_MAX = 8, WORDS_MAX = 200 };

int door_listen(const char *path, uid_t uid, int backlog, int *ret_fd, struct err *e)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	(void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	scoped_fd int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
	    chmod(path, 0600) < 0 || lchown(path, uid, uid) < 0 || listen(fd, backlog) < 0)
		return err_sys(e, "listen at %s", path);
	*ret_fd = fd_steal(&fd);
	return 0;
}

int door_take(int listen_fd, uid_t uid, struct door_visitor *ret, struct err *e)
{
	scoped_fd int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "open the door");
	struct ucred peer;
	socklen_t n = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
		return err_sys(e, "look who knocks");
	if (peer.uid != uid || peer.pid <= 0)
		return err_set(e, -EPERM, "host id %u knocked at the door of %u", peer.uid, uid);
	/* It is blocked until we answer and its parent has not reaped it: the number is still its own. */
	ret->pidfd = pidfd_open(peer.pid, 0);
	if (ret->pidfd < 0)
		return err_sys(e, "hold the container's init");
	ret->pid = peer.pid;
	ret->fd = fd_steal(&fd);
	return 0;
}

static int open_netns(pid_t init, int *ret, struct err *e)
{
	char path[32];
	(void)snprintf(path, sizeof(path), "/proc/%d/ns/net", init);
	*ret = open(path, O_RDONLY | O_CLOEXEC);
	return *ret < 0 ? err_sys(e, "open %s", path) : 0;
}

int door_bind(const struct sandbox *s, const struct door_visitor *v, int *ret_netns, struct err *e)
{
	struct cgroup_host host;
	scoped_fd int netns = -1;
	int r = record_add_process(s->record, "init", v->pid, e);
	if (r == 0)
		r = cgroup_host_read(&host, e);
	if (r == 0)
		r = cgroup_enter(&host, s->id, v->pid, e);
	if (r == 0)
		r = open_netns(v->pid, &netns, e);
	/* It still waits, so the number was its own until now. */
	if (r == 0 && pidfd_send_signal(v->pidfd, 0, NULL, 0) < 0)
		r = err_sys(e, "the first program inside");
	if (r == 0)
		*ret_netns = fd_steal(&netns);
	return r;
}

int door_admit(const struct door_visitor *v, const int *fds, size_t n, struct err *e)
{
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(sizeof(int) * FDS_MAX)];
	} control = {0};
	char byte = 'g';
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
	if (n > FDS_MAX)
		return err_set(e, -E2BIG, "%zu descriptors at the door", n);
	if (n > 0) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
		control.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int) * n),
						.cmsg_level = SOL_SOCKET,
						.cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * n);
	}
	if (sendmsg(v->fd, &message, MSG_NOSIGNAL) != 1)
		return err_sys(e, "let the first program inside go on");
	return 0;
}

void door_last_words(const struct door_visitor *v, struct buf *reason)
{
	char text[WORDS_MAX];
	ssize_t n = v->fd < 0 ? -1 : recv(v->fd, text, sizeof(text), MSG_DONTWAIT);
	if (n > 0)
		buf_plain(reason, text, (size_t)n);
}

void door_end(struct door_visitor *v)
{
	if (v->pidfd >= 0) {
		(void)pidfd_send_signal(v->pidfd, SIGKILL, NULL, 0);
		/* Readable only when everything in its pid namespace is gone. */
		(void)poll(&(struct pollfd){.fd = v->pidfd, .events = POLLIN}, 1, END_MS);
	}
	fd_close(&v->pidfd);
	fd_close(&v->fd);
}
