#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "spec/network.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static uint32_t address(const char *text)
{
	struct in_addr a = {0};
	assert_int_equal(inet_pton(AF_INET, text, &a), 1);
	return ntohl(a.s_addr);
}

static void test_prefix_holds(void **)
{
	static const struct {
		const char *prefix;
		uint32_t bits;
		const char *address;
		bool holds;
	} rows[] = {
		{"0.0.0.0", 0, "255.255.255.255", true},   {"0.0.0.0", 0, "0.0.0.0", true},
		{"10.0.0.0", 8, "10.255.255.255", true},   {"10.0.0.0", 8, "11.0.0.0", false},
		{"10.0.0.0", 8, "9.255.255.255", false},   {"100.64.0.0", 10, "100.127.255.255", true},
		{"100.64.0.0", 10, "100.128.0.0", false},  {"10.1.2.3", 32, "10.1.2.3", true},
		{"10.1.2.3", 32, "10.1.2.2", false},       {"10.1.2.2", 31, "10.1.2.3", true},
		{"128.0.0.0", 1, "255.255.255.255", true}, {"128.0.0.0", 1, "127.255.255.255", false},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cidr c = {address(rows[i].prefix), rows[i].bits};
		if (cidr_holds(&c, address(rows[i].address)) != rows[i].holds)
			fail_msg("%s/%u and %s", rows[i].prefix, rows[i].bits, rows[i].address);
	}
}

/* The table of the specification: the first and the last address of every range, and the neighbours outside. */
static void test_denied_ranges(void **)
{
	static const struct {
		const char *before, *first, *last, *after;
	} rows[] = {
		{NULL, "0.0.0.0", "0.255.255.255", "1.0.0.0"},
		{"9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"},
		{"100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"},
		{"126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"},
		{"169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"},
		{"172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"},
		{"191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"},
		{"192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"},
		{"192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"},
		{"192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"},
		{"198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"},
		{"198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"},
		{"203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"},
		{"223.255.255.255", "224.0.0.0", "239.255.255.255", NULL},
		{NULL, "240.0.0.0", "255.255.255.255", NULL},
	};
	const struct network_allow none = {0};
	size_t n = 0;
	const struct cidr *denied = network_denied(&n);
	assert_int_equal(n, COUNT(rows));
	for (size_t i = 0; i < n; i++) {
		assert_true(denied[i].address == address(rows[i].first));
		assert_true(cidr_holds(&denied[i], address(rows[i].last)));
		assert_true(network_is_denied(address(rows[i].first), &none));
		assert_true(network_is_denied(address(rows[i].last), &none));
		if (rows[i].before)
			assert_false(network_is_denied(address(rows[i].before), &none));
		if (rows[i].after)
			assert_false(network_is_denied(address(rows[i].after), &none));
	}
}

static void test_exceptions(void **)
{
	struct network_allow allow = {0};
	assert_int_equal(network_allow_parse("10.1.0.0/16, 10.200.0.9:443", &allow, NULL), 0);
	assert_false(network_is_denied(address("10.1.255.255"), &allow));
	assert_true(network_is_denied(address("10.2.0.0"), &allow));
	assert_false(network_is_denied(address("10.200.0.9"), &allow));
	assert_true(network_is_denied(address("10.200.0.8"), &allow));
	assert_false(network_is_denied(address("8.8.8.8"), &allow));
	assert_int_equal(network_allow_parse("0.0.0.0/0", &allow, NULL), 0);
	assert_false(network_is_denied(address("127.0.0.1"), &allow));
}

static void check_exception(const struct network_exception *x, const char *to, uint32_t bits, uint16_t port)
{
	assert_true(x->to.address == address(to));
	assert_int_equal(x->to.bits, bits);
	assert_int_equal(x->port, port);
}

static void test_parse(void **)
{
	struct network_allow allow = {0};
	assert_int_equal(
		network_allow_parse(" ,\t10.1.0.0/16,10.1.2.3 10.1.2.4:65535\t0.0.0.0/0,, ", &allow, NULL),
		0);
	assert_int_equal(allow.n, 4);
	check_exception(&allow.items[0], "10.1.0.0", 16, 0);
	check_exception(&allow.items[1], "10.1.2.3", 32, 0);
	check_exception(&allow.items[2], "10.1.2.4", 32, 65535);
	check_exception(&allow.items[3], "0.0.0.0", 0, 0);
	static const char *const empty[] = {"", " , \t"};
	for (size_t i = 0; i < COUNT(empty); i++) {
		assert_int_equal(network_allow_parse(empty[i], &allow, NULL), 0);
		assert_int_equal(allow.n, 0);
	}
}

