/* Needs root. The gateway's sets and maps in a namespace of the test's own: whatever a member was, nothing of it is
 * left when it has gone. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/gateway.h"
#include "net/members.h"
#include "net/nftext.h"
#include "net/ruleset.h"

enum { RULES_MAX = 1 << 20, OTHERS = 300, TURNS = 25 };

static struct config config;
static struct network_allow allow;
static struct buf empty = {.max = RULES_MAX}; /* the rules without members, as nft lists them */

static void load_rules(void)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
	const struct cidr network = LAB_NETWORK;
	ruleset_gateway(&network, &rules);
	lab_expect(nftext_load(-1, &rules, &e), 0, &e);
}

static int setup(void **)
{
	lab_enter();
	load_rules();
	buf_clear(&empty);
	assert_int_equal(lab_read(-1, &empty, "nft list ruleset"), 0);
	config_defaults(&config);
	allow = (struct network_allow){0};
	return 0;
}

static void assert_empty(void)
{
	scoped_buf struct buf now = BUF_INIT(RULES_MAX);
	assert_int_equal(lab_read(-1, &now, "nft list ruleset"), 0);
	if (strcmp(buf_text(&now), buf_text(&empty)) != 0)
		fail_msg("something is left: %s", buf_text(&now));
}

static void assert_has(const char *what, const char *text)
{
	char command[96];
	scoped_buf struct buf out = BUF_INIT(RULES_MAX);
	(void)snprintf(command, sizeof(command), "nft list %s", what);
	(void)lab_read(-1, &out, "%s", command);
	if (!strstr(buf_text(&out), text))
		fail_msg("no \"%s\" in %s", text, buf_text(&out));
}

/* A member with everything that one can have. */
static struct member full_member(void)
{
	struct err e = ERR_INIT;
	config.job_net_bandwidth = 10 << 20;
	config.job_flows = 64;
	lab_expect(network_allow_parse("10.1.0.0/16 10.2.0.0/24 10.3.4.5 10.9.9.9:443 0.0.0.0/0", &allow, &e),
		   0, &e);
	return (struct member){.config = &config,
			       .allow = &allow,
			       .link = "erveth7",
			       .slot = 7,
			       .forge_port = 7777,
			       .log = true};
}

static struct member plain_member(const char *link, uint32_t slot)
{
	return (struct member){.config = &config, .allow = &allow, .link = link, .slot = slot};
}

static void add(const struct member *m)
{
	struct err e = ERR_INIT;
	lab_expect(members_add(-1, m, &e), 0, &e);
}

static void take_away(const char *link)
{
	struct err e = ERR_INIT;
	lab_expect(members_remove(-1, link, &e), 0, &e);
}

static void test_what_is_added(void **)
{
	struct member m = full_member();
	allow = (struct network_allow){0};
	assert_int_equal(network_allow_parse("10.1.0.0/16 10.3.4.5 10.9.9.9:443", &allow, NULL), 0);
	add(&m);
	assert_has("set inet ermite_runner links", "{ \"erveth7\" }");
	assert_has("set netdev ermite_runner owners", "\"erveth7\" . 02:65:72:");
	assert_has("set netdev ermite_runner owners", ". 10.200.0.30 }");
	assert_has("set netdev ermite_runner claims", ". 10.200.0.30 }");
	assert_has("set inet ermite_runner services", "\"erveth7\" . 10.200.0.29 . udp . 53");
	assert_has("set inet ermite_runner services", "\"erveth7\" . 10.200.0.29 . tcp . 53");
	assert_has("set inet ermite_runner services", "\"erveth7\" . 10.200.0.29 . tcp . 7777");
	assert_has("set inet ermite_runner exceptions", "\"erveth7\" . 10.1.0.0/16");
	assert_has("set inet ermite_runner exceptions", "\"erveth7\" . 10.3.4.5");
	assert_has("set inet ermite_runner exceptions_port", "\"erveth7\" . 10.9.9.9 . 443");
	assert_has("set inet ermite_runner flow_limit", "\"erveth7\" ct count over 64");
	assert_has("set inet ermite_runner rate", "\"erveth7\" limit rate over 10 mbytes/second");
	assert_has("set netdev ermite_runner rate", "\"erveth7\" limit rate over 10 mbytes/second");
	assert_has("map inet ermite_runner loggers", "\"erveth7\" : jump log_erveth7");
	assert_has("map netdev ermite_runner loggers", "\"erveth7\" : jump log_erveth7");
	assert_has("chain inet ermite_runner log_erveth7", "log group 8 ");
	assert_has("chain netdev ermite_runner log_erveth7", "log group 8 ");
	assert_int_equal(members_log_group(7), 8);
	take_away("erveth7");
	assert_empty();
}

