/* What the forwarder asks, and answers. Needs root: it isolates itself as it always does. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "dns-lab.h"
#include "io/chan.h"
#include "net/dns/state.h"
#include "spec/message.h"

static struct lab lab;
static struct lab_message message;

static void test_config(void **)
{
	struct dns_config c;
	dns_config_init(&c);
	assert_int_equal(c.magic, DNS_CONFIG_MAGIC);
	assert_int_equal(c.udp_ms, 1000);
	assert_int_equal(c.question_ms, 6000);
	assert_int_equal(c.message_ms, 2000);
	assert_int_equal(c.connection_ms, 30000);
	assert_int_equal(c.n_resolvers, 0);
}

static void test_answer(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint16_t ids[2];
	uint16_t ports[2];
	for (uint16_t i = 0; i < 2; i++) {
		lab_ask(client, SOCK_DGRAM, (uint16_t)(0x1234 + i), "www.example");
		lab_asked(&lab, 0, &message);
		ids[i] = (uint16_t)(message.p[0] << 8 | message.p[1]);
		ports[i] = message.from_port;
		lab_make_public(&message);
		lab_answer(&lab, 0, &message);
		lab_expect(&lab, client, SOCK_DGRAM, (uint16_t)(0x1234 + i), DNS_NOERROR, 1);
	}
	/* Both numbers are random: once in four thousand million runs all four would be as expected by chance. */
	assert_true(ids[0] != 0x1234 || ids[1] != 0x1235);
	assert_int_not_equal(ports[0], ports[1]);
	lab_expect_log(
		&lab,
		(const char *const[]){
			"{\"time\":\"20", "Z\",\"kind\":\"dns\",\"name\":\"www.example\"",
			"\"type\":\"A\",\"verdict\":\"answered\",\"rule\":\"forward\",\"rcode\":0,\"ms\":",
			NULL});
	assert_int_equal(lab.counts->questions, 2);
	assert_int_equal(lab.counts->forwarded, 2);
	assert_int_equal(lab.counts->dropped, 0);
	close(client);
	lab_close(&lab, 0);
}

static void test_local(void **)
{
	static const struct {
		const char *name;
		uint16_t type;
		unsigned records;
	} rows[] = {
		{"www.example", DNS_AAAA, 0}, {"www.example", DNS_HTTPS, 0}, {"www.example", DNS_SVCB, 0},
		{"forge.example", DNS_A, 1},  {"FORGE.Example", DNS_A, 1},   {"forge.example", DNS_AAAA, 0},
		{"forge.example", 16, 0},     {"forge.example", DNS_SOA, 0},
	};
	lab_init(&lab);
	lab.config.forge = true;
	(void)snprintf(lab.config.forge_name, sizeof(lab.config.forge_name), "forge.example");
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	for (uint16_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t p[512];
		size_t n = lab_question(p, i, rows[i].name, rows[i].type, 0);
		assert_int_equal(write(client, p, n), n);
		lab_hear(&lab, client, SOCK_DGRAM, &message);
		assert_int_equal((unsigned)message.p[0] << 8 | message.p[1], i);
		assert_int_equal(message.p[3] & 15, 0);
		assert_int_equal(message.p[7], rows[i].records);
		const uint8_t gateway[] = {127, 0, 1, 1};
		if (rows[i].records > 0)
			assert_memory_equal(message.p + message.n - 4, gateway, 4);
	}
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	assert_int_equal(lab.counts->forwarded, 0);
	lab_expect_log(&lab,
		       (const char *const[]){"\"AAAA\",\"verdict\":\"local\",\"rule\":\"no-ipv6\"", NULL});
	close(client);
	lab_close(&lab, 0);
}

/* Asks n questions for different names and lets them reach the resolver. */
static void fill(int client, unsigned n)
{
	char name[32];
	for (unsigned i = 0; i < n; i++) {
		lab_name(i, name);
		lab_ask(client, SOCK_DGRAM, (uint16_t)i, name);
		lab_asked(&lab, 0, &message);
	}
}

