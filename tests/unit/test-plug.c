/* Needs root. A sandbox's namespace plugged into the gateway of a host of the test's own, and the packets that it gets
 * through: everything here is asserted by packets and by what they were counted as. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <netinet/ip.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/gateway.h"
#include "net/members.h"
#include "net/plug.h"
#include "sys/link.h"
#include "sys/netlink.h"

#define LINK "erveth3"

enum { SLOT = 3, NOTES_MAX = 8192, WAIT_MS = 2000, PORT = 9000 };

static struct host host = {-1, -1, -1};
static struct config config;
static struct network_allow allow;
static struct plug plug;
static int beyond = -1;
static int inside = -1;  /* a socket of the sandbox */
static int outside = -1; /* of whom it talks to */

static void add_member(const char *link, uint32_t slot)
{
	struct err e = ERR_INIT;
	const struct member m = {.config = &config, .allow = &allow, .link = link, .slot = slot};
	lab_expect(members_add(plug.gateway, &m, &e), 0, &e);
}

/* The gateway, with a namespace that is not plugged in yet. */
static int setup(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	lab_enter();
	beyond = lab_way_out();
	lab_expect(host_open(&host, &e), 0, &e);
	const struct gateway_plan plan = {.network = LAB_NETWORK, .store_fd = host.run};
	config_defaults(&config);
	allow = (struct network_allow){0};
	plug = (struct plug){
		.gateway = -1, .sandbox = lab_namespace(), .link = LINK, .slot = SLOT, .mtu = 1400};
	plug.gateway_address = slot_gateway(&config, SLOT);
	plug.guest_address = slot_guest(&config, SLOT);
	lab_expect(gateway_ensure(&host, &plan, &plug.gateway, &notes, &e), 0, &e);
	return 0;
}

static int teardown(void **)
{
	host_close(&host);
	fd_close(&beyond);
	fd_close(&plug.gateway);
	fd_close(&plug.sandbox);
	fd_close(&inside);
	fd_close(&outside);
	return 0;
}

/* That its other end is up, a link notes some time later, and until then it sends nothing: that is waited for. */
static void wait_for_links(void)
{
	uint32_t from = 0;
	for (int i = 0; i < WAIT_MS / 50 && from == 0; i++) {
		assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "x"), 0);
		from = lab_heard(outside, 50);
	}
	assert_int_equal(from, LAB_HOST);
	while (lab_heard(outside, 10) != 0)
		;
}

static void plug_it_in(void)
{
	struct err e = ERR_INIT;
	add_member(LINK, SLOT);
	lab_expect(plug_in(&plug, &e), 0, &e);
	inside = lab_socket(plug.sandbox, SOCK_DGRAM, 0, 0);
	outside = lab_socket(beyond, SOCK_DGRAM, LAB_BEYOND, PORT);
	wait_for_links();
}

/* A datagram that comes through, after which those before it have been looked at. */
static void send_one(void)
{
	assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "x"), 0);
	assert_int_equal(lab_heard(outside, WAIT_MS), LAB_HOST);
}

static struct member_counts counts(void)
{
	struct err e = ERR_INIT;
	struct member_counts c = {0};
	lab_expect(members_counts(plug.gateway, LINK, &c, &e), 0, &e);
	return c;
}

static void assert_refused(enum refusal kind, uint64_t n)
{
	struct member_counts c = counts();
	if (c.refused[kind] != n)
		fail_msg("%llu as %s, not %llu", (unsigned long long)c.refused[kind], refusal_name(kind),
			 (unsigned long long)n);
}

static void test_links(void **)
{
	plug_it_in();
	lab_run(plug.gateway,
		"set -e; ip addr show " LINK " | grep 'inet 10.200.0.13/30 '; ip link show " LINK
		" | grep 'mtu 1400';"
		"ip link show " LINK " | grep 'state UP';"
		"ip neigh show dev " LINK " | grep '10.200.0.14 lladdr 02:65:72:.* PERMANENT';"
		"[ $(sysctl -n net.ipv6.conf." LINK ".disable_ipv6) = 1 ]; [ -z \"$(ip -6 addr)\" ];"
		"nft list chain netdev ermite_runner " LINK " | grep 'ingress device \"" LINK "\"'");
	lab_run(plug.sandbox,
		"set -e; ip addr show eth0 | grep 'inet 10.200.0.14/30 '; ip link show eth0 | grep 'mtu "
		"1400';"
		"ip link show eth0 | grep 'state UP'; ip link show lo | grep 'LOOPBACK,UP';"
		"ip route show default | grep 'via 10.200.0.13 dev eth0';"
		"[ $(sysctl -n net.ipv6.conf.eth0.disable_ipv6) = 1 ]; [ -z \"$(ip -6 addr)\" ]");
}

