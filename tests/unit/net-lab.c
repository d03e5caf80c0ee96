#include "net-lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "io/child.h"
#include "sys/netlink.h"

enum { COMMAND_SIZE = 2048 };

void lab_expect(int r, int wanted, const struct err *e)
{
	if (r != wanted)
		fail_msg("%d, not %d: %s", r, wanted, e->msg);
}

void lab_enter(void)
{
	if (unshare(CLONE_NEWNET | CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755") < 0)
		fail_msg("namespaces: %s", strerrordesc_np(errno));
	lab_run(-1, "ip link set lo up; sysctl -qw net.ipv4.ip_forward=0");
}

/* Calls child_run() in a namespace. */
static int run_in(int netns, const char *command, int output)
{
	const char *const arguments[] = {"sh", "-c", command, NULL};
	struct err e = ERR_INIT;
	scoped_fd int own = -1;
	lab_expect(netns_open(&own, &e), 0, &e);
	if (netns >= 0)
		lab_expect(netns_enter(netns, &e), 0, &e);
	int r = child_run("/bin/sh", arguments, output, &e);
	if (netns >= 0)
		lab_expect(netns_enter(own, &e), 0, &e);
	if (r < 0)
		fail_msg("%s", e.msg);
	return r;
}

static int read_in(int netns, struct buf *out, const char *command)
{
	char part[4096];
	scoped_fd int output = memfd_create("output", MFD_CLOEXEC);
	assert_true(output >= 0);
	int status = run_in(netns, command, output);
	off_t at = 0;
	for (ssize_t n; (n = pread(output, part, sizeof(part), at)) > 0; at += n)
		buf_add(out, part, (size_t)n);
	return status;
}

int lab_read(int netns, struct buf *out, const char *format, ...)
{
	char command[COMMAND_SIZE];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	assert_in_range(n, 0, sizeof(command) - 1);
	return read_in(netns, out, command);
}

void lab_run(int netns, const char *format, ...)
{
	scoped_buf struct buf out = BUF_INIT(1 << 16);
	char command[COMMAND_SIZE];
	va_list arguments;
	va_start(arguments, format);
	int n = vsnprintf(command, sizeof(command), format, arguments);
	va_end(arguments);
	assert_in_range(n, 0, sizeof(command) - 1);
	int status = read_in(netns, &out, command);
	if (status != 0)
		fail_msg("%s: %d %s", command, status, buf_text(&out));
}

bool lab_shows(int netns, const char *command, const char *text)
{
	scoped_buf struct buf out = BUF_INIT(1 << 20);
	(void)lab_read(netns, &out, "%s", command);
	return strstr(buf_text(&out), text) != NULL;
}

int lab_namespace(void)
{
	struct err e = ERR_INIT;
	int fresh = -1;
	scoped_fd int own = -1;
	lab_expect(netns_open(&own, &e), 0, &e);
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	lab_expect(netns_open(&fresh, &e), 0, &e);
	lab_expect(netns_enter(own, &e), 0, &e);
	lab_run(fresh, "ip link set lo up");
	return fresh;
}

int lab_way_out(void)
{
	int beyond = lab_namespace();
	lab_run(-1,
		"ip link add out0 type veth peer name in0 netns /proc/%d/fd/%d; "
		"ip addr add 5.5.5.1/24 dev out0; ip link set out0 up; ip route add default via 5.5.5.2",
		getpid(), beyond);
	lab_run(beyond, "ip addr add 5.5.5.2/24 dev in0; ip addr add 10.1.2.3/32 dev lo; "
			"ip addr add 10.1.2.4/32 dev lo; ip link set in0 up");
	return beyond;
}

static struct sockaddr_in socket_address(uint32_t address, uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
}

int lab_socket(int netns, int type, uint32_t address, uint16_t port)
{
	struct err e = ERR_INIT;
	struct sockaddr_in own = socket_address(address, port);
	scoped_fd int back = -1;
	lab_expect(netns_open(&back, &e), 0, &e);
	lab_expect(netns_enter(netns, &e), 0, &e);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, type == SOCK_RAW ? IPPROTO_RAW : 0);
	lab_expect(netns_enter(back, &e), 0, &e);
	int on = 1;
	const struct timeval patience = {.tv_sec = 5};
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0 ||
	    (type == SOCK_DGRAM && (bind(fd, (struct sockaddr *)&own, sizeof(own)) < 0 ||
				    setsockopt(fd, IPPROTO_IP, IP_RECVERR, &on, sizeof(on)) < 0)))
		fail_msg("socket: %s", strerrordesc_np(errno));
	return fd;
}

int lab_send(int fd, uint32_t address, uint16_t port, const char *text)
{
	struct sockaddr_in to = socket_address(address, port);
	ssize_t n = sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, sizeof(to));
	return n < 0 ? -errno : 0;
}

uint32_t lab_heard(int fd, int ms)
{
	char text[2048];
	struct sockaddr_in from = {0};
	socklen_t n = sizeof(from);
	struct pollfd readable = {.fd = fd, .events = POLLIN};
	if (poll(&readable, 1, ms) != 1 ||
	    recvfrom(fd, text, sizeof(text), MSG_DONTWAIT, (struct sockaddr *)&from, &n) < 0)
		return 0;
	return ntohl(from.sin_addr.s_addr);
}
