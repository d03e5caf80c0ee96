/* Needs root. Links, addresses, neighbours, routes and rules, and the netlink sockets under them; what was done is read
 * back with ip(8). */
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "sys/link.h"
#include "sys/netlink.h"

static const uint8_t near_mac[LINK_MAC_BYTES] = {2, 0, 0, 0, 0, 1};
static const uint8_t far_mac[LINK_MAC_BYTES] = {2, 0, 0, 0, 0, 2};
static const struct link_end near_end = {.name = "near", .mac = near_mac};
static const struct link_end far_end = {.name = "far", .mac = far_mac};

/* The caller's namespace, and another one. */
static struct netlink *here;
static struct netlink *there;
static int other = -1;

static int setup(void **)
{
	struct err e = ERR_INIT;
	lab_enter();
	other = lab_namespace();
	lab_expect(netlink_open(NETLINK_ROUTE, -1, &here, &e), 0, &e);
	lab_expect(netlink_open(NETLINK_ROUTE, other, &there, &e), 0, &e);
	return 0;
}

static int teardown(void **)
{
	netlink_close(here);
	netlink_close(there);
	fd_close(&other);
	return 0;
}

static void assert_shows(int netns, const char *command, const char *text)
{
	scoped_buf struct buf out = BUF_INIT(1 << 20);
	(void)lab_read(netns, &out, "%s", command);
	if (!strstr(buf_text(&out), text))
		fail_msg("%s shows no \"%s\" but %s", command, text, buf_text(&out));
}

static uint32_t add_pair(void)
{
	struct err e = ERR_INIT;
	uint32_t index = 0;
	lab_expect(link_add_pair(here, &near_end, &far_end, other, 1400, &e), 0, &e);
	lab_expect(link_index(here, "near", &index, &e), 0, &e);
	return index;
}

static void test_sockets(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct netlink *n = NULL;
	struct stat own;
	struct stat after;
	assert_int_equal(stat("/proc/self/ns/net", &own), 0);
	lab_expect(netlink_open(NETLINK_ROUTE, other, &n, &e), 0, &e);
	uint32_t first = netlink_sequence(n);
	assert_int_not_equal(netlink_sequence(n), first);
	netlink_close(n);
	netlink_close(NULL);
	/* What is no namespace is an error, and the caller stays where he is. */
	scoped_fd int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	n = NULL;
	assert_int_equal(netlink_open(NETLINK_ROUTE, file, &n, &e), -EINVAL);
	assert_int_equal(netlink_open(63, other, &n, &e), -EPROTONOSUPPORT);
	assert_null(n);
	assert_int_equal(stat("/proc/self/ns/net", &after), 0);
	assert_int_equal(own.st_ino, after.st_ino);
	fd_close(&file);
	assert_int_equal(fds_open(), before);
}

static int count_name(void *data, const char *name)
{
	*(int *)data += strcmp(name, "near") == 0 ? 1 : 100;
	return 0;
}

static int give_up(void *, const char *)
{
	return -ECANCELED;
}

static void test_pair(void **)
{
	struct err e = ERR_INIT;
	uint32_t index = add_pair();
	uint32_t mtu = 0;
	int names = 0;
	assert_shows(-1, "ip -d link show near", "mtu 1400");
	assert_shows(-1, "ip -d link show near", "link/ether 02:00:00:00:00:01");
	assert_shows(-1, "ip -d link show near", "state DOWN");
	assert_shows(other, "ip -d link show far", "mtu 1400");
	assert_shows(other, "ip -d link show far", "link/ether 02:00:00:00:00:02");
	assert_shows(other, "ip -d link show far", "state DOWN");
	assert_int_equal(link_add_pair(here, &near_end, &far_end, other, 1400, &e), -EEXIST);
	assert_non_null(strstr(e.msg, "near"));
	lab_expect(link_read(here, "near", &mtu, NULL, NULL, &e), 0, &e);
	assert_int_equal(mtu, 1400);
	lab_expect(link_each(here, count_name, &names, &e), 0, &e);
	assert_int_equal(names, 101);
	/* A callback's error ends it, and the socket goes on with the next request. */
	assert_int_equal(link_each(here, give_up, NULL, &e), -ECANCELED);
	uint32_t again = 0;
	lab_expect(link_index(here, "near", &again, &e), 0, &e);
	assert_int_equal(index, again);
	assert_int_equal(link_index(here, "none", &again, &e), -ENODEV);
	assert_non_null(strstr(e.msg, "link none: "));
	assert_int_equal(again, index);
	assert_int_equal(link_read(here, "none", &mtu, NULL, NULL, &e), -ENODEV);
	assert_int_equal(link_up(here, "none", 0, &e), -ENODEV);
	/* Either end takes the other along; removing what is not there is fine. */
	lab_expect(link_delete(there, "far", &e), 0, &e);
	assert_int_equal(link_index(here, "near", &again, &e), -ENODEV);
	lab_expect(link_delete(there, "far", &e), 0, &e);
}