/* No packet passes a link without a gate: where that cannot be put there, the link stays down. */
static void test_gate_first(void **)
{
	struct err e = ERR_INIT;
	int before = fds_open();
	add_member(LINK, SLOT);
	lab_run(plug.gateway, "nft delete table netdev ermite_runner");
	assert_true(plug_in(&plug, &e) < 0);
	assert_non_null(strstr(e.msg, "the sandbox's link: "));
	lab_run(plug.gateway, "ip link show " LINK " | grep 'state DOWN'");
	lab_run(plug.sandbox, "ip link show eth0 | grep 'state DOWN'");
	assert_int_equal(fds_open(), before);
}

/* The link of the slot's last sandbox is there still. */
static void test_slot_again(void **)
{
	struct err e = ERR_INIT;
	plug_it_in();
	send_one();
	scoped_fd int last = plug.sandbox;
	lab_expect(members_remove(plug.gateway, LINK, &e), 0, &e);
	assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "too late"), 0);
	fd_close(&inside);
	fd_close(&outside);
	plug.sandbox = lab_namespace();
	plug_it_in();
	send_one();
	assert_int_equal(lab_heard(outside, 0), 0);
	assert_false(lab_shows(last, "ip link", "eth0"));
}

static void test_out_and_back(void **)
{
	struct err e = ERR_INIT;
	uint64_t sent = 0;
	uint64_t received = 0;
	plug_it_in();
	/* To the world with the host's address, and the answer back. */
	assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "0123456789"), 0);
	struct sockaddr_in from = {0};
	socklen_t n = sizeof(from);
	char text[16];
	assert_int_equal(recvfrom(outside, text, sizeof(text), 0, (struct sockaddr *)&from, &n), 10);
	assert_int_equal(ntohl(from.sin_addr.s_addr), LAB_HOST);
	assert_int_equal(lab_send(outside, LAB_HOST, ntohs(from.sin_port), "back"), 0);
	assert_int_equal(lab_heard(inside, WAIT_MS), LAB_BEYOND);
	struct member_counts c = counts();
	assert_int_equal(c.flows, 1);
	for (unsigned i = 0; i < REFUSALS; i++)
		assert_int_equal(c.refused[i], 0);
	lab_expect(plug_bytes(plug.gateway, LINK, &sent, &received, &e), 0, &e);
	/* What the wait took, too. */
	assert_true(sent >= 14 + 28 + 10 && sent < 8192);
	assert_true(received >= 14 + 28 + 4 && received < 1024);
	assert_int_equal(plug_bytes(plug.gateway, "none", &sent, &received, &e), -ENODEV);
	/* Nobody outside begins. */
	lab_run(beyond, "ip route add 10.200.0.0/16 via 5.5.5.1");
	assert_int_equal(lab_send(outside, 0x0ac8000e, 7, "hello"), 0);
	send_one();
	assert_int_equal(lab_heard(inside, 0), 0);
}

/* Where packets go, and what they are counted as. */
static const struct {
	uint32_t to;
	enum refusal kind;
} rows[] = {
	{LAB_PRIVATE, REFUSAL_PRIVATE}, /* which is there, and listens */
	{0xa9fea9fe, REFUSAL_PRIVATE},  /* 169.254.169.254 */
	{0x0ac80002, REFUSAL_PRIVATE},  /* another sandbox that there is not */
	{0x0ac80016, REFUSAL_PRIVATE},  /* and one that there is */
	{0x0ac80015, REFUSAL_HOST},     /* its gateway */
	{0x0ac8000d, REFUSAL_HOST},     /* its own gateway, at a port without a service */
	{LAB_HOST, REFUSAL_HOST},       {0x050505ff, REFUSAL_HOST}, /* everybody in the host's network */
	{0xe0000001, REFUSAL_CAST},     {0xffffffff, REFUSAL_CAST}, {0xf0000001, REFUSAL_PRIVATE},
};

static void test_refused_addresses(void **)
{
	struct err e = ERR_INIT;
	const int on = 1;
	plug_it_in();
	scoped_fd int private = lab_socket(beyond, SOCK_DGRAM, LAB_PRIVATE, PORT);
	add_member("erveth5", 5);
	struct plug other = plug;
	scoped_fd int other_namespace = lab_namespace();
	other.sandbox = other_namespace;
	other.link = "erveth5";
	other.slot = 5;
	other.gateway_address = slot_gateway(&config, 5);
	other.guest_address = slot_guest(&config, 5);
	lab_expect(plug_in(&other, &e), 0, &e);
	scoped_fd int neighbour = lab_socket(other_namespace, SOCK_DGRAM, 0, PORT);
	assert_int_equal(setsockopt(inside, SOL_SOCKET, SO_BROADCAST, &on, sizeof(on)), 0);
	send_one();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct member_counts before = counts();
		assert_int_equal(lab_send(inside, rows[i].to, PORT, "x"), 0);
		send_one();
		struct member_counts after = counts();
		for (unsigned kind = 0; kind < REFUSALS; kind++)
			if (after.refused[kind] != before.refused[kind] + (kind == rows[i].kind))
				fail_msg("%#x: %s %llu", rows[i].to, refusal_name(kind),
					 (unsigned long long)(after.refused[kind] - before.refused[kind]));
		assert_int_equal(after.flows, before.flows);
	}
	assert_int_equal(lab_heard(private, 0), 0);
	assert_int_equal(lab_heard(neighbour, 0), 0);
}

