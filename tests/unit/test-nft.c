/* Needs root. Elements, chains and counters of a table in a namespace of the test's own; what was done is read back
 * with nft(8). */
#include <errno.h>
#include <linux/netfilter.h>
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
#include "sys/netlink.h"
#include "sys/nft.h"

static const struct nft_table table = {.family = NFPROTO_INET, .name = "lab"};
static const struct nft_table gate = {.family = NFPROTO_NETDEV, .name = "lab"};
static const struct nft_table no_table = {.family = NFPROTO_INET, .name = "none"};
static struct nft_batch *batch;

static int setup(void **)
{
	struct err e = ERR_INIT;
	lab_enter();
	lab_run(-1, "nft -f - <<'END'\n"
		    "table inet lab {\n"
		    "	set links { type ifname; }\n"
		    "	set ports { type ifname . ipv4_addr . inet_proto . inet_service; }\n"
		    "	set ranges { type ifname . ipv4_addr; flags interval; }\n"
		    "	set counted { type ifname . mark; counter; }\n"
		    "	set limited { type ifname; ct count over 65536; }\n"
		    "	set rate { type ifname; limit rate over 1 mbytes/second; }\n"
		    "	map verdicts { type ifname : verdict; }\n"
		    "	chain forward { type filter hook forward priority 0; policy drop; accept\n"
		    "	}\n"
		    "	chain output { type filter hook output priority 0; policy accept; meta mark 7 "
		    "accept; \n"
		    "		ip daddr 127.0.0.1 oifname . meta mark @counted\n"
		    "	}\n"
		    "}\n"
		    "table netdev lab {\n"
		    "	chain to { accept\n	}\n"
		    "}\n"
		    "table ip foreign {\n"
		    "	chain forward { type filter hook forward priority 0; policy accept; }\n"
		    "	chain input { type filter hook input priority 0; policy drop; }\n"
		    "}\n"
		    "END");
	lab_expect(nft_open(-1, &batch, &e), 0, &e);
	return 0;
}

static int teardown(void **)
{
	nft_close(batch);
	return 0;
}

static struct nft_element of_link(const char *link)
{
	struct nft_element x = {0};
	nft_key_link(&x.key, link);
	return x;
}

static void commit(void)
{
	struct err e = ERR_INIT;
	lab_expect(nft_commit(batch, &e), 0, &e);
}

static int count_key(void *data, const uint8_t *, size_t n)
{
	*(size_t *)data += n;
	return 0;
}

/* The bytes of the keys of all elements of a set. */
static size_t bytes_of(const char *set)
{
	struct err e = ERR_INIT;
	size_t n = 0;
	lab_expect(nft_each(batch, &table, set, count_key, &n, &e), 0, &e);
	return n;
}

static void assert_set(const char *set, const char *text)
{
	char command[64];
	scoped_buf struct buf out = BUF_INIT(1 << 16);
	(void)snprintf(command, sizeof(command), "nft list set inet lab %s", set);
	(void)lab_read(-1, &out, "%s", command);
	if (!strstr(buf_text(&out), text))
		fail_msg("no \"%s\" in %s", text, buf_text(&out));
}

static void test_keys(void **)
{
	struct nft_key k = {0};
	const uint8_t mac[6] = {1, 2, 3, 4, 5, 6};
	nft_key_bytes(&k, mac, sizeof(mac));
	nft_key_address(&k, 0x0a010203);
	nft_key_port(&k, 0x1234);
	assert_int_equal(k.n, 16);
	assert_memory_equal(k.bytes, "\1\2\3\4\5\6\0\0\12\1\2\3\x12\x34\0\0", 16);
	/* A link's name has 16 bytes, however long; one that is too long is cut. */
	struct nft_key name = {0};
	nft_key_link(&name, "a");
	nft_key_link(&name, "0123456789abcdefghi");
	assert_int_equal(name.n, 32);
	assert_memory_equal(name.bytes,
			    "a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
			    "0123456789abcde\0",
			    32);
}

static void test_elements(void **)
{
	struct nft_element x = of_link("erveth7");
	nft_add(batch, &table, "links", &x);
	struct nft_element other = of_link("erveth71");
	nft_add(batch, &table, "links", &other);
	nft_key_address(&x.key, 0x0ac80001);
	nft_key_bytes(&x.key, "\21", 1);
	nft_key_port(&x.key, 53);
	nft_add(batch, &table, "ports", &x);
	/* Nothing before the commit; adding again changes nothing. */
	assert_int_equal(bytes_of("links"), 0);
	commit();
	nft_add(batch, &table, "ports", &x);
	commit();
	assert_set("links", "\"erveth7\"");
	assert_set("links", "\"erveth71\"");
	assert_set("ports", "elements = { \"erveth7\" . 10.200.0.1 . udp . 53 }");
	assert_int_equal(bytes_of("links"), 32);
	nft_remove(batch, &table, "ports", &x);
	const struct nft_element seven = of_link("erveth7");
	nft_remove(batch, &table, "links", &seven);
	commit();
	/* What is not there. */
	nft_remove(batch, &table, "ports", &x);
	commit();
	assert_int_equal(bytes_of("ports"), 0);
	assert_int_equal(bytes_of("links"), 16);
	nft_flush_set(batch, &table, "links");
	nft_flush_set(batch, &table, "links");
	commit();
	assert_int_equal(bytes_of("links"), 0);
}

