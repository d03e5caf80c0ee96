#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/flow.h"

#define PACKET_MAX 64

/* Builds a message of the packet log with this ether type, mark and packet. Returns its length. */
static size_t make(uint8_t *p, uint16_t ether_type, uint8_t mark, const uint8_t *packet, size_t n)
{
	struct nlmsghdr head = {.nlmsg_type = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET};
	const uint8_t attributes[] = {2,
				      0,
				      0,
				      0, /* nfgenmsg */
				      8,
				      0,
				      NFULA_PACKET_HDR,
				      0,
				      (uint8_t)(ether_type >> 8),
				      (uint8_t)ether_type,
				      0,
				      0,
				      5,
				      0,
				      NFULA_PREFIX,
				      0,
				      0,
				      0,
				      0,
				      0, /* one byte and its padding */
				      8,
				      0,
				      NFULA_MARK,
				      0,
				      0,
				      0,
				      0,
				      mark,
				      (uint8_t)(4 + n),
				      0,
				      NFULA_PAYLOAD,
				      0};
	head.nlmsg_len = (uint32_t)(sizeof(head) + sizeof(attributes) + n);
	memcpy(p, &head, sizeof(head));
	memcpy(p + sizeof(head), attributes, sizeof(attributes));
	memcpy(p + sizeof(head) + sizeof(attributes), packet, n);
	return head.nlmsg_len;
}

static const struct row {
	const char *name;
	uint16_t ether_type;
	uint8_t n;
	uint8_t packet[PACKET_MAX];
	const char *source, *address, *protocol;
	int port; /* -1: none */
} rows[] = {
	{"tcp",
	 0x0800,
	 24,
	 {0x45, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 0x9c, 0x40, 1, 0xbb},
	 "10.200.0.2",
	 "8.8.4.4",
	 "tcp",
	 443},
	{"udp with options",
	 0x0800,
	 28,
	 {0x46, [9] = 17, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 1, 1, 1, 1, 0x9c, 0x40, 0, 53},
	 "10.200.0.2",
	 "8.8.4.4",
	 "udp",
	 53},
	{"icmp",
	 0x0800,
	 28,
	 {0x45, [9] = 1, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 8},
	 "10.200.0.2",
	 "8.8.4.4",
	 "icmp",
	 -1},
	{"gre",
	 0x0800,
	 24,
	 {0x45, [9] = 47, [12] = 10, 200, 0, 2, 8, 8, 4, 4},
	 "10.200.0.2",
	 "8.8.4.4",
	 "ip-47",
	 -1},
	{"second fragment",
	 0x0800,
	 24,
	 {0x45, [7] = 9, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 0, 1, 0, 2},
	 "10.200.0.2",
	 "8.8.4.4",
	 "tcp",
	 -1},
	{"cut behind the head",
	 0x0800,
	 22,
	 {0x45, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 0, 1},
	 "10.200.0.2",
	 "8.8.4.4",
	 "tcp",
	 -1},
	{"cut in the head", 0x0800, 19, {0x45, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4}, "", "", "ip-0", -1},
	{"length below the head",
	 0x0800,
	 24,
	 {0x44, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 0, 1, 0, 2},
	 "10.200.0.2",
	 "8.8.4.4",
	 "tcp",
	 -1},
	{"options past the end",
	 0x0800,
	 24,
	 {0x4f, [9] = 6, [12] = 10, 200, 0, 2, 8, 8, 4, 4, 0, 1, 0, 2},
	 "10.200.0.2",
	 "8.8.4.4",
	 "tcp",
	 -1},
	{"nothing", 0x0800, 0, {0}, "", "", "ip-0", -1},
	{"ipv6",
	 0x86dd,
	 44,
	 {0x60, [6] = 17, [8] = 0xfe, 0x80, [23] = 1, [24] = 0xff, 2, [39] = 2, 0, 1, 0, 53},
	 "fe80::1",
	 "ff02::2",
	 "ipv6",
	 53},
	{"arp",
	 0x0806,
	 28,
	 {0, 1, 8, 0, 6, 4, 0, 1, [14] = 10, 200, 0, 2, [24] = 10, 200, 0, 1},
	 "10.200.0.2",
	 "10.200.0.1",
	 "arp",
	 -1},
	{"arp of something else",
	 0x0806,
	 28,
	 {0, 6, 8, 0, 6, 4, 0, 1, [14] = 10, 200, 0, 2, [24] = 10},
	 "",
	 "",
	 "arp",
	 -1},
	{"vlan", 0x8100, 24, {0, 5, 8, 0, 0x45}, "", "", "ether-0x8100", -1},
};

static void check(const struct row *row, const struct flow *f)
{
	char text[FLOW_ADDRESS_TEXT];
	char protocol[FLOW_PROTOCOL_MAX];
	flow_address_text(f, f->source, text);
	if (strcmp(text, row->source) != 0)
		fail_msg("%s: source %s", row->name, text);
	flow_address_text(f, f->address, text);
	if (strcmp(text, row->address) != 0)
		fail_msg("%s: address %s", row->name, text);
	flow_protocol_text(f, protocol);
	if (strcmp(protocol, row->protocol) != 0)
		fail_msg("%s: protocol %s", row->name, protocol);
	if ((f->has_ports ? f->port : -1) != row->port)
		fail_msg("%s: port %d", row->name, f->has_ports ? f->port : -1);
	assert_int_equal(f->mark, 4);
}

static void test_packets(void **)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t p[256];
		struct flow f;
		size_t n = make(p, rows[i].ether_type, 4, rows[i].packet, rows[i].n);
		struct rd r = rd_over(p, n);
		assert_true(flow_next(&r, &f));
		check(&rows[i], &f);
		assert_false(flow_next(&r, &f));
	}
}

static void test_several(void **)
{
	uint8_t p[1024];
	struct flow f;
	/* Something that is no packet stands between two, which need padding. */
	size_t n = make(p, 0x0800, 4, rows[0].packet, 22);
	n = (n + 3) / 4 * 4;
	const struct nlmsghdr other = {.nlmsg_len = sizeof(other), .nlmsg_type = NLMSG_NOOP};
	memcpy(p + n, &other, sizeof(other));
	n += sizeof(other);
	n += make(p + n, 0x0800, 4, rows[2].packet, rows[2].n);
	struct rd r = rd_over(p, n);
	assert_true(flow_next(&r, &f));
	assert_int_equal(f.protocol, 6);
	assert_true(flow_next(&r, &f));
	check(&rows[2], &f);
	assert_false(flow_next(&r, &f));
}

/* Cut anywhere, nothing is read that is not there. */
static void test_cuts(void **)
{
	uint8_t p[256];
	size_t n = make(p, 0x0800, 4, rows[0].packet, rows[0].n);
	for (size_t cut = 0; cut < n; cut++) {
		struct flow f;
		struct rd r = rd_over(p, cut);
		assert_false(flow_next(&r, &f));
	}
	/* The length in the head says that it ends earlier. */
	for (uint32_t length = 0; length < n; length++) {
		struct flow f;
		struct rd r = rd_over(p, n);
		memcpy(p, &length, sizeof(length));
		bool is = flow_next(&r, &f);
		assert_true(!is || length >= sizeof(struct nlmsghdr) + sizeof(struct nfgenmsg));
		assert_true(!is || !f.has_ports);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_packets),
		cmocka_unit_test(test_several),
		cmocka_unit_test(test_cuts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