static void test_remove(void **)
{
	int before = fds_open();
	/* One that never was, on empty rules and twice. */
	take_away("erveth7");
	take_away("erveth7");
	assert_empty();
	struct member m = full_member();
	add(&m);
	take_away("erveth7");
	assert_empty();
	take_away("erveth7");
	assert_empty();
	/* With a gate, whose link is there still or has gone. */
	for (int gone = 0; gone < 2; gone++) {
		struct err e = ERR_INIT;
		add(&m);
		lab_run(-1, "ip link add erveth7 type veth peer name far");
		lab_expect(members_gate(-1, "erveth7", &e), 0, &e);
		assert_has("chain netdev ermite_runner erveth7",
			   "device \"erveth7\" priority -500; policy drop;");
		assert_true(members_gate(-1, "erveth7", &e) < 0);
		if (gone)
			lab_run(-1, "ip link del erveth7");
		take_away("erveth7");
		assert_empty();
		lab_run(-1, "ip link del erveth7 2>&1 || true");
	}
	/* Half of one, as a flush by hand leaves it. */
	add(&m);
	lab_run(-1,
		"nft flush set inet ermite_runner exceptions; nft flush set netdev ermite_runner owners; "
		"nft flush map inet ermite_runner loggers; nft delete chain inet ermite_runner log_erveth7;"
		"nft flush set inet ermite_runner refused");
	take_away("erveth7");
	assert_empty();
	assert_int_equal(fds_open(), before);
}

/* Of others whose names begin alike nothing goes. */
static void test_others_stay(void **)
{
	struct member m = full_member();
	struct member other = m;
	scoped_buf struct buf with_other = BUF_INIT(RULES_MAX);
	scoped_buf struct buf again = BUF_INIT(RULES_MAX);
	other.link = "erveth71";
	other.slot = 71;
	add(&other);
	(void)lab_read(-1, &with_other, "nft list ruleset");
	add(&m);
	take_away("erveth7");
	(void)lab_read(-1, &again, "nft list ruleset");
	assert_string_equal(buf_text(&with_other), buf_text(&again));
	take_away("erveth71");
	assert_empty();
}

static void test_errors(void **)
{
	struct err e = ERR_INIT;
	struct member_counts counts = {.flows = 77};
	const struct member m = plain_member("erveth7", 7);
	assert_int_equal(members_counts(-1, "erveth7", &counts, &e), -ENOENT);
	assert_int_equal(counts.flows, 77);
	assert_empty();
	lab_run(-1, "nft flush ruleset");
	assert_int_equal(members_add(-1, &m, &e), -ENOENT);
	assert_non_null(strstr(e.msg, "erveth7"));
	assert_true(members_remove(-1, "erveth7", &e) < 0);
}