static void test_in_flight(void **)
{
	lab_init(&lab);
	lab.config.udp_ms = 5000;
	lab.config.question_ms = 6000;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	int connection = lab_client(LAB_GUEST, SOCK_STREAM);
	fill(client, 32);
	lab_ask(client, SOCK_DGRAM, 99, "one-more.test");
	lab_ask(connection, SOCK_STREAM, 100, "over-tcp.test");
	lab_ask(connection, SOCK_STREAM, 101, "over-tcp-too.test");
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	assert_int_equal(lab.counts->dropped, 1);
	assert_int_equal(lab.counts->forwarded, 32);

	/* The last one that was asked is answered: there is room for one. */
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 31, DNS_NOERROR, 1);
	lab_asked(&lab, 0, &message);
	assert_int_equal(message.p[12], 8);
	assert_memory_equal(message.p + 13, "over-tcp", 8);
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, connection, SOCK_STREAM, 100, DNS_NOERROR, 1);
	lab_asked(&lab, 0, &message);
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, connection, SOCK_STREAM, 101, DNS_NOERROR, 1);
	assert_int_equal(lab.counts->questions, 35);
	close(client);
	close(connection);
	lab_close(&lab, 0);
}

static void test_equal(void **)
{
	lab_init(&lab);
	lab.config.udp_ms = 5000;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	for (uint16_t i = 0; i < 100; i++)
		lab_ask(client, SOCK_DGRAM, i, "same.test");
	lab_asked(&lab, 0, &message);
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	bool heard[100] = {false};
	for (int i = 0; i < 100; i++) {
		lab_hear(&lab, client, SOCK_DGRAM, &message);
		unsigned id = (unsigned)message.p[0] << 8 | message.p[1];
		assert_true(id < 100 && !heard[id] && message.p[7] == 1);
		heard[id] = true;
	}
	assert_int_equal(lab.counts->forwarded, 1);
	assert_int_equal(lab.counts->questions, 100);

	/* Room for waiters has an end, too. */
	for (uint16_t i = 0; i < 140; i++)
		lab_ask(client, SOCK_DGRAM, i, "same.test");
	lab_asked(&lab, 0, &message);
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	assert_int_equal(lab.counts->dropped, 12);
	close(client);
	lab_close(&lab, 0);
}

static void test_tcp_after_udp(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint64_t start = clock_boot_ms();
	lab_ask(client, SOCK_DGRAM, 7, "slow.test");
	lab_asked(&lab, 0, &message);
	int connection = lab_asked_tcp(&lab, 0, &message);
	assert_true(clock_boot_ms() - start >= lab.config.udp_ms);
	lab_make_public(&message);
	lab_answer_tcp(connection, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_NOERROR, 1);
	close(connection);

	/* A truncated answer is asked for over TCP at once. */
	lab_ask(client, SOCK_DGRAM, 8, "long.test");
	start = clock_boot_ms();
	lab_asked(&lab, 0, &message);
	lab_make_answer(&message, DNS_A, LAB_PUBLIC, 4, 0);
	message.p[2] |= 2;
	lab_answer(&lab, 0, &message);
	connection = lab_asked_tcp(&lab, 0, &message);
	assert_true(clock_boot_ms() - start < lab.config.udp_ms);
	lab_make_answer(&message, DNS_A, LAB_PUBLIC, 4, 3000);
	lab_answer_tcp(connection, &message);
	/* Too much for a datagram: the client is told to use TCP, too. */
	lab_hear(&lab, client, SOCK_DGRAM, &message);
	assert_int_equal(message.p[2] & 2, 2);
	assert_int_equal(message.p[7], 0);
	close(connection);
	close(client);
	lab_close(&lab, 0);
}

static void test_sizes(void **)
{
	static const struct {
		uint16_t edns;
		unsigned records; /* of 16 bytes each */
		bool truncated;
	} rows[] = {
		{0, 30, false},  {0, 31, true},     {512, 29, false}, {800, 45, false},
		{800, 50, true}, {4096, 74, false}, {4096, 76, true},
	};
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	for (uint16_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t p[512];
		size_t n = lab_question(p, i, "a.test", DNS_A, rows[i].edns);
		assert_int_equal(write(client, p, n), n);
		lab_asked(&lab, 0, &message);
		lab_make_answer(&message, DNS_A, LAB_PUBLIC, 4, rows[i].records);
		lab_answer(&lab, 0, &message);
		lab_hear(&lab, client, SOCK_DGRAM, &message);
		assert_int_equal(message.p[2] & 2, rows[i].truncated ? 2 : 0);
		assert_int_equal(message.p[7], rows[i].truncated ? 0 : rows[i].records);
	}
	close(client);
	lab_close(&lab, 0);
}

