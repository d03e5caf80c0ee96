/* Needs root. The rules as text: what they were when a person last read them, that nft accepts them, and how many of
 * them the kernel then has. */
#include <fcntl.h>
#include <linux/netfilter.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/nftext.h"
#include "net/ruleset.h"
#include "sys/nft.h"

enum { RULES_MAX = 32768 };

static int golden = -1; /* the directory */

static const struct {
	struct cidr network;
	const char *gateway, *host;
} rows[] = {
	{{0x0ac80000u, 16}, "gateway.nft", "host.nft"},
	/* A network outside of the denied ranges is denied all the same. */
	{{0x2c800000u, 20}, "gateway-public.nft", "host-public.nft"},
};

enum { ROWS = sizeof(rows) / sizeof(rows[0]) };

static void compare(const struct buf *rules, const char *name)
{
	static char text[RULES_MAX];
	struct err e = ERR_INIT;
	assert_int_equal(buf_check(rules), 0);
	if (file_read_text(golden, name, text, sizeof(text), &e) < 0)
		fail_msg("%s", e.msg);
	/* The file's last newline is cut. */
	assert_int_equal(strlen(text) + 1, rules->n);
	assert_memory_equal(buf_text(rules), text, strlen(text));
}

static void test_text(void **)
{
	for (size_t i = 0; i < ROWS; i++) {
		scoped_buf struct buf gateway = BUF_INIT(RULES_MAX);
		scoped_buf struct buf host = BUF_INIT(RULES_MAX);
		ruleset_gateway(&rows[i].network, &gateway);
		ruleset_host(&rows[i].network, &host);
		compare(&gateway, rows[i].gateway);
		compare(&host, rows[i].host);
	}
}

static int count_rules(uint8_t family)
{
	const struct nft_table table = {.family = family, .name = RULESET_TABLE};
	struct err e = ERR_INIT;
	struct nft_batch *b = NULL;
	lab_expect(nft_open(-1, &b, &e), 0, &e);
	int n = nft_count_rules(b, &table, &e);
	nft_close(b);
	return n;
}

static void test_gateway_loads(void **)
{
	for (size_t i = 0; i < ROWS; i++) {
		struct err e = ERR_INIT;
		scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
		lab_enter();
		ruleset_gateway(&rows[i].network, &rules);
		lab_expect(nftext_load(-1, &rules, &e), 0, &e);
		assert_true(count_rules(NFPROTO_INET) > 20);
		assert_true(count_rules(NFPROTO_NETDEV) > 8);
		/* The sandboxes' own network is denied, whichever it is. */
		const char *first = i == 0 ? "10.200.0.1" : "44.128.15.255";
		lab_run(-1, "nft get element inet ermite_runner denied '{ %s }'", first);
		scoped_buf struct buf out = BUF_INIT(4096);
		assert_int_not_equal(
			lab_read(-1, &out, "nft get element inet ermite_runner denied '{ 44.128.16.0 }'"), 0);
	}
}

/* Loading again replaces: the number of rules says that all of it is there, and nothing twice. */
static void test_host_loads(void **)
{
	lab_enter();
	assert_int_equal(count_rules(NFPROTO_INET), 0);
	for (size_t i = 0; i < 2 * ROWS; i++) {
		struct err e = ERR_INIT;
		scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
		ruleset_host(&rows[i % ROWS].network, &rules);
		lab_expect(nftext_load(-1, &rules, &e), 0, &e);
		assert_int_equal(count_rules(NFPROTO_INET), RULESET_HOST_RULES);
	}
	assert_true(lab_shows(-1, "nft list ruleset", "44.128.0.0/20"));
	assert_false(lab_shows(-1, "nft list ruleset", "10.200.0.0"));
}

static void test_nft(void **)
{
	int before = fds_open();
	struct err e = ERR_INIT;
	scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
	scoped_buf struct buf list = BUF_INIT(RULES_MAX);
	lab_enter();
	assert_non_null(nftext_program());
	buf_str(&rules, "table ip lab {\n	chain one {\n		nonsense\n	}\n}\n");
	lab_expect(nftext_load(-1, &rules, &e), -EIO, &e);
	assert_non_null(strstr(e.msg, "nft refused the rules: "));
	assert_non_null(strstr(e.msg, "nonsense"));
	assert_null(strchr(e.msg, '\n'));
	assert_int_equal(nftext_list("ip", "lab", &list, &e), -EIO);
	assert_int_equal(list.n, 0);
	/* In another namespace than the caller's, who stays where he is. */
	scoped_fd int other = lab_namespace();
	buf_clear(&rules);
	buf_str(&rules, "table ip lab {\n	chain one {\n		drop\n	}\n}\n");
	lab_expect(nftext_load(other, &rules, &e), 0, &e);
	assert_int_equal(nftext_list("ip", "lab", &list, &e), -EIO);
	lab_expect(nftext_load(-1, &rules, &e), 0, &e);
	lab_expect(nftext_list("ip", "lab", &list, &e), 0, &e);
	assert_non_null(strstr(buf_text(&list), "chain one {"));
	/* Rules that were cut for want of room are not loaded. */
	struct buf cut = BUF_INIT(4);
	buf_str(&cut, "table ip lab");
	assert_int_equal(nftext_load(-1, &cut, &e), -ENOBUFS);
	buf_done(&cut);
	fd_close(&other);
	assert_int_equal(fds_open(), before);
}

int main(int argc, char **argv)
{
	if (geteuid() != 0)
		return 77;
	golden = argc == 2 ? open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	if (golden < 0)
		return 1;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_text),
		cmocka_unit_test(test_gateway_loads),
		cmocka_unit_test(test_host_loads),
		cmocka_unit_test(test_nft),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