/* Exceptions that lie in one another, twice the same, the most that there can be, and both edges of a prefix. */
static void test_exceptions(void **)
{
	static const struct {
		const char *allow, *inside, *outside;
	} rows[] = {
		{"10.0.0.0/8 10.1.0.0/16 10.1.2.3", "10.255.255.255", "11.0.0.0"},
		{"10.1.2.3 10.1.0.0/16 10.0.0.0/8", "10.0.0.0", "9.255.255.255"},
		{"10.1.2.3 10.1.2.3 10.1.2.3:53 10.1.2.3:53", "10.1.2.3", "10.1.2.4"},
		{"0.0.0.0/0 192.168.0.0/16", "255.255.255.255", NULL},
		{"0.0.0.0/0", "0.0.0.0", NULL},
		{"10.1.2.3:53 10.0.0.0/8 10.1.2.3:54", "10.1.2.3", NULL},
		{"128.0.0.0/1 10.0.0.0/31", "255.255.255.255", "10.0.0.2"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err e = ERR_INIT;
		const struct member m = plain_member("erveth0", 0);
		lab_expect(network_allow_parse(rows[i].allow, &allow, &e), 0, &e);
		lab_expect(members_add(-1, &m, &e), 0, &e);
		lab_run(-1, "nft get element inet ermite_runner exceptions '{ \"erveth0\" . %s }'",
			rows[i].inside);
		if (rows[i].outside)
			lab_run(-1,
				"! nft get element inet ermite_runner exceptions '{ \"erveth0\" . %s }' 2>&1",
				rows[i].outside);
		take_away("erveth0");
		assert_empty();
	}
	for (uint32_t i = 0; i < NETWORK_EXCEPTIONS_MAX; i++)
		allow.items[i] = (struct network_exception){{0x0a000000 + (i << 8), 24}, i % 2 ? 0 : 80};
	allow.n = NETWORK_EXCEPTIONS_MAX;
	struct member m = full_member();
	add(&m);
	take_away("erveth7");
	assert_empty();
}

static int note_link(void *data, const char *link)
{
	buf_fmt(data, "%s ", link);
	return strcmp(link, "stop") == 0 ? -ECANCELED : 0;
}

static void test_each(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf links = BUF_INIT(256);
	lab_expect(members_each(-1, note_link, &links, &e), 0, &e);
	assert_string_equal(buf_text(&links), "");
	const struct member m = plain_member("a", 0);
	const struct member longest = plain_member("0123456789abcde", 1);
	add(&m);
	add(&longest);
	lab_expect(members_each(-1, note_link, &links, &e), 0, &e);
	assert_non_null(strstr(buf_text(&links), "a "));
	assert_non_null(strstr(buf_text(&links), "0123456789abcde "));
	const struct member stop = plain_member("stop", 2);
	add(&stop);
	assert_int_equal(members_each(-1, note_link, &links, &e), -ECANCELED);
}

static uint64_t now_us(void)
{
	struct timespec t;
	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static const char *const others_set[] = {
	/* Table and set, and an element behind its link and its number. */
	"inet ermite_runner links",     "inet ermite_runner opened",   "inet ermite_runner refused",
	"netdev ermite_runner refused", "inet ermite_runner services", "inet ermite_runner exceptions",
	"netdev ermite_runner owners",
};
static const char *const others_tail[] = {
	"",
	"",
	" . 1",
	" . 2",
	" . 10.200.9.9 . udp . 53",
	" . 10.0.0.0/8",
	" . 02:00:00:00:00:01 . 10.200.9.9",
};

/* What others would have put there one by one. */
static void put_others(void)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
	for (size_t i = 0; i < sizeof(others_set) / sizeof(others_set[0]); i++) {
		buf_fmt(&rules, "add element %s {", others_set[i]);
		for (uint32_t slot = 8; slot < 8 + OTHERS; slot++)
			buf_fmt(&rules, " \"erveth%u\"%s,", slot, others_tail[i]);
		buf_str(&rules, " }\n");
	}
	lab_expect(nftext_load(-1, &rules, &e), 0, &e);
}

/* With many others it works, and takes no more than a few times as long. */
static void test_many(void **)
{
	struct err e = ERR_INIT;
	struct member m = full_member();
	uint64_t start = now_us();
	add(&m);
	take_away("erveth7");
	uint64_t alone = now_us() - start;
	put_others();
	start = now_us();
	add(&m);
	take_away("erveth7");
	uint64_t among = now_us() - start;
	if (among > 4 * alone + 50000)
		fail_msg("%llu us alone, %llu us among others", (unsigned long long)alone,
			 (unsigned long long)among);
	scoped_buf struct buf each = BUF_INIT(1 << 16);
	lab_expect(members_each(-1, note_link, &each, &e), 0, &e);
	size_t n = 0;
	for (const char *p = buf_text(&each); (p = strchr(p, ' ')); p++)
		n++;
	assert_int_equal(n, OTHERS);
}

/* As two keepers do it. */
static int come_and_go(const char *link, uint32_t slot)
{
	struct host h = HOST_INIT;
	struct member m = full_member();
	struct err e = ERR_INIT;
	m.link = link;
	m.slot = slot;
	int r = host_open(&h, &e);
	for (int i = 0; i < 2 * TURNS && r == 0; i++) {
		scoped_fd int lock = -1;
		r = gateway_lock(&h, &lock, &e);
		if (r == 0)
			r = i % 2 == 0 ? members_add(-1, &m, &e) : members_remove(-1, link, &e);
	}
	host_close(&h);
	if (r < 0)
		print_error("%s: %s\n", link, e.msg);
	return r < 0;
}

static void test_two_at_once(void **)
{
	pid_t pids[2];
	for (uint32_t i = 0; i < 2; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0)
			_exit(come_and_go(i == 0 ? "erveth0" : "erveth1", i));
	}
	for (int i = 0; i < 2; i++) {
		int status = -1;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	assert_empty();
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_what_is_added, setup),
		cmocka_unit_test_setup(test_remove, setup),
		cmocka_unit_test_setup(test_others_stay, setup),
		cmocka_unit_test_setup(test_errors, setup),
		cmocka_unit_test_setup(test_exceptions, setup),
		cmocka_unit_test_setup(test_each, setup),
		cmocka_unit_test_setup(test_many, setup),
		cmocka_unit_test_setup(test_two_at_once, setup),
	};
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	buf_done(&empty);
	return failed;
}
