/* Needs root: a network namespace with a rule that logs. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "io/child.h"
#include "sys/nflog.h"

#define GROUP   7
#define WAIT_MS 5000

static void command(const char *path, const char *const *arguments)
{
	assert_int_equal(child_run(path, arguments, STDERR_FILENO, NULL), 0);
}

static int set_up(void **)
{
	static const char *const up[] = {"ip", "link", "set", "lo", "up", NULL};
	static const char *const rules[] = {"nft",
					    "table inet t { chain c { type filter hook output priority 0; "
					    "udp dport 9 log group 7 drop; }; }",
					    NULL};
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	command("/sbin/ip", up);
	command("/usr/sbin/nft", rules);
	return 0;
}

static void send_packet(void)
{
	static const char bytes[1000] = "ermite";
	const struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	scoped_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(sendto(fd, bytes, sizeof(bytes), 0, (const struct sockaddr *)&to, sizeof(to)) < 0);
	assert_int_equal(errno, EPERM);
}

/* The heads of a packet come, and no more of it than was asked for. */
static void test_packet(void **)
{
	union {
		struct nlmsghdr head;
		char bytes[4096];
	} message;
	int before = fds_open();
	int fd = -1;
	assert_int_equal(nflog_open(GROUP, &fd, NULL), 0);
	assert_int_equal(recv(fd, &message, sizeof(message), 0), -1);
	assert_int_equal(errno, EAGAIN);
	send_packet();
	struct pollfd p = {.fd = fd, .events = POLLIN};
	assert_int_equal(poll(&p, 1, WAIT_MS), 1);
	ssize_t n = recv(fd, &message, sizeof(message), 0);
	assert_in_range(n, NFLOG_COPY_BYTES, NFLOG_COPY_BYTES + 200);
	assert_int_equal(message.head.nlmsg_type, NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET);
	assert_non_null(memmem(message.bytes, (size_t)n, "ermite", 6));
	fd_close(&fd);
	assert_int_equal(fds_open(), before);
}

static void test_one_owner(void **)
{
	scoped_fd int fd = -1;
	int second = -1;
	struct err e = ERR_INIT;
	assert_int_equal(nflog_open(GROUP, &fd, NULL), 0);
	assert_int_equal(nflog_open(GROUP, &second, &e), -EPERM);
	assert_string_equal(e.msg, "log of packets, group 7: set up: Operation not permitted");
	assert_int_equal(second, -1);
}

int main(void)
{
	if (geteuid() != 0)
		return 77; /* namespaces and addresses of the test's own need root */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packet),
		cmocka_unit_test(test_one_owner),
	};
	return cmocka_run_group_tests(tests, set_up, NULL);
}
