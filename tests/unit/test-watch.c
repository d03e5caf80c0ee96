/* Needs root. A keeper's watch over a host of the test's own. Every mending opens the gateway's lock, by which the test
 * counts them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/scope.h"
#include "fds.h"
#include "net-lab.h"
#include "net/gateway.h"
#include "net/watch.h"

enum { NOTES_MAX = 16384, WAIT_MS = 5000, QUIET_MS = 120 };

static struct host host = {-1, -1, -1};
static struct watch_plan plan;
static int beyond = -1;
static int gateway = -1;
static int lock_notes = -1; /* tells when the lock is opened */
static struct loop *loop;
static struct source *timer;
static struct source *counter;
static struct watch *watch;
static struct buf said = {.max = NOTES_MAX};
static const char *awaited; /* a text */
static int mends, awaited_mends;
static bool timed_out;

static void on_warning(void *data, const char *sentence)
{
	assert_ptr_equal(data, &said);
	assert_null(strchr(sentence, '\n'));
	buf_fmt(&said, "%s\n", sentence);
	if (awaited && strstr(sentence, awaited))
		loop_stop(loop);
}

static int on_timer(void *, struct err *)
{
	timed_out = true;
	loop_stop(loop);
	return 0;
}

static int on_lock(void *, int fd, uint32_t, struct err *)
{
	_Alignas(struct inotify_event) char events[4096];
	ssize_t n = read(fd, events, sizeof(events));
	mends += n > 0 ? (int)((size_t)n / sizeof(struct inotify_event)) : 0;
	if (awaited_mends > 0 && mends >= awaited_mends)
		loop_stop(loop);
	return 0;
}

static void run(uint64_t ms)
{
	struct err e = ERR_INIT;
	timed_out = false;
	lab_expect(loop_arm(timer, ms, &e), 0, &e);
	lab_expect(loop_run(loop, &e), 0, &e);
}

static void run_until_said(const char *text)
{
	awaited = text;
	run(WAIT_MS);
	awaited = NULL;
	if (timed_out)
		fail_msg("not \"%s\" but %s", text, buf_text(&said));
}

static void run_until_mended(int n)
{
	awaited_mends = mends + n;
	run(WAIT_MS);
	awaited_mends = 0;
	assert_false(timed_out);
}

/* The watch begins, and has had its first look. */
static void start_watch(void)
{
	struct err e = ERR_INIT;
	lab_expect(watch_start(&plan, loop, &watch, &e), 0, &e);
	run_until_mended(1);
	assert_string_equal(buf_text(&said), "");
	mends = 0;
}

static int setup(void **)
{
	struct err e = ERR_INIT;
	scoped_buf struct buf notes = BUF_INIT(NOTES_MAX);
	scoped_fd int lock = -1;
	lab_enter();
	beyond = lab_way_out();
	lab_expect(host_open(&host, &e), 0, &e);
	const struct gateway_plan gateway_plan = {.network = LAB_NETWORK, .store_fd = host.run};
	lab_expect(gateway_lock(&host, &lock, &e), 0, &e);
	lab_expect(gateway_ensure(&host, &gateway_plan, &gateway, &notes, &e), 0, &e);
	fd_close(&lock);
	loop = loop_new();
	assert_non_null(loop);
	lab_expect(loop_add_timer(loop, on_timer, NULL, &timer, &e), 0, &e);
	lock_notes = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	assert_true(inotify_add_watch(lock_notes, HOST_RUN_DIR "/gateway.lock", IN_OPEN) >= 0);
	lab_expect(loop_add_fd(loop, lock_notes, EPOLLIN, on_lock, NULL, &counter, &e), 0, &e);
	plan = (struct watch_plan){
		.host = &host, .network = LAB_NETWORK, .gateway = gateway, .warn = on_warning, .data = &said};
	start_watch();
	return 0;
}

static int teardown(void **)
{
	watch_end(watch);
	watch = NULL;
	loop_free(loop);
	buf_done(&said);
	host_close(&host);
	fd_close(&lock_notes);
	fd_close(&gateway);
	fd_close(&beyond);
	return 0;
}

static const char intro[] = "something changed the host's network under the sandboxes; mended:\n";