static void test_statements(void **)
{
	struct nft_element flows = of_link("a");
	flows.flows_over = 77;
	nft_add(batch, &table, "limited", &flows);
	struct nft_element rate = of_link("a");
	rate.bytes_per_s = 1000;
	nft_add(batch, &table, "rate", &rate);
	rate = of_link("b");
	rate.bytes_per_s = UINT64_C(50) << 30;
	nft_add(batch, &table, "rate", &rate);
	commit();
	assert_set("limited", "\"a\" ct count over 77");
	assert_set("rate", "\"a\" limit rate over 1000 bytes/second burst 256 kbytes");
	assert_set("rate", "\"b\" limit rate over 16384 mbytes/second burst 1024 mbytes");
	/* Removed without knowing the limit. */
	const struct nft_element a = of_link("a");
	nft_remove(batch, &table, "limited", &a);
	nft_remove(batch, &table, "rate", &a);
	commit();
	assert_int_equal(bytes_of("limited"), 0);
	assert_int_equal(bytes_of("rate"), 16);
}

static struct nft_element range(const char *link, uint32_t first, uint32_t last)
{
	struct nft_element x = of_link(link);
	nft_key_link(&x.last, link);
	nft_key_address(&x.key, first);
	nft_key_address(&x.last, last);
	return x;
}

static void test_ranges(void **)
{
	struct err e = ERR_INIT;
	const struct nft_element all = range("a", 0, UINT32_MAX);
	const struct nft_element net = range("b", 0x0a010000, 0x0a01ffff);
	const struct nft_element one = range("b", 0x0a020304, 0x0a020304);
	nft_add(batch, &table, "ranges", &all);
	nft_add(batch, &table, "ranges", &net);
	nft_add(batch, &table, "ranges", &one);
	commit();
	assert_set("ranges", "\"b\" . 10.1.0.0/16");
	assert_set("ranges", "\"b\" . 10.2.3.4");
	lab_run(-1, "nft get element inet lab ranges '{ \"b\" . 10.1.255.255 }'");
	lab_run(-1, "nft get element inet lab ranges '{ \"a\" . 255.255.255.255 }'");
	/* Removed by the link in front of the range. */
	const struct nft_element b = of_link("b");
	lab_expect(nft_remove_prefixed(batch, &table, "ranges", &b.key, &e), 2, &e);
	lab_expect(nft_remove_prefixed(batch, &table, "links", &b.key, &e), 0, &e);
	commit();
	assert_int_equal(bytes_of("ranges"), 20);
	assert_set("ranges", "\"a\" . ");
}

static void test_chains(void **)
{
	struct err e = ERR_INIT;
	lab_run(-1, "ip link add one type veth peer name two");
	struct nft_element jump = of_link("one");
	jump.jump = "log_one";
	nft_add_log(batch, &table, "log_one", 8);
	nft_add(batch, &table, "verdicts", &jump);
	nft_add_ingress(batch, &gate, "one", "one", -500, "to");
	commit();
	assert_true(lab_shows(-1, "nft list chain inet lab log_one", "log group 8 snaplen 128"));
	assert_true(lab_shows(-1, "nft list map inet lab verdicts", "\"one\" : jump log_one"));
	assert_true(lab_shows(-1, "nft list chain netdev lab one",
			      "type filter hook ingress device \"one\" priority -500; policy drop;"));
	assert_true(lab_shows(-1, "nft list chain netdev lab one", "goto to"));
	/* A second one of the name is an error, and then nothing of the batch happens. */
	const struct nft_element x = of_link("x");
	nft_add(batch, &table, "links", &x);
	nft_add_log(batch, &table, "log_one", 9);
	assert_int_equal(nft_commit(batch, &e), -EEXIST);
	assert_non_null(strstr(e.msg, "nftables: "));
	assert_int_equal(bytes_of("links"), 0);
	/* While an element names it a chain stays. */
	nft_remove_chain(batch, &table, "log_one");
	assert_int_equal(nft_commit(batch, &e), -EBUSY);
	lab_expect(nft_remove_prefixed(batch, &table, "verdicts", &x.key, &e), 0, &e);
	const struct nft_element one = of_link("one");
	lab_expect(nft_remove_prefixed(batch, &table, "verdicts", &one.key, &e), 1, &e);
	nft_remove_chain(batch, &table, "log_one");
	nft_remove_chain(batch, &gate, "one");
	commit();
	assert_false(lab_shows(-1, "nft list ruleset", "log_one"));
	assert_false(lab_shows(-1, "nft list ruleset", "ingress"));
	nft_remove_chain(batch, &gate, "one");
	assert_int_equal(nft_commit(batch, &e), -ENOENT);
}