static void test_next_resolver(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	/* The first says nothing, and its connection is accepted by the kernel only. */
	lab_ask(client, SOCK_DGRAM, 7, "a.test");
	uint64_t start = clock_boot_ms();
	lab_asked(&lab, 1, &message);
	assert_true(clock_boot_ms() - start >= lab.config.udp_ms + lab.config.tcp_ms);
	lab_make_public(&message);
	lab_answer(&lab, 1, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_NOERROR, 1);

	/* The first is not there at all: the kernel says so, and nobody waits. */
	close(lab.udp[0]);
	close(lab.tcp[0]);
	start = clock_boot_ms();
	lab_ask(client, SOCK_DGRAM, 8, "b.test");
	lab_asked(&lab, 1, &message);
	assert_true(clock_boot_ms() - start < lab.config.udp_ms);
	lab_make_public(&message);
	lab_answer(&lab, 1, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 8, DNS_NOERROR, 1);
	lab.udp[0] = lab.tcp[0] = -1;
	close(client);
	lab_close(&lab, 0);
}

static void test_deadline(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint64_t start = clock_boot_ms();
	lab_ask(client, SOCK_DGRAM, 7, "a.test");
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_SERVFAIL, 0);
	uint64_t took = clock_boot_ms() - start;
	assert_true(took >= lab.config.question_ms && took < lab.config.question_ms + 500u);
	for (uint32_t i = 0; i < LAB_RESOLVERS; i++)
		assert_true(lab_readable(&lab, lab.udp[i], 0) && lab_readable(&lab, lab.tcp[i], 0));
	assert_int_equal(lab.counts->failed, 1);
	lab_expect_log(
		&lab, (const char *const[]){"\"verdict\":\"failed\",\"rule\":\"forward\",\"rcode\":2", NULL});

	/* Without a socket there is nothing to wait for. */
	lab.no_udp = lab.no_tcp = true;
	lab_change(&lab, 1, 0, LAB_RESOLVERS);
	start = clock_boot_ms();
	for (uint16_t i = 0; i < 10; i++) {
		lab_ask(client, SOCK_DGRAM, i, "b.test");
		lab_expect(&lab, client, SOCK_DGRAM, i, DNS_SERVFAIL, 0);
	}
	/* Nor without a resolver. */
	lab_change(&lab, 2, 0, 0);
	lab_ask(client, SOCK_DGRAM, 9, "c.test");
	lab_expect(&lab, client, SOCK_DGRAM, 9, DNS_SERVFAIL, 0);
	assert_true(clock_boot_ms() - start < lab.config.udp_ms);
	close(client);
	lab_close(&lab, 0);
}

/* The end of a question is also the end of a try that would take longer. */
static void test_end_within_try(void **)
{
	lab_init(&lab);
	lab.config.udp_ms = 5000;
	lab.config.question_ms = 200;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint64_t start = clock_boot_ms();
	lab_ask(client, SOCK_DGRAM, 7, "a.test");
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_SERVFAIL, 0);
	assert_true(clock_boot_ms() - start < lab.config.udp_ms);
	close(client);
	lab_close(&lab, 0);
}

/* Where the keeper has no socket for UDP, the same resolver is asked over TCP. */
static void test_tcp_only(void **)
{
	lab_init(&lab);
	lab.no_udp = true;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	lab_ask(client, SOCK_DGRAM, 7, "a.test");
	int connection = lab_asked_tcp(&lab, 0, &message);
	lab_make_public(&message);
	lab_answer_tcp(connection, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_NOERROR, 1);
	close(connection);
	close(client);
	lab_close(&lab, 0);
}

static void spoil_id(struct lab_message *m)
{
	lab_make_public(m);
	m->p[0] ^= 1;
}