static void test_up_and_bytes(void **)
{
	struct err e = ERR_INIT;
	uint64_t in = 1;
	uint64_t out = 1;
	uint32_t index = add_pair();
	lab_run(-1, "sysctl -qw net.ipv6.conf.near.disable_ipv6=1");
	lab_run(other, "sysctl -qw net.ipv6.conf.far.disable_ipv6=1");
	lab_expect(link_up(here, "near", 1300, &e), 0, &e);
	assert_shows(-1, "ip link show near", "mtu 1300");
	lab_expect(link_up(here, "near", 0, &e), 0, &e);
	lab_expect(link_up(there, "far", 0, &e), 0, &e);
	assert_shows(-1, "ip link show near", "mtu 1300");
	assert_shows(-1, "ip link show near", "state UP");
	assert_shows(other, "ip link show far", "mtu 1400");
	lab_expect(link_read(here, "near", NULL, &in, &out, &e), 0, &e);
	assert_int_equal(in, 0);
	assert_int_equal(out, 0);
	/* A known neighbour is not asked for: the first packet goes out at once. */
	lab_expect(address_add(here, index, 0x05060701, 30, &e), 0, &e);
	lab_expect(neighbour_add(here, index, 0x05060702, far_mac, &e), 0, &e);
	scoped_fd int own = -1;
	lab_expect(netns_open(&own, &e), 0, &e);
	scoped_fd int sender = lab_socket(own, SOCK_DGRAM, 0, 0);
	assert_int_equal(lab_send(sender, 0x05060702, 9, "0123456789"), 0);
	lab_expect(link_read(there, "far", NULL, &in, &out, &e), 0, &e);
	assert_int_equal(in, 14 + 20 + 8 + 10);
	assert_int_equal(out, 0);
}

static void test_addresses(void **)
{
	struct err e = ERR_INIT;
	uint32_t list[4] = {0};
	uint32_t index = add_pair();
	lab_expect(address_list(here, list, 4, &e), 0, &e);
	for (int i = 0; i < 2; i++)
		lab_expect(address_add(here, index, 0x0ac80001, 30, &e), 0, &e);
	assert_shows(-1, "ip -4 addr show near", "inet 10.200.0.1/30 scope global near");
	lab_expect(address_list(here, list, 4, &e), 3, &e);
	assert_int_equal(list[0], 0x0ac80001);
	assert_int_equal(list[1], 0x0ac80000);
	assert_int_equal(list[2], 0x0ac80003);
	/* Of a point-to-point address it is the own end; 127/8 does not count; more than fit are counted. */
	lab_run(-1, "ip addr del 10.200.0.1/30 dev near; ip addr add 9.9.9.1 peer 9.9.9.2 dev near;"
		    "ip addr add 127.0.0.9/8 dev lo; ip addr add 9.9.9.7/31 dev near");
	list[1] = 0;
	lab_expect(address_list(here, list, 1, &e), 2, &e);
	assert_int_equal(list[1], 0);
	lab_expect(address_list(here, list, 4, &e), 2, &e);
	assert_int_equal(list[0], 0x09090901);
	assert_int_equal(list[1], 0x09090907);
	assert_int_equal(address_add(here, 9999, 0x0ac80001, 30, &e), -ENODEV);
}

static void test_neighbours(void **)
{
	struct err e = ERR_INIT;
	uint32_t index = add_pair();
	lab_expect(link_up(here, "near", 0, &e), 0, &e);
	lab_run(-1, "ip neigh add 10.9.9.9 lladdr 02:00:00:00:00:07 dev near nud stale");
	for (int i = 0; i < 2; i++)
		lab_expect(neighbour_add(here, index, 0x0a090909, far_mac, &e), 0, &e);
	assert_shows(-1, "ip neigh show dev near", "10.9.9.9 lladdr 02:00:00:00:00:02 PERMANENT");
}

static void test_routes(void **)
{
	struct err e = ERR_INIT;
	uint32_t index = add_pair();
	uint32_t mtu = 7;
	lab_expect(link_up(here, "near", 0, &e), 0, &e);
	lab_expect(address_add(here, index, 0x05060701, 30, &e), 0, &e);
	assert_int_equal(route_default_mtu(here, &mtu, &e), -ENETUNREACH);
	assert_int_equal(mtu, 7);
	/* Another table has no default route of the namespace. */
	struct route way = {.table = 77, .link = index, .via = 0xa9fe0a02};
	lab_expect(route_add(here, &way, &e), 0, &e);
	assert_shows(-1, "ip route show table 77", "default via 169.254.10.2 dev near proto static onlink");
	assert_int_equal(route_default_mtu(here, &mtu, &e), -ENETUNREACH);
	struct route prohibited = {.table = 77, .to = 0x0a000000, .bits = 8};
	for (int i = 0; i < 2; i++)
		lab_expect(route_add(here, &prohibited, &e), 0, &e);
	assert_shows(-1, "ip route show table 77", "prohibit 10.0.0.0/8");
	/* One to the same prefix takes its place. */
	const struct route direct = {
		.table = 77, .to = 0x0a000000, .bits = 8, .link = index, .source = 0x05060701};
	lab_expect(route_add(here, &direct, &e), 0, &e);
	assert_shows(-1, "ip route show table 77 10.0.0.0/8",
		     "10.0.0.0/8 dev near proto static scope link src 5.6.7.1");
	assert_false(lab_shows(-1, "ip route show table 77", "prohibit"));
	way.table = RT_TABLE_MAIN;
	lab_expect(route_add(here, &way, &e), 0, &e);
	lab_expect(route_default_mtu(here, &mtu, &e), 0, &e);
	assert_int_equal(mtu, 1400);
	/* The best of several, and its own MTU before its link's. */
	lab_run(-1, "ip link set lo mtu 9000; ip route change default dev near metric 0 mtu 1200;"
		    "ip route add default dev lo metric 5");
	lab_expect(route_default_mtu(here, &mtu, &e), 0, &e);
	assert_int_equal(mtu, 1200);
	lab_run(-1, "ip route del default metric 0");
	lab_expect(route_default_mtu(here, &mtu, &e), 0, &e);
	assert_int_equal(mtu, 9000);
}