static void test_counters(void **)
{
	struct err e = ERR_INIT;
	struct nft_element x = of_link("lo");
	uint64_t packets = 9;
	nft_key_number(&x.key, 3);
	nft_add(batch, &table, "counted", &x);
	commit();
	lab_expect(nft_counter(batch, &table, "counted", &x.key, &packets, &e), 0, &e);
	assert_int_equal(packets, 0);
	scoped_fd int own = -1;
	lab_expect(netns_open(&own, &e), 0, &e);
	scoped_fd int fd = lab_socket(own, SOCK_DGRAM, 0x7f000001, 9);
	const uint32_t mark = 3;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(lab_send(fd, 0x7f000001, 9, "x"), 0);
	lab_expect(nft_counter(batch, &table, "counted", &x.key, &packets, &e), 0, &e);
	assert_int_equal(packets, 3);
	/* Adding again keeps the count. */
	nft_add(batch, &table, "counted", &x);
	commit();
	lab_expect(nft_counter(batch, &table, "counted", &x.key, &packets, &e), 0, &e);
	assert_int_equal(packets, 3);
	struct nft_element none = of_link("lo");
	nft_key_number(&none.key, 4);
	assert_int_equal(nft_counter(batch, &table, "counted", &none.key, &packets, &e), -ENOENT);
	assert_int_equal(nft_counter(batch, &no_table, "counted", &x.key, &packets, &e), -ENOENT);
	assert_int_equal(nft_counter(batch, &table, "none", &x.key, &packets, &e), -ENOENT);
	assert_int_equal(packets, 3);
}

static int give_up(void *, const uint8_t *, size_t)
{
	return -ECANCELED;
}

static void test_reading(void **)
{
	struct err e = ERR_INIT;
	assert_int_equal(nft_count_rules(batch, &table, &e), 3);
	assert_int_equal(nft_count_rules(batch, &gate, &e), 1);
	assert_int_equal(nft_count_rules(batch, &no_table, &e), 0);
	assert_int_equal(nft_each(batch, &no_table, "links", give_up, NULL, &e), -ENOENT);
	assert_int_equal(nft_each(batch, &table, "links", give_up, NULL, &e), 0);
	const struct nft_element x = of_link("x");
	nft_add(batch, &table, "links", &x);
	commit();
	assert_int_equal(nft_each(batch, &table, "links", give_up, NULL, &e), -ECANCELED);
	assert_int_equal(bytes_of("links"), 16);
}

static int note_chain(void *data, const char *name, const char *chain, bool drops)
{
	buf_fmt(data, "%s %s %d;", name, chain, drops);
	return 0;
}

static void test_base_chains(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf chains = BUF_INIT(1024);
	lab_expect(nft_each_base_chain(batch, NF_INET_FORWARD, note_chain, &chains, &e), 0, &e);
	assert_string_equal(buf_text(&chains), "foreign forward 0;lab forward 1;");
}

/* As many changes as one transaction may have here, and more than that; their answers are all read. */
static void test_large(void **)
{
	struct err e = ERR_INIT;
	for (uint32_t i = 0; i < 512; i++) {
		struct nft_element x = of_link("a");
		nft_key_number(&x.key, i);
		nft_add(batch, &table, "counted", &x);
	}
	commit();
	assert_int_equal(bytes_of("counted"), 512 * 20);
	const struct nft_element x = of_link("x");
	for (uint32_t i = 0; i < 4096; i++)
		nft_add(batch, &table, "links", &x);
	assert_int_equal(nft_commit(batch, &e), -E2BIG);
	assert_int_equal(bytes_of("links"), 0);
	/* After that the batch is empty and works. */
	nft_add(batch, &table, "links", &x);
	commit();
	assert_int_equal(bytes_of("links"), 16);
}

static void test_errors(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	struct nft_batch *none = NULL;
	const struct nft_element x = of_link("x");
	const struct nft_element y = of_link("y");
	nft_add(batch, &table, "links", &x);
	nft_add(batch, &table, "none", &x);
	nft_add(batch, &table, "links", &y);
	assert_int_equal(nft_commit(batch, &e), -ENOENT);
	assert_int_equal(bytes_of("links"), 0);
	/* All answers to the failed one are read: the next one is not mistaken. */
	nft_add(batch, &table, "links", &y);
	commit();
	assert_int_equal(bytes_of("links"), 16);
	assert_int_equal(nft_open(0xffff, &none, &e), -EBADF);
	assert_null(none);
	nft_close(NULL);
	assert_int_equal(fds_open(), before);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_keys),
		cmocka_unit_test_setup_teardown(test_elements, setup, teardown),
		cmocka_unit_test_setup_teardown(test_statements, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
		cmocka_unit_test_setup_teardown(test_chains, setup, teardown),
		cmocka_unit_test_setup_teardown(test_counters, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reading, setup, teardown),
		cmocka_unit_test_setup_teardown(test_base_chains, setup, teardown),
		cmocka_unit_test_setup_teardown(test_large, setup, teardown),
		cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