static void spoil_question(struct lab_message *m)
{
	lab_make_public(m);
	m->p[13] ^= 1;
}

static void spoil_case(struct lab_message *m)
{
	lab_make_public(m);
	m->p[13] ^= 0x20;
}

static void spoil_to_question(struct lab_message *m)
{
	lab_make_public(m);
	m->p[2] &= 0x7f;
}

static void spoil_short(struct lab_message *m)
{
	m->n = 5;
}

static void spoil_end(struct lab_message *m)
{
	lab_make_public(m);
	m->n -= 3;
}

static void test_forged(void **)
{
	static const struct {
		void (*spoil)(struct lab_message *m);
		unsigned forged;
	} rows[] = {
		{spoil_id, 1},          {spoil_question, 1}, {spoil_case, 1},
		{spoil_to_question, 1}, {spoil_short, 1},    {spoil_end, 0},
	};
	lab_init(&lab);
	lab.config.udp_ms = lab.config.tcp_ms = 3000;
	lab.config.question_ms = 9000;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint64_t forged = 0;
	for (uint16_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t start = clock_boot_ms();
		lab_ask(client, SOCK_DGRAM, i, "a.test");
		lab_asked(&lab, 0, &message);
		rows[i].spoil(&message);
		lab_answer(&lab, 0, &message);
		/* TCP at once, and there the same: the next resolver. */
		int connection = lab_asked_tcp(&lab, 0, &message);
		rows[i].spoil(&message);
		if (message.n > 5)
			lab_answer_tcp(connection, &message);
		close(connection);
		lab_asked(&lab, 1, &message);
		assert_true(clock_boot_ms() - start < lab.config.udp_ms);
		lab_make_public(&message);
		lab_answer(&lab, 1, &message);
		lab_expect(&lab, client, SOCK_DGRAM, i, DNS_NOERROR, 1);
		forged += rows[i].forged * (rows[i].spoil == spoil_short ? 1u : 2u);
		assert_int_equal(lab.counts->forged, forged);
	}

	/* From another port than the one asked: it does not even arrive. */
	int other = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	lab_ask(client, SOCK_DGRAM, 50, "a.test");
	lab_asked(&lab, 0, &message);
	lab_make_public(&message);
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_addr.s_addr = htonl(0x7f000001),
				 .sin_port = htons(message.from_port)};
	(void)sendto(other, message.p, message.n, 0, (struct sockaddr *)&to, sizeof(to));
	assert_false(lab_readable(&lab, client, QUIET_MS));
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 50, DNS_NOERROR, 1);
	assert_int_equal(lab.counts->forged, forged);
	close(other);
	close(client);
	lab_close(&lab, 0);
}

static void test_change(void **)
{
	lab_init(&lab);
	lab.n_resolvers = 1;
	lab.config.udp_ms = 5000;
	lab.config.question_ms = 5000;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	lab_ask(client, SOCK_DGRAM, 7, "a.test");
	lab_asked(&lab, 0, &message);
	lab_change(&lab, 1, 1, 2);
	lab_asked(&lab, 1, &message);
	lab_make_public(&message);
	lab_answer(&lab, 1, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 7, DNS_NOERROR, 1);
	assert_int_equal(lab.counts->forwarded, 1);

	/* Sockets of an earlier time are not used: closed is what the other end sees. */
	int old[2];
	char byte;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, old), 0);
	struct chan_message m = {.type = MESSAGE_SOCKETS, .a = 0, .n_fds = 1, .fds = {old[1]}};
	assert_int_equal(chan_send(lab.channel, &m, NULL), 0);
	close(old[1]);
	lab_ask(client, SOCK_DGRAM, 8, "b.test");
	lab_asked(&lab, 1, &message);
	lab_make_public(&message);
	lab_answer(&lab, 1, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 8, DNS_NOERROR, 1);
	assert_true(lab_readable(&lab, old[0], QUIET_MS));
	assert_int_equal(read(old[0], &byte, 1), 0);
	close(old[0]);
	close(client);
	lab_close(&lab, 0);
}