static void test_rules(void **)
{
	struct err e = ERR_INIT;
	const struct route_rule by_link = {.priority = 10, .in_link = "lo", .table = 254};
	const struct route_rule by_mark = {.priority = 20, .mark = 0x100, .mask = 0x100, .table = 78};
	const struct route_rule all = {.priority = 30, .table = 77};
	const struct route_rule usual = {.priority = 32766, .table = 254};
	lab_expect(route_rule_add(here, &by_link, &e), 0, &e);
	lab_expect(route_rule_add(here, &by_mark, &e), 0, &e);
	lab_expect(route_rule_add(here, &all, &e), 0, &e);
	assert_int_equal(route_rule_add(here, &all, &e), -EEXIST);
	assert_shows(-1, "ip rule", "10:\tfrom all iif lo lookup main");
	assert_shows(-1, "ip rule", "20:\tfrom all fwmark 0x100/0x100 lookup 78");
	assert_shows(-1, "ip rule", "30:\tfrom all lookup 77");
	lab_expect(route_rule_delete(here, &usual, &e), 0, &e);
	assert_int_equal(route_rule_delete(here, &usual, &e), -ENOENT);
	assert_false(lab_shows(-1, "ip rule", "32766:"));
	assert_shows(-1, "ip rule", "30:\tfrom all lookup 77");
}

static bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 1;
}

static void test_listen(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int fd = -1;
	lab_expect(netlink_listen(NETLINK_ROUTE, 1u << (RTNLGRP_LINK - 1), &fd, &e), 0, &e);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_false(readable(fd, 0));
	netlink_drain(fd);
	(void)add_pair();
	assert_true(readable(fd, 1000));
	netlink_drain(fd);
	assert_false(readable(fd, 0));
	/* Groups that nobody asked for, and another namespace. */
	lab_run(-1, "ip addr add 9.9.9.1/24 dev near");
	lab_run(other, "ip link set far mtu 1300");
	assert_false(readable(fd, 0));
	/* More than it can hold: an error of the socket, which is drained, too. */
	lab_run(-1, "for i in $(seq 400); do echo link set near mtu $((1000 + i)); done | ip -batch -");
	assert_true(readable(fd, 1000));
	netlink_drain(fd);
	assert_false(readable(fd, 0));
	lab_run(-1, "ip link set near mtu 1300");
	assert_true(readable(fd, 1000));
}

/* Lists are right while others change what is listed: the kernel says that a list was interrupted. */
static void test_lists_under_change(void **)
{
	struct err e = ERR_INIT;
	static uint32_t list[1024];
	uint32_t index = add_pair();
	for (uint32_t i = 0; i < 700; i++)
		lab_expect(address_add(here, index, 0x0ac80000 + i, 32, &e), 0, &e);
	pid_t parent = getpid();
	pid_t changer = fork();
	if (changer == 0) {
		struct netlink *n = NULL;
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		bool fine = netlink_open(NETLINK_ROUTE, -1, &n, NULL) == 0;
		for (uint32_t i = 0; fine && getppid() == parent; i++)
			fine = address_add(n, index, 0x0ac90000 + i % 32, 32, NULL) == 0 &&
			       link_up(n, "near", 1000 + i % 100, NULL) == 0;
		_exit(1);
	}
	for (int i = 0; i < 100; i++) {
		int n = address_list(here, list, 1024, &e);
		int names = 0;
		if (n < 700 || n > 732)
			fail_msg("%d: %s", n, e.msg);
		lab_expect(link_each(here, count_name, &names, &e), 0, &e);
		assert_int_equal(names, 101);
	}
	assert_int_equal(kill(changer, SIGKILL), 0);
	assert_int_equal(waitpid(changer, NULL, 0), changer);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sockets, setup, teardown),
		cmocka_unit_test_setup_teardown(test_pair, setup, teardown),
		cmocka_unit_test_setup_teardown(test_up_and_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_neighbours, setup, teardown),
		cmocka_unit_test_setup_teardown(test_routes, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rules, setup, teardown),
		cmocka_unit_test_setup_teardown(test_listen, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lists_under_change, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
