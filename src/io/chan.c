#include "io/chan.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/scope.h"

/* What goes over the socket in front of the data. Both ends are the same build on the same machine. */
struct head {
	uint32_t type;
	uint32_t id;
	uint64_t a, b;
	uint32_t n;
	uint32_t zero;
};

/* Room for CHAN_FDS_MAX descriptors, aligned as the kernel wants it. */
union control {
	struct cmsghdr align;
	char bytes[CMSG_SPACE(sizeof(int) * CHAN_FDS_MAX)];
};

int chan_pair(int ret[static 2], struct err *e)
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret) < 0)
		return err_sys(e, "make a channel");
	return 0;
}

int chan_send(int fd, const struct chan_message *m, struct err *e)
{
	if (m->n > CHAN_DATA_MAX || m->n_fds > CHAN_FDS_MAX)
		return err_set(e, -EMSGSIZE, "send a message: %u bytes and %u descriptors are too many", m->n,
			       m->n_fds);
	struct head head = {.type = m->type, .id = m->id, .a = m->a, .b = m->b, .n = m->n};
	struct chan_message *borrowed = (struct chan_message *)(uintptr_t)m;
	struct iovec parts[] = {{.iov_base = &head, .iov_len = sizeof(head)},
				{.iov_base = borrowed->data, .iov_len = m->n}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	union control control = {0};
	if (m->n_fds) {
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * m->n_fds);
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * m->n_fds);
		memcpy(CMSG_DATA(c), m->fds, sizeof(int) * m->n_fds);
	}
	ssize_t sent;
	do
		sent = sendmsg(fd, &message, MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
		return err_set(e, -EPIPE, "send a message: the other end is gone");
	if (sent < 0)
		return err_sys(e, "send a message");
	return 0;
}

/* Moves the descriptors that came with the message into ret. */
static void take_control(struct msghdr *message, struct chan_message *ret)
{
	ret->n_fds = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd = -1;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (ret->n_fds < CHAN_FDS_MAX)
				ret->fds[ret->n_fds++] = fd;
			else
				fd_close(&fd);
		}
	}
}

static ssize_t receive_retry(int fd, struct msghdr *message, size_t control_size)
{
	ssize_t n;
	do {
		message->msg_controllen = control_size;
		n = recvmsg(fd, message, MSG_CMSG_CLOEXEC);
		/* ECONNRESET is told once, when the other end closed with messages of ours unread; what it had
		 * sent before is still there to be received, then comes the end. */
	} while (n < 0 && (errno == EINTR || errno == ECONNRESET));
	return n;
}

int chan_receive(int fd, struct chan_message *ret, struct err *e)
{
	struct head head = {0};
	struct iovec parts[] = {{.iov_base = &head, .iov_len = sizeof(head)},
				{.iov_base = ret->data, .iov_len = CHAN_DATA_MAX}};
	union control control = {0};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = control.bytes};
	ssize_t n = receive_retry(fd, &message, sizeof(control.bytes));
	if (n < 0)
		return errno == EAGAIN ? -EAGAIN : err_sys(e, "receive a message");
	if (n == 0)
		return 0;
	take_control(&message, ret);
	if (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || (size_t)n < sizeof(head) ||
	    head.n != (size_t)n - sizeof(head) || head.zero) {
		chan_close_fds(ret);
		return err_set(e, -EPROTO, "receive a message: it has not the form of one");
	}
	ret->type = head.type;
	ret->id = head.id;
	ret->a = head.a;
	ret->b = head.b;
	ret->n = head.n;
	ret->data[head.n] = '\0';
	return 1;
}

void chan_close_fds(struct chan_message *m)
{
	for (uint32_t i = 0; i < m->n_fds; i++)
		fd_close(&m->fds[i]);
	m->n_fds = 0;
}

int chan_take_fd(struct chan_message *m, uint32_t i)
{
	return i < m->n_fds ? fd_steal(&m->fds[i]) : -1;
}