/* A packet of the sandbox's own making: an IP head with these values and a few zero bytes. */
static void send_raw(uint32_t from, uint8_t protocol, unsigned words)
{
	_Alignas(struct iphdr) char packet[40] = {0};
	struct iphdr *head = (void *)packet;
	head->version = 4;
	head->ihl = words & 15;
	head->ttl = 64;
	head->protocol = protocol;
	head->saddr = htonl(from);
	head->daddr = htonl(LAB_BEYOND);
	/* An option: nothing, three times, and the end. */
	if (words > 5)
		memcpy(packet + sizeof(*head), "\1\1\1\0", 4);
	const struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = head->daddr};
	scoped_fd int fd = lab_socket(plug.sandbox, SOCK_RAW, 0, 0);
	assert_int_equal(sendto(fd, packet, sizeof(packet), 0, (const struct sockaddr *)&to, sizeof(to)),
			 sizeof(packet));
}

static void send_frame(uint16_t ether_type, const void *p, size_t n)
{
	struct err e = ERR_INIT;
	scoped_fd int own = -1;
	struct netlink *link = NULL;
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ether_type), .sll_halen = 6};
	uint32_t index = 0;
	slot_gateway_mac(SLOT, to.sll_addr);
	lab_expect(netns_open(&own, &e), 0, &e);
	lab_expect(netlink_open(NETLINK_ROUTE, plug.sandbox, &link, &e), 0, &e);
	lab_expect(link_index(link, "eth0", &index, &e), 0, &e);
	netlink_close(link);
	to.sll_ifindex = (int)index;
	lab_expect(netns_enter(plug.sandbox, &e), 0, &e);
	scoped_fd int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	lab_expect(netns_enter(own, &e), 0, &e);
	assert_int_equal(sendto(fd, p, n, 0, (struct sockaddr *)&to, sizeof(to)), n);
}

static void test_refused_packets(void **)
{
	static const uint8_t claim[28] = {0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 200, 0, 13};
	uint8_t mac[NETWORK_MAC_BYTES];
	slot_guest_mac(SLOT, mac);
	plug_it_in();
	send_one();
	/* A head of UDP with a length of 0. */
	send_raw(0x0ac8000e, IPPROTO_UDP, 5);
	send_one();
	assert_refused(REFUSAL_SPOOF, 0);
	assert_refused(REFUSAL_INVALID, 1);
	/* The neighbour's address, and the host's. */
	send_raw(0x0ac80002, IPPROTO_UDP, 5);
	send_raw(LAB_HOST, IPPROTO_UDP, 5);
	send_one();
	assert_refused(REFUSAL_SPOOF, 2);
	send_frame(ETH_P_ARP, claim, sizeof(claim));
	send_one();
	assert_refused(REFUSAL_SPOOF, 3);
	send_raw(0x0ac8000e, IPPROTO_GRE, 5);
	send_one();
	assert_refused(REFUSAL_PROTOCOL, 1);
	assert_refused(REFUSAL_LINK, 0);
	send_raw(0x0ac8000e, IPPROTO_UDP, 6);
	send_one();
	assert_refused(REFUSAL_LINK, 1);
	send_frame(ETH_P_IPV6, claim, sizeof(claim));
	send_frame(ETH_P_8021Q, claim, sizeof(claim));
	send_one();
	assert_refused(REFUSAL_LINK, 3);
	/* A segment of no connection. */
	send_raw(0x0ac8000e, IPPROTO_TCP, 5);
	send_one();
	assert_refused(REFUSAL_INVALID, 2);
	/* Another link-layer address. */
	lab_run(plug.sandbox, "ip link set eth0 address 02:00:00:00:00:09");
	assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "x"), 0);
	lab_run(plug.sandbox, "ip link set eth0 address %02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1],
		mac[2], mac[3], mac[4], mac[5]);
	send_one();
	assert_int_equal(lab_heard(outside, 0), 0);
	assert_true(counts().refused[REFUSAL_SPOOF] > 3);
}