/* A change that concerns nobody is looked at once; looking wakes nobody, and without changes nothing happens. */
static void test_quiet(void **)
{
	run(QUIET_MS);
	assert_int_equal(mends, 0);
	lab_run(-1, "ip link add one type veth peer name two; nft add table inet another");
	run_until_mended(1);
	run(QUIET_MS);
	run(QUIET_MS);
	assert_int_equal(mends, 1);
	assert_string_equal(buf_text(&said), "");
}

/* What is mended is said, and the mending's own changes are looked at without an end to it. */
static void test_mended(void **)
{
	static const struct {
		const char *command, *said;
	} rows[] = {
		{"nft flush ruleset", "the table inet ermite_runner of the host was loaded\n"},
		{"nft flush chain inet ermite_runner postrouting",
		 "the table inet ermite_runner of the host was loaded\n"},
		{"ip link del erup", "the link erup was made\n"},
		{"sysctl -qw net.ipv4.ip_forward=0", "net.ipv4.ip_forward was turned on; it stays on\n"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char wanted[256];
		buf_clear(&said);
		(void)snprintf(wanted, sizeof(wanted), "%s%s", intro, rows[i].said);
		lab_run(-1, "%s", rows[i].command);
		run_until_said("the ");
		run(QUIET_MS);
		assert_string_equal(buf_text(&said), wanted);
	}
	mends = 0;
	run(QUIET_MS);
	assert_int_equal(mends, 0);
}

/* So is what happened before the watch began. */
static void test_before(void **)
{
	struct err e = ERR_INIT;
	watch_end(watch);
	watch = NULL;
	lab_run(-1, "nft flush ruleset");
	lab_expect(watch_start(&plan, loop, &watch, &e), 0, &e);
	run_until_said("was loaded");
}

static void test_address(void **)
{
	lab_run(-1, "ip addr add 44.1.2.3/32 dev out0");
	run_until_mended(1);
	lab_run(gateway, "nft get element inet ermite_runner host '{ 44.1.2.3 }'");
	assert_string_equal(buf_text(&said), "");
}

/* Of two keepers one mends, and says so. */
static void test_two(void **)
{
	struct err e = ERR_INIT;
	struct watch *second = NULL;
	char wanted[256];
	lab_expect(watch_start(&plan, loop, &second, &e), 0, &e);
	run_until_mended(1);
	lab_run(-1, "nft flush ruleset");
	run_until_mended(2);
	run(QUIET_MS);
	(void)snprintf(wanted, sizeof(wanted), "%sthe table inet ermite_runner of the host was loaded\n",
		       intro);
	assert_string_equal(buf_text(&said), wanted);
	watch_end(second);
}

static void test_foreign(void **)
{
	static const char add[] = "nft 'table inet wall { chain onward { type filter hook forward priority "
				  "0; policy drop; } ; }'";
	lab_run(-1, "%s", add);
	run_until_said("chain onward of table inet wall ");
	/* Once, until it is another. */
	buf_clear(&said);
	mends = 0;
	lab_run(-1, "ip link add one type veth peer name two");
	run_until_mended(1);
	assert_string_equal(buf_text(&said), "");
	lab_run(-1, "nft delete table inet wall");
	run_until_mended(1);
	assert_string_equal(buf_text(&said), "");
	lab_run(-1, "%s", add);
	run_until_said("chain onward of table inet wall ");
}

/* What cannot be mended is said and tried again, until it can. */
static void test_failure(void **)
{
	lab_run(-1,
		"for i in $(seq 250); do for j in 1 2 3; do echo addr add 45.0.$j.$i/32 dev lo; done; done |"
		"ip -batch -");
	run_until_said("more than 512 addresses");
	buf_clear(&said);
	lab_run(-1, "ip addr flush dev lo; nft flush ruleset");
	run_until_said("was loaded");
	assert_null(strstr(buf_text(&said), "512"));
}

static void test_errors(void **)
{
	struct err e = ERR_INIT;
	struct watch *second = NULL;
	int before = fds_open();
	lab_expect(watch_start(&plan, loop, &second, &e), 0, &e);
	watch_end(second);
	watch_end(NULL);
	assert_int_equal(fds_open(), before);
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_quiet, setup, teardown),
		cmocka_unit_test_setup_teardown(test_mended, setup, teardown),
		cmocka_unit_test_setup_teardown(test_before, setup, teardown),
		cmocka_unit_test_setup_teardown(test_address, setup, teardown),
		cmocka_unit_test_setup_teardown(test_two, setup, teardown),
		cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
		cmocka_unit_test_setup_teardown(test_failure, setup, teardown),
		cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