static void test_parse_refuses(void **)
{
	static const struct {
		const char *text;
		const char *part; /* that the sentence names */
	} rows[] = {
		{"10.1.2", "\"10.1.2\""},
		{"10.0.0.0/8 x", "\"x\""},
		{"10.1.2.3/16", "\"10.1.2.3/16\" has bits behind its prefix"},
		{"10.0.0.0/33", "\"10.0.0.0/33\""},
		{"10.0.0.0/", "\"10.0.0.0/\""},
		{"10.0.0.0/ 8", "\"10.0.0.0/\""},
		{"10.0.0.0/+8", "\"10.0.0.0/+8\""},
		{"10.1.2.3:0", "\"10.1.2.3:0\""},
		{"10.1.2.3:65536", "\"10.1.2.3:65536\""},
		{"10.1.2.3:", "\"10.1.2.3:\""},
		{"10.1.0.0/16:80", "\"10.1.0.0/16:80\""},
		{"10.1.2.3:80/32", "\"10.1.2.3:80/32\""},
		{"mirror.example:80", "\"mirror.example:80\""},
		{"0x7f.1", "\"0x7f.1\""},
		{"::1", "\"::1\""},
		{"10.1.2.3;10.1.2.4", "\"10.1.2.3;10.1.2.4\""},
		{"1111111111111111111111111111111111111111", "\"1111111111111111111111111111111\""},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct network_allow allow = {.n = 7};
		struct err e = ERR_INIT;
		assert_int_equal(network_allow_parse(rows[i].text, &allow, &e), -EINVAL);
		assert_int_equal(allow.n, 7);
		if (!strstr(e.msg, "ERMITE_RUNNER_NETWORK_ALLOW: ") || !strstr(e.msg, rows[i].part))
			fail_msg("%s: %s", rows[i].text, e.msg);
	}
}

static void test_parse_at_most(void **)
{
	char text[(NETWORK_EXCEPTIONS_MAX + 1) * sizeof("10.0.0.1,")] = "";
	struct network_allow allow = {0};
	struct err e = ERR_INIT;
	size_t n = 0;
	for (int i = 0; i < NETWORK_EXCEPTIONS_MAX; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "10.0.0.1,");
	assert_int_equal(network_allow_parse(text, &allow, NULL), 0);
	assert_int_equal(allow.n, NETWORK_EXCEPTIONS_MAX);
	(void)snprintf(text + n, sizeof(text) - n, "10.0.0.1,");
	assert_int_equal(network_allow_parse(text, &allow, &e), -EINVAL);
	assert_non_null(strstr(e.msg, "more than 32 exceptions"));
}

static void test_slots(void **)
{
	static const struct {
		uint32_t slot;
		const char *gateway, *guest;
	} rows[] = {
		{0, "10.200.0.1", "10.200.0.2"},          {1, "10.200.0.5", "10.200.0.6"},
		{63, "10.200.0.253", "10.200.0.254"},     {64, "10.200.1.1", "10.200.1.2"},
		{1023, "10.200.15.253", "10.200.15.254"},
	};
	struct config c;
	config_defaults(&c);
	for (size_t i = 0; i < COUNT(rows); i++) {
		char text[NETWORK_ADDRESS_TEXT];
		network_address_text(slot_gateway(&c, rows[i].slot), text);
		assert_string_equal(text, rows[i].gateway);
		network_address_text(slot_guest(&c, rows[i].slot), text);
		assert_string_equal(text, rows[i].guest);
	}
	char text[NETWORK_ADDRESS_TEXT];
	network_address_text(UINT32_MAX, text);
	assert_string_equal(text, "255.255.255.255");
}

/* Locally administered and no group address; different for each slot and end. */
static void test_link_addresses(void **)
{
	uint8_t a[NETWORK_MAC_BYTES];
	uint8_t b[NETWORK_MAC_BYTES];
	slot_gateway_mac(0x123, a);
	assert_memory_equal(a, ((const uint8_t[]){0x02, 0x65, 0x72, 0x01, 0x01, 0x23}), sizeof(a));
	slot_guest_mac(0x123, b);
	assert_memory_equal(b, ((const uint8_t[]){0x02, 0x65, 0x72, 0x02, 0x01, 0x23}), sizeof(b));
	slot_guest_mac(1023, a);
	assert_memory_equal(a, ((const uint8_t[]){0x02, 0x65, 0x72, 0x02, 0x03, 0xff}), sizeof(a));
}

static void test_link_names(void **)
{
	static const struct {
		enum isolation isolation;
		uint32_t slot;
		const char *name;
	} rows[] = {
		{ISOLATION_VM, 7, "ertap7"},
		{ISOLATION_CONTAINER, 0, "erveth0"},
		{ISOLATION_SYSTEM, 1023, "erveth1023"},
		{ISOLATION_SYSTEM, 99'999'999, "erveth99999999"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char name[NETWORK_LINK_SIZE];
		slot_link(rows[i].isolation, rows[i].slot, name);
		assert_string_equal(name, rows[i].name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefix_holds),  cmocka_unit_test(test_denied_ranges),
		cmocka_unit_test(test_exceptions),    cmocka_unit_test(test_parse),
		cmocka_unit_test(test_parse_refuses), cmocka_unit_test(test_parse_at_most),
		cmocka_unit_test(test_slots),         cmocka_unit_test(test_link_addresses),
		cmocka_unit_test(test_link_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
