/* Needs root. The gateway of a host of the test's own: made, used again, half lost, mended and removed. */
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/gateway.h"
#include "net/members.h"
#include "net/ruleset.h"
#include "sys/nft.h"

#define NAME "/run/ermite-runner/gateway"
#define CONF NAME ".conf"

enum { NOTES_MAX = 8192 };

static struct host host = {-1, -1, -1};
static int beyond = -1;
static int other_store = -1;
static struct gateway_plan plan;

static int open_directory(const char *path)
{
	(void)mkdir(path, 0700);
	return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int setup(void **)
{
	struct err e = ERR_INIT;
	lab_enter();
	beyond = lab_way_out();
	lab_expect(host_open(&host, &e), 0, &e);
	other_store = open_directory("/run/other");
	plan = (struct gateway_plan){.network = LAB_NETWORK, .store_fd = open_directory("/run/store")};
	return 0;
}

static int teardown(void **)
{
	host_close(&host);
	fd_close(&beyond);
	fd_close(&other_store);
	fd_close(&plan.store_fd);
	return 0;
}

/* The gateway, and what is said about the making of it. */
static int ensure(struct buf *notes)
{
	struct err e = ERR_INIT;
	int netns = -1;
	scoped_fd int lock = -1;
	lab_expect(gateway_lock(&host, &lock, &e), 0, &e);
	lab_expect(gateway_ensure(&host, &plan, &netns, notes, &e), 0, &e);
	return netns;
}

static void add_member(int netns)
{
	struct err e = ERR_INIT;
	struct config config;
	const struct network_allow allow = {0};
	const struct member m = {.config = &config, .allow = &allow, .link = "erveth0"};
	config_defaults(&config);
	lab_expect(members_add(netns, &m, &e), 0, &e);
}

static ino_t number_of(int fd)
{
	struct stat st;
	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static int count_rules(void)
{
	const struct nft_table table = {.family = NFPROTO_INET, .name = RULESET_TABLE};
	struct err e = ERR_INIT;
	struct nft_batch *b = NULL;
	lab_expect(nft_open(-1, &b, &e), 0, &e);
	int n = nft_count_rules(b, &table, &e);
	nft_close(b);
	return n;
}

static const char *const whole_outside[] = {
	",UP,LOWER_UP> mtu 1400 ",
	"10.200.0.0/16 via 169.254.10.1 dev erup ",
	"169.254.10.1 dev erup lladdr 02:65:72:00:00:01 PERMANENT",
	"forwarding 1\n",
};

static const char *const whole_inside[] = {
	",UP,LOWER_UP> mtu 1400 ",
	"default via 169.254.10.2 dev up proto static onlink",
	"default via 169.254.10.2 dev up table 77 ",
	"default via 169.254.10.2 dev up table 78 ",
	"prohibit 10.200.0.0/16 table 77 ",
	"169.254.10.2 dev up lladdr 02:65:72:00:00:02 PERMANENT",
	"forwarding 1\n",
	"elements = { 5.5.5.1 }",
};

static void assert_side(int netns, const char *link, const char *const *wanted, size_t n, const char *more)
{
	scoped_buf struct buf text = BUF_INIT(1 << 16);
	(void)lab_read(netns, &text,
		       "ip addr show dev %s; ip route show table all; ip neigh show nud permanent;"
		       "read on < /proc/sys/net/ipv4/ip_forward; echo forwarding $on; %s",
		       link, more);
	for (size_t i = 0; i < n; i++)
		if (!strstr(buf_text(&text), wanted[i]))
			fail_msg("no \"%s\" in %s", wanted[i], buf_text(&text));
	assert_null(strstr(buf_text(&text), "inet6"));
}

/* Everything on the host and in the gateway is as it should be. */
static void assert_whole(int netns)
{
	assert_side(-1, "erup", whole_outside, sizeof(whole_outside) / sizeof(whole_outside[0]), "");
	assert_side(netns, "up", whole_inside, sizeof(whole_inside) / sizeof(whole_inside[0]),
		    "nft get element inet ermite_runner host '{ 5.5.5.1 }'");
	assert_int_equal(count_rules(), RULESET_HOST_RULES);
}

static void assert_nothing(void)
{
	assert_int_equal(count_rules(), 0);
	lab_run(-1, "set -e; ! ip link show erup; [ \"$(ls -A /run/ermite-runner)\" = gateway.lock ];"
		    "! grep " NAME
		    " /proc/self/mountinfo; [ -z \"$(ip route show 10.200.0.0/16)$(ip rule | grep erup)\" ]");
}

static void test_make(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	int before = fds_open();
	lab_run(-1, "ip link set out0 mtu 1400");
	int netns = ensure(&notes);
	assert_true(fcntl(netns, F_GETFD) & FD_CLOEXEC);
	assert_string_equal(buf_text(&notes), "net.ipv4.ip_forward was turned on; it stays on\n");
	assert_whole(netns);
	assert_true(lab_shows(-1, "cat " CONF, "network 10.200.0.0/16, directory "));
	/* The second one uses it. */
	buf_clear(&notes);
	add_member(netns);
	int second = ensure(&notes);
	assert_int_equal(number_of(netns), number_of(second));
	assert_string_equal(buf_text(&notes), "");
	fd_close(&second);
	assert_int_equal(gateway_look(&host, plan.store_fd, &second), GATEWAY_OURS);
	assert_int_equal(number_of(netns), number_of(second));
	fd_close(&second);
	assert_int_equal(gateway_look(&host, other_store, &second), GATEWAY_NONE);
	assert_int_equal(second, -1);
	fd_close(&netns);
	for (int i = 0; i < 2; i++) {
		lab_expect(gateway_remove(&host, &e), 0, &e);
		assert_nothing();
		assert_int_equal(gateway_look(&host, plan.store_fd, &second), GATEWAY_NONE);
	}
	assert_int_equal(fds_open(), before);
	assert_true(lab_shows(-1, "sysctl net.ipv4.ip_forward", "= 1"));
}

/* From a mount namespace in which the host's directories are hidden. */
static void test_own_mounts(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	assert_int_equal(unshare(CLONE_NEWNS), 0);
	assert_int_equal(mount("tmpfs", "/run", "tmpfs", 0, "mode=755"), 0);
	scoped_fd int netns = ensure(&notes);
	assert_int_equal(access(NAME, F_OK), -1);
	scoped_fd int named = openat(host.run, "gateway", O_RDONLY | O_CLOEXEC);
	assert_int_equal(number_of(named), number_of(netns));
	fd_close(&named);
	lab_expect(gateway_remove(&host, &e), 0, &e);
	assert_int_equal(faccessat(host.run, "gateway", F_OK, 0), -1);
}

static void test_others(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	scoped_fd int netns = ensure(&notes);
	scoped_fd int none = -1;
	const struct gateway_plan first = plan;
	const struct gateway_plan network = {{0x0ad20000u, 16}, plan.store_fd};
	const struct gateway_plan store = {plan.network, other_store};
	add_member(netns);
	assert_int_equal(gateway_ensure(&host, &network, &none, &notes, &e), -EBUSY);
	assert_non_null(strstr(e.msg, "network 10.200.0.0/16"));
	assert_non_null(strstr(e.msg, "network 10.210.0.0/16"));
	assert_int_equal(gateway_ensure(&host, &store, &none, &notes, &e), -EBUSY);
	assert_int_equal(none, -1);
	lab_run(-1, "ip link set out0 mtu 1400");
	fd_close(&none);
	none = ensure(&notes);
	assert_int_equal(number_of(none), number_of(netns));
	fd_close(&none);
	/* Once the members have gone it is made for the others. */
	lab_expect(members_remove(netns, "erveth0", &e), 0, &e);
	plan = network;
	scoped_fd int second = ensure(&notes);
	assert_int_not_equal(number_of(second), number_of(netns));
	assert_true(lab_shows(-1, "nft list table inet ermite_runner", "10.210.0.0/16"));
	assert_false(lab_shows(-1, "ip route", "10.200."));
	plan = store;
	scoped_fd int third = ensure(&notes);
	assert_int_not_equal(number_of(second), number_of(third));
	assert_int_equal(gateway_look(&host, other_store, &none), GATEWAY_OURS);
	fd_close(&none);
	assert_int_equal(gateway_look(&host, first.store_fd, &none), GATEWAY_NONE);
	plan = first;
}

/* What a killed process, or somebody else, can leave, and what it looks like. */
static const struct {
	const char *command;
	enum gateway_state state;
} torn[] = {
	{"true", GATEWAY_OURS},
	{"rm " CONF, GATEWAY_TORN},
	{"mv " CONF " /run/ermite-runner/.gateway.conf.new", GATEWAY_TORN},
	{"umount " NAME, GATEWAY_TORN},
	{"umount " NAME "; rm " CONF, GATEWAY_TORN},
	{"umount " NAME "; rm " NAME, GATEWAY_TORN},
	{"umount " NAME "; rm " NAME " " CONF, GATEWAY_NONE},
	{"rm " CONF "; ip link del erup", GATEWAY_TORN},
	{"rm " CONF "; ip link del erup; nft flush ruleset; umount " NAME, GATEWAY_TORN},
	{"mount --bind " NAME " " NAME "; rm " CONF, GATEWAY_TORN},
	{": > " CONF, GATEWAY_NONE},
	{"ip link del erup", GATEWAY_OURS},
	{"nft delete table inet ermite_runner", GATEWAY_OURS},
	{"sysctl -qw net.ipv4.ip_forward=0", GATEWAY_OURS},
};

static void test_torn(void **)
{
	lab_run(-1, "ip link set out0 mtu 1400");
	for (size_t i = 0; i < sizeof(torn) / sizeof(torn[0]); i++) {
		struct err e = ERR_INIT;
		scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
		scoped_fd int netns = -1;
		for (int repair = 1; repair >= 0; repair--) {
			fd_close(&netns);
			netns = ensure(&notes);
			fd_close(&netns);
			lab_run(-1, "%s", torn[i].command);
			if (gateway_look(&host, plan.store_fd, &netns) != torn[i].state)
				fail_msg("%s", torn[i].command);
			fd_close(&netns);
			if (repair) {
				netns = ensure(&notes);
				assert_whole(netns);
			}
		}
		lab_expect(gateway_remove(&host, &e), 0, &e);
		assert_nothing();
	}
}

/* What goes wrong on a host, and what is said when it is mended. */
static const struct {
	bool inside;
	const char *command, *said;
} mends[] = {
	{false, "true", ""},
	{false, "nft flush ruleset", "the table inet ermite_runner of the host was loaded\n"},
	{false, "nft delete table inet ermite_runner",
	 "the table inet ermite_runner of the host was loaded\n"},
	{false, "nft flush chain inet ermite_runner forward",
	 "the table inet ermite_runner of the host was loaded\n"},
	{false, "nft flush chain inet ermite_runner postrouting",
	 "the table inet ermite_runner of the host was loaded\n"},
	{false,
	 "nft delete rule inet ermite_runner prerouting handle "
	 "$(nft -a list chain inet ermite_runner prerouting | sed -n 's/.*drop # handle //p' | head -n1)",
	 "the table inet ermite_runner of the host was loaded\n"},
	{false, "ip link del erup", "the link erup was made\n"},
	{true, "ip link del dev up", "the link erup was made\n"},
	{false, "sysctl -qw net.ipv4.ip_forward=0", "net.ipv4.ip_forward was turned on; it stays on\n"},
	{false, "nft flush ruleset; ip link del erup",
	 "the table inet ermite_runner of the host was loaded\nthe link erup was made\n"},
	/* What is set again each time, without a word. */
	{false, "ip link set erup down", ""},
	{true, "ip link set dev up down", ""},
	{false, "ip link set erup mtu 1300", ""},
	{false, "ip route del 10.200.0.0/16", ""},
	{false, "ip neigh flush dev erup nud permanent", ""},
	{false, "sysctl -qw net.ipv6.conf.erup.disable_ipv6=0", ""},
	{true, "ip route del default", ""},
	{true, "ip neigh flush dev up nud permanent", ""},
	{true, "nft flush set inet ermite_runner host", ""},
	/* What is not ours stays as it is. */
	{false, "nft add table inet another; ip link add x type veth peer name y", ""},
};

static void mend(int netns, const char *said)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf mended = BUF_INIT(NOTES_MAX);
	lab_expect(gateway_mend(netns, &plan.network, &mended, &e), 0, &e);
	assert_string_equal(buf_text(&mended), said);
}

static void test_mend(void **)
{
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	lab_run(-1, "ip link set out0 mtu 1400");
	scoped_fd int netns = ensure(&notes);
	int before = fds_open();
	for (size_t i = 0; i < sizeof(mends) / sizeof(mends[0]); i++) {
		lab_run(mends[i].inside ? netns : -1, "%s", mends[i].command);
		mend(netns, mends[i].said);
		assert_whole(netns);
		mend(netns, "");
	}
	assert_int_equal(fds_open(), before);
	assert_true(lab_shows(-1, "nft list tables", "inet another"));
}

/* The host's addresses are in the set that denies them, however many, and no others. */
static void test_addresses(void **)
{
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	scoped_fd int netns = ensure(&notes);
	static const char has[] = "nft get element inet ermite_runner host '{ %s }' 2>&1";
	lab_run(netns, has, "5.5.5.1");
	lab_run(-1, "ip addr add 44.1.2.3/32 dev out0; ip addr add 44.2.0.1/24 dev lo");
	mend(netns, "");
	lab_run(netns, has, "44.1.2.3");
	lab_run(netns, has, "44.2.0.1");
	lab_run(netns, has, "44.2.0.255");
	lab_run(-1, "ip addr del 44.1.2.3/32 dev out0;"
		    "for i in $(seq 250); do echo addr add 45.0.0.$i/32 dev lo;"
		    "echo addr add 45.0.1.$i/32 dev lo; done | ip -batch -");
	mend(netns, "");
	lab_run(netns, "! nft get element inet ermite_runner host '{ 44.1.2.3 }' 2>&1");
	lab_run(netns, has, "5.5.5.1");
	lab_run(netns, has, "45.0.1.250");
}

/* Tables of others that block: one line, until it is allowed with the command that the line tells. */
static void test_foreign(void **)
{
	static const char quiet[] = "table ip quiet {\n"
				    "	chain one { type filter hook forward priority 0; policy accept; }\n"
				    "	chain two { type filter hook input priority 0; policy drop; }\n"
				    "}\n";
	static const char loud[] = "table inet wall {\n"
				   "	chain onward { type filter hook forward priority 0; policy drop; }\n"
				   "}\n";
	static const char docker[] =
		"table ip filter {\n"
		"	chain DOCKER-USER { }\n"
		"	chain FORWARD {\n"
		"		type filter hook forward priority 0; policy drop; jump DOCKER-USER\n"
		"	}\n"
		"}\n";
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	int netns = ensure(&notes);
	fd_close(&netns);
	buf_clear(&notes);
	gateway_foreign(&notes);
	assert_string_equal(buf_text(&notes), "");
	lab_run(-1, "nft '%s%s'", quiet, loud);
	gateway_foreign(&notes);
	const char *command = strstr(buf_text(&notes), "it is allowed: ");
	assert_non_null(command);
	assert_non_null(strstr(buf_text(&notes), "chain onward of table inet wall "));
	assert_ptr_equal(strchr(buf_text(&notes), '\n') + 1, buf_text(&notes) + notes.n);
	lab_run(-1, "%s", command + strlen("it is allowed: "));
	buf_clear(&notes);
	gateway_foreign(&notes);
	assert_string_equal(buf_text(&notes), "");
	/* Docker's has a chain for what others want. */
	lab_run(-1, "nft '%s'", docker);
	gateway_foreign(&notes);
	assert_non_null(strstr(buf_text(&notes), "chain FORWARD of table ip filter "));
	assert_non_null(strstr(buf_text(&notes), "iptables -I DOCKER-USER -i erup -j ACCEPT; "));
}

static void test_lock(void **)
{
	struct err e = ERR_INIT;
	scoped_fd int lock = -1;
	scoped_fd int other = -1;
	lab_expect(gateway_lock(&host, &lock, &e), 0, &e);
	other = openat(host.run, "gateway.lock", O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), -1);
	assert_int_equal(errno, EWOULDBLOCK);
	fd_close(&lock);
	assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_make, setup, teardown),
		cmocka_unit_test_setup_teardown(test_own_mounts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_others, setup, teardown),
		cmocka_unit_test_setup_teardown(test_torn, setup, teardown),
		cmocka_unit_test_setup_teardown(test_mend, setup, teardown),
		cmocka_unit_test_setup_teardown(test_addresses, setup, teardown),
		cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
