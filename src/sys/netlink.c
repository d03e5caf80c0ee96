#include "sys/netlink.h"

#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/scope.h"
#include "sys/process.h"

enum {
	RECEIVE_BYTES = 65536,
	LISTEN_BUFFER_BYTES = 65536,
	LIST_BYTES_MAX = 64 << 20,
	LIST_TRIES = 100,
};

struct netlink {
	struct mnl_socket *socket;
	uint32_t sequence;
	char received[RECEIVE_BYTES];
};

int netns_open(int *ret_fd, struct err *e)
{
	int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, "open the network namespace");
	*ret_fd = fd;
	return 0;
}

int netns_enter(int netns, struct err *e)
{
	return setns(netns, CLONE_NEWNET) < 0 ? err_sys(e, "enter a network namespace") : 0;
}

static void come_back(int own)
{
	if (setns(own, CLONE_NEWNET) < 0)
		process_lost("network");
}

int netns_make(int *ret_fd, struct err *e)
{
	scoped_fd int own = -1;
	scoped_fd int fresh = -1;
	int r = netns_open(&own, e);
	if (r < 0)
		return r;
	if (unshare(CLONE_NEWNET) < 0)
		return err_sys(e, "make a network namespace");
	r = netns_open(&fresh, e);
	come_back(own);
	if (r < 0)
		return r;
	*ret_fd = fd_steal(&fresh);
	return 0;
}

int netns_with(int netns, netns_fn *fn, void *data, struct err *e)
{
	scoped_fd int own = -1;
	if (netns < 0)
		return fn(data, e);
	int r = netns_open(&own, e);
	if (r == 0)
		r = netns_enter(netns, e);
	if (r < 0)
		return r;
	r = fn(data, e);
	come_back(own);
	return r;
}

struct opening {
	int protocol;
	struct netlink *opened;
};

static int open_socket(void *data, struct err *e)
{
	struct opening *opening = data;
	struct netlink *n = calloc(1, sizeof(*n));
	if (!n)
		return err_set(e, -ENOMEM, "netlink: out of memory");
	n->socket = mnl_socket_open2(opening->protocol, SOCK_CLOEXEC);
	if (!n->socket || mnl_socket_bind(n->socket, 0, MNL_SOCKET_AUTOPID) < 0) {
		int r = err_sys(e, "open a netlink socket");
		netlink_close(n);
		return r;
	}
	opening->opened = n;
	return 0;
}

int netlink_open(int protocol, int netns, struct netlink **ret, struct err *e)
{
	struct opening opening = {.protocol = protocol};
	int r = netns_with(netns, open_socket, &opening, e);
	if (r < 0) {
		netlink_close(opening.opened);
		return r;
	}
	*ret = opening.opened;
	return 0;
}

void netlink_close(struct netlink *n)
{
	if (n && n->socket)
		(void)mnl_socket_close(n->socket);
	free(n);
}

uint32_t netlink_sequence(struct netlink *n)
{
	return ++n->sequence;
}

struct answer {
	netlink_fn *fn;
	void *data;
	int error;
};

static int on_message(const struct nlmsghdr *message, void *data)
{
	struct answer *a = data;
	int r = a->fn ? a->fn(a->data, message) : 0;
	if (r < 0) {
		a->error = r;
		errno = -r;
		return MNL_CB_ERROR;
	}
	return MNL_CB_OK;
}

/* Sends a request and gives the messages of its answer to fn. Returns -EINTR when a list changed under the reading. */
static int ask(struct netlink *n, struct nlmsghdr *request, netlink_fn *fn, void *data, struct err *e)
{
	struct answer a = {.fn = fn, .data = data};
	request->nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
	request->nlmsg_seq = netlink_sequence(n);
	if (mnl_socket_sendto(n->socket, request, request->nlmsg_len) < 0)
		return err_sys(e, "send to the kernel");
	unsigned port = mnl_socket_get_portid(n->socket);
	for (int more = 1; more > 0;) {
		ssize_t got = mnl_socket_recvfrom(n->socket, n->received, sizeof(n->received));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_sys(e, "hear from the kernel");
		more = mnl_cb_run(n->received, (size_t)got, request->nlmsg_seq, port, on_message, &a);
		/* A message of an older request that was given up. */
		if (more < 0 && errno == EPROTO)
			more = 1;
		if (more < 0)
			return err_sys(e, "the kernel's answer");
	}
	return 0;
}

static int gather(void *data, const struct nlmsghdr *message)
{
	static const char padding[NLMSG_ALIGNTO];
	struct buf *list = data;
	buf_add(list, message, message->nlmsg_len);
	buf_add(list, padding, NLMSG_ALIGN(message->nlmsg_len) - message->nlmsg_len);
	return buf_check(list);
}

/* A list is read to its end before fn sees any of it: one that changed meanwhile has things twice, or not at all,
 * and is read again. */
static int ask_for_list(struct netlink *n, struct nlmsghdr *request, netlink_fn *fn, void *data,
			struct err *e)
{
	scoped_buf struct buf list = BUF_INIT(LIST_BYTES_MAX);
	int r = -EINTR;
	for (int tries = 0; r == -EINTR && tries < LIST_TRIES; tries++) {
		buf_clear(&list);
		r = ask(n, request, gather, &list, e);
	}
	int left = (int)list.n;
	for (const struct nlmsghdr *m = (const void *)buf_text(&list); r == 0 && mnl_nlmsg_ok(m, left);
	     m = mnl_nlmsg_next(m, &left)) {
		r = fn(data, m);
		if (r < 0)
			r = err_code(e, r, "the kernel's answer");
	}
	return r;
}

int netlink_ask(struct netlink *n, struct nlmsghdr *request, netlink_fn *fn, void *data, struct err *e)
{
	bool list = (request->nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
	return list && fn ? ask_for_list(n, request, fn, data, e) : ask(n, request, fn, data, e);
}

int netlink_send_batch(struct netlink *n, const void *batch, size_t bytes, uint32_t last, struct err *e)
{
	const struct nlmsghdr *begin = batch;
	int first = 0;
	bool over = false;
	if (mnl_socket_sendto(n->socket, batch, bytes) < 0)
		return err_sys(e, "send to the kernel");
	while (!over) {
		ssize_t got = mnl_socket_recvfrom(n->socket, n->received, sizeof(n->received));
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return err_sys(e, "hear from the kernel");
		int left = (int)got;
		for (const struct nlmsghdr *m = (const void *)n->received; mnl_nlmsg_ok(m, left);
		     m = mnl_nlmsg_next(m, &left)) {
			if (m->nlmsg_type != NLMSG_ERROR)
				continue;
			const struct nlmsgerr *error = mnl_nlmsg_get_payload(m);
			if (error->error < 0 && first == 0)
				first = error->error;
			/* An error of the first message, which asks for no answer, is one of the whole batch. */
			over = over || m->nlmsg_seq == last || m->nlmsg_seq == begin->nlmsg_seq;
		}
	}
	return first < 0 ? err_code(e, first, "the kernel's answer") : 0;
}

int netlink_listen(int protocol, uint32_t groups, int *ret_fd, struct err *e)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = groups};
	int bytes = LISTEN_BUFFER_BYTES;
	scoped_fd int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)) < 0)
		return err_sys(e, "listen to netlink");
	*ret_fd = fd_steal(&fd);
	return 0;
}

void netlink_drain(int fd)
{
	char bytes[8192];
	while (recv(fd, bytes, sizeof(bytes), MSG_TRUNC) > 0 || errno == ENOBUFS || errno == EINTR)
		;
}