static void test_denied(void **)
{
	static const struct {
		uint16_t type;
		uint8_t n;
		uint8_t content[16];
		bool denied;
	} rows[] = {
		{DNS_A, 4, {192, 168, 1, 1}, true},
		{DNS_A, 4, {10, 9, 8, 7}, true},
		{DNS_A, 4, {10, 1, 2, 3}, false}, /* an exception */
		{DNS_A, 4, {0, 0, 0, 0}, true},
		{DNS_A, 4, {169, 254, 169, 254}, true},
		{DNS_A, 4, {8, 8, 8, 8}, false},
		{DNS_AAAA, 16, {0x26, 0x06, 0x47}, false},
		{DNS_AAAA, 16, {0x20, 0x01, 0x48, 0x60}, false},
		{DNS_AAAA, 16, {0x20, 0x02, 10, 0, 0, 1}, true},
		{DNS_AAAA, 16, {0x20, 0x01, 0, 0}, true},
		{DNS_AAAA, 16, {0x20, 0x01, 0x0d, 0xb8}, true},
		{DNS_AAAA, 16, {0x3f, 0xff, 0x0f}, true},
		{DNS_AAAA, 16, {0, 0x64, 0xff, 0x9b}, true},
		{DNS_AAAA, 16, {[10] = 0xff, 0xff, 8, 8, 8, 8}, true},
		{DNS_AAAA, 16, {0xfd}, true},
		{DNS_AAAA, 16, {[15] = 1}, true},
	};
	lab_init(&lab);
	lab.config.allow = (struct network_allow){.n = 1, .items = {{.to = {0x0a010000, 16}}}};
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	uint64_t denied = 0;
	for (uint16_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		lab_ask(client, SOCK_DGRAM, i, "a.test");
		lab_asked(&lab, 0, &message);
		lab_make_answer(&message, rows[i].type, rows[i].content, rows[i].n, 1);
		lab_answer(&lab, 0, &message);
		lab_expect(&lab, client, SOCK_DGRAM, i, rows[i].denied ? DNS_REFUSED : DNS_NOERROR,
			   rows[i].denied ? 0 : 1);
		denied += rows[i].denied;
	}
	assert_int_equal(lab.counts->refused, denied);
	lab_expect_log(&lab, (const char *const[]){"\"verdict\":\"refused\",\"rule\":\"private\",\"rcode\":5",
						   NULL});
	close(client);
	lab_close(&lab, 0);
}

/* Refused questions, and messages that get no answer at all. */
static void test_malformed(void **)
{
	static const struct {
		uint8_t flags, questions;
		int rcode; /* -1: no answer */
	} rows[] = {{0x81, 1, -1}, {0x01, 0, DNS_FORMERR}, {0x29, 1, DNS_NOTIMP}};
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	for (uint16_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint8_t p[64];
		size_t n = lab_question(p, i, "a.test", DNS_A, 0);
		p[2] = rows[i].flags;
		p[5] = rows[i].questions;
		assert_int_equal(write(client, p, n), n);
		if (rows[i].rcode < 0)
			assert_false(lab_readable(&lab, client, QUIET_MS));
		else
			lab_expect(&lab, client, SOCK_DGRAM, i, (unsigned)rows[i].rcode, 0);
	}
	static const uint8_t large[DATAGRAM_MAX + 1];
	assert_int_equal(write(client, large, sizeof(large)), sizeof(large));
	assert_false(lab_readable(&lab, client, QUIET_MS));
	assert_int_equal(lab.counts->dropped, 2);
	assert_int_equal(lab.counts->refused, 2);
	assert_int_equal(lab.counts->questions, 0);
	close(client);
	lab_close(&lab, 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	lab_enter();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),    cmocka_unit_test(test_answer),
		cmocka_unit_test(test_local),     cmocka_unit_test(test_in_flight),
		cmocka_unit_test(test_equal),     cmocka_unit_test(test_tcp_after_udp),
		cmocka_unit_test(test_sizes),     cmocka_unit_test(test_next_resolver),
		cmocka_unit_test(test_deadline),  cmocka_unit_test(test_end_within_try),
		cmocka_unit_test(test_tcp_only),  cmocka_unit_test(test_forged),
		cmocka_unit_test(test_change),    cmocka_unit_test(test_denied),
		cmocka_unit_test(test_malformed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
