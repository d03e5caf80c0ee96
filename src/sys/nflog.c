#include "sys/nflog.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <sys/socket.h>

#include "base/scope.h"

#define RECEIVE_BYTES 1048576 /* a burst of some thousand packets */
#define FLUSH_TICKS   10      /* hundredths of a second that packets are gathered for */
#define FLUSH_PACKETS 32
#define REQUEST_BYTES 256

static void scope_socket(struct mnl_socket **s)
{
	if (*s)
		(void)mnl_socket_close(*s);
}

/* Begins a request about the group, to be acknowledged. */
static struct nlmsghdr *begin(char *bytes, uint16_t group)
{
	struct nlmsghdr *head = mnl_nlmsg_put_header(bytes);
	head->nlmsg_type = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG;
	head->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	struct nfgenmsg *body = mnl_nlmsg_put_extra_header(head, sizeof(*body));
	body->nfgen_family = AF_UNSPEC;
	body->version = NFNETLINK_V0;
	body->res_id = htons(group);
	return head;
}

/* Sends a request and reads its acknowledgement. Packets of a group that is bound already may stand before it. */
static int request(const struct mnl_socket *s, const struct nlmsghdr *head, struct err *e)
{
	char answer[8192];
	unsigned port = mnl_socket_get_portid(s);
	if (mnl_socket_sendto(s, head, head->nlmsg_len) < 0)
		return err_sys(e, "send");
	int r = 1;
	while (r > 0) {
		ssize_t n = mnl_socket_recvfrom(s, answer, sizeof(answer));
		if (n < 0 && (errno == EINTR || errno == ENOBUFS))
			continue;
		if (n < 0)
			return err_sys(e, "receive");
		/* A packet's message is no answer: its sequence number is not ours. */
		const struct nlmsghdr *first = (const void *)answer;
		if (first->nlmsg_type == NLMSG_ERROR)
			r = mnl_cb_run(answer, (size_t)n, 0, port, NULL, NULL);
	}
	return r < 0 ? err_sys(e, "set up") : 0;
}

static int set_up(const struct mnl_socket *s, uint16_t group, struct err *e)
{
	char bytes[REQUEST_BYTES];
	const struct nfulnl_msg_config_cmd command = {.command = NFULNL_CFG_CMD_BIND};
	const struct nfulnl_msg_config_mode mode = {.copy_range = htonl(NFLOG_COPY_BYTES),
						    .copy_mode = NFULNL_COPY_PACKET};
	struct nlmsghdr *head = begin(bytes, group);
	mnl_attr_put(head, NFULA_CFG_CMD, sizeof(command), &command);
	int r = request(s, head, e);
	if (r < 0)
		return r;
	head = begin(bytes, group);
	mnl_attr_put(head, NFULA_CFG_MODE, sizeof(mode), &mode);
	mnl_attr_put_u32(head, NFULA_CFG_TIMEOUT, htonl(FLUSH_TICKS));
	mnl_attr_put_u32(head, NFULA_CFG_QTHRESH, htonl(FLUSH_PACKETS));
	return request(s, head, e);
}

int nflog_open(uint16_t group, int *ret_fd, struct err *e)
{
	__attribute__((cleanup(scope_socket))) struct mnl_socket *s =
		mnl_socket_open2(NETLINK_NETFILTER, SOCK_CLOEXEC);
	if (!s || mnl_socket_bind(s, 0, MNL_SOCKET_AUTOPID) < 0)
		return err_sys(e, "open the log of packets");
	/* SO_RCVBUFFORCE goes past the host's limit, for which the keeper has the right. */
	const int bytes = RECEIVE_BYTES;
	if (setsockopt(mnl_socket_get_fd(s), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) < 0)
		return err_sys(e, "size the log of packets");
	int r = set_up(s, group, e);
	if (r < 0)
		return err_ctx(e, r, "log of packets, group %u", group);
	/* libmnl keeps the descriptor in memory of its own: what leaves is a second one. */
	scoped_fd int fd = fcntl(mnl_socket_get_fd(s), F_DUPFD_CLOEXEC, 3);
	if (fd < 0 || fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK) < 0)
		return err_sys(e, "open the log of packets");
	*ret_fd = fd_steal(&fd);
	return 0;
}