static void test_exceptions(void **)
{
	struct err e = ERR_INIT;
	lab_expect(network_allow_parse("10.1.2.3/32 10.1.2.4:9001", &allow, &e), 0, &e);
	plug_it_in();
	scoped_fd int three = lab_socket(beyond, SOCK_DGRAM, LAB_PRIVATE, PORT);
	scoped_fd int four = lab_socket(beyond, SOCK_DGRAM, LAB_PRIVATE + 1, PORT);
	scoped_fd int port = lab_socket(beyond, SOCK_DGRAM, LAB_PRIVATE + 1, PORT + 1);
	assert_int_equal(lab_send(inside, LAB_PRIVATE, PORT, "x"), 0);
	assert_int_equal(lab_heard(three, WAIT_MS), LAB_HOST);
	assert_int_equal(lab_send(inside, LAB_PRIVATE + 1, PORT, "x"), 0);
	assert_int_equal(lab_send(inside, LAB_PRIVATE + 1, PORT + 1, "x"), 0);
	assert_int_equal(lab_heard(port, WAIT_MS), LAB_HOST);
	assert_int_equal(lab_heard(four, 0), 0);
	assert_refused(REFUSAL_PRIVATE, 1);
	/* Answers come back, too. */
	struct sockaddr_in from = {0};
	socklen_t n = sizeof(from);
	char byte;
	assert_int_equal(lab_send(inside, LAB_PRIVATE, PORT, "x"), 0);
	assert_int_equal(recvfrom(three, &byte, 1, 0, (struct sockaddr *)&from, &n), 1);
	assert_int_equal(lab_send(three, LAB_HOST, ntohs(from.sin_port), "back"), 0);
	assert_int_equal(lab_heard(inside, WAIT_MS), LAB_PRIVATE);
}

/* The kernel's count forgets a flow whose first packet it has counted and for some milliseconds not entered in its
 * table, as when its processor is taken away in between: there may be a few more. */
static void test_flow_limit(void **)
{
	enum { LIMIT = 16, TRIES = 64, FORGOTTEN = 3 };
	config.job_flows = LIMIT;
	plug_it_in();
	scoped_fd int other = lab_socket(beyond, SOCK_DGRAM, LAB_BEYOND, PORT + 1);
	unsigned through = 0;
	/* The first one was there before. */
	for (int i = 1; i < TRIES; i++) {
		scoped_fd int fd = lab_socket(plug.sandbox, SOCK_DGRAM, 0, 0);
		assert_int_equal(lab_send(fd, LAB_BEYOND, PORT + 1, "x"), 0);
	}
	while (lab_heard(other, 200) != 0)
		through++;
	assert_in_range(through, LIMIT - 1, LIMIT - 1 + FORGOTTEN);
	assert_refused(REFUSAL_FLOWS, TRIES - 1 - through);
	assert_int_equal(counts().flows, through + 1);
}

/* Connection tracking is there still when many have come and gone. */
static void test_after_many(void **)
{
	enum { TURNS = 10 };
	struct err e = ERR_INIT;
	for (int i = 0; i < TURNS; i++) {
		add_member(LINK, SLOT);
		lab_expect(members_remove(plug.gateway, LINK, &e), 0, &e);
	}
	plug_it_in();
	struct sockaddr_in from = {0};
	socklen_t n = sizeof(from);
	char byte;
	assert_int_equal(lab_send(inside, LAB_BEYOND, PORT, "x"), 0);
	assert_int_equal(recvfrom(outside, &byte, 1, 0, (struct sockaddr *)&from, &n), 1);
	assert_int_equal(lab_send(outside, LAB_HOST, ntohs(from.sin_port), "back"), 0);
	assert_int_equal(lab_heard(inside, WAIT_MS), LAB_BEYOND);
	assert_int_equal(counts().flows, 1);
}

static void test_errors(void **)
{
	struct err e = ERR_INIT;
	struct plug wrong = plug;
	wrong.sandbox = host.run;
	assert_int_equal(plug_in(&wrong, &e), -EINVAL);
	wrong = plug;
	wrong.gateway = host.run;
	assert_int_equal(plug_in(&wrong, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "the sandbox's link: "));
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_links, setup, teardown),
		cmocka_unit_test_setup_teardown(test_gate_first, setup, teardown),
		cmocka_unit_test_setup_teardown(test_slot_again, setup, teardown),
		cmocka_unit_test_setup_teardown(test_out_and_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused_addresses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_refused_packets, setup, teardown),
		cmocka_unit_test_setup_teardown(test_exceptions, setup, teardown),
		cmocka_unit_test_setup_teardown(test_flow_limit, setup, teardown),
		cmocka_unit_test_setup_teardown(test_after_many, setup, teardown),
		cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
