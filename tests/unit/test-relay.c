/* Needs root: the relay is started as the keeper does it, and isolates itself. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "guard/isolate.h"
#include "io/chan.h"
#include "io/child.h"
#include "net/dial.h"
#include "net/relay/relay.h"
#include "spec/message.h"

#define TEST_UID   987655
#define WAIT_MS    10000
#define QUIET_MS   200
#define BULK_BYTES 8000000

/* What is around the relay: the keeper, the sandbox and the target are the test itself. */
struct lab {
	struct child relay;
	int channel, server;
	struct sockaddr_in entry; /* where the sandbox connects to */
	struct dial_targets targets;
};

static int listen_local(struct sockaddr_in *ret)
{
	socklen_t n = sizeof(*ret);
	*ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)ret, sizeof(*ret)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &n), 0);
	assert_int_equal(listen(fd, 64), 0);
	return fd;
}

static void lab_start(struct lab *l, const struct relay_config *config)
{
	struct sockaddr_in target;
	int ends[2];
	scoped_fd int config_fd = -1;
	scoped_fd int listener = listen_local(&l->entry);
	l->server = listen_local(&target);
	l->targets = (struct dial_targets){.n = 1, .items[0].n = sizeof(target)};
	memcpy(&l->targets.items[0].address, &target, sizeof(target));
	assert_int_equal(chan_pair(ends, NULL), 0);
	l->channel = ends[0];
	scoped_fd int far = ends[1];
	assert_int_equal(file_memfd("config", config, sizeof(*config), &config_fd, NULL), 0);
	const char *const arguments[] = {"ermite-relay", NULL};
	const int fds[RELAY_FDS] = {-1, -1, STDERR_FILENO, config_fd, far, listener};
	const struct child_plan plan = isolate_plan("/proc/self/exe", arguments, fds, RELAY_FDS);
	assert_int_equal(child_start(&plan, &l->relay, NULL), 0);
}

/* The relay ends by itself when the keeper closes the channel. */
static void lab_stop(struct lab *l)
{
	struct child_end end = {.status = -1};
	fd_close(&l->channel);
	fd_close(&l->server);
	assert_int_equal(child_wait(&l->relay, WAIT_MS, &end, NULL), 0);
	assert_int_equal(end.signal, 0);
	assert_int_equal(end.status, 0);
}

static struct relay_config usual(void)
{
	struct relay_config c;
	relay_config_init(&c);
	c.uid = TEST_UID;
	c.guest = INADDR_LOOPBACK;
	return c;
}

static bool readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 1;
}

static int connect_guest(const struct lab *l, uint32_t from)
{
	struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&l->entry, sizeof(l->entry)), 0);
	return fd;
}

static void answer_dial(const struct lab *l, const struct dial_targets *targets)
{
	struct chan_message m;
	assert_true(readable(l->channel, WAIT_MS));
	assert_int_equal(chan_receive(l->channel, &m, NULL), 1);
	assert_int_equal(m.type, MESSAGE_DIAL);
	assert_int_equal(m.a, 1);
	assert_int_equal(m.b, DIAL_TCP);
	assert_int_equal(dial_answer(targets, 0, l->channel, &m, NULL), 0);
}

/* A connection through the relay: both its ends. */
static void open_through(const struct lab *l, int *ret_guest, int *ret_target)
{
	*ret_guest = connect_guest(l, INADDR_LOOPBACK);
	answer_dial(l, &l->targets);
	assert_true(readable(l->server, WAIT_MS));
	*ret_target = accept(l->server, NULL, NULL);
	assert_true(*ret_target >= 0);
}

/* Sends n bytes and the end from one while the other reads; both block never for long. */
static void send_all(int from, int to, size_t n)
{
	static uint8_t chunk[100000];
	static uint8_t got[65536];
	size_t sent = 0;
	size_t received = 0;
	for (size_t i = 0; i < sizeof(chunk); i++)
		chunk[i] = (uint8_t)(i * 7 % 251);
	if (n == 0)
		assert_int_equal(shutdown(from, SHUT_WR), 0);
	for (;;) {
		struct pollfd p[] = {{.fd = from, .events = sent < n ? POLLOUT : 0},
				     {.fd = to, .events = POLLIN}};
		assert_true(poll(p, 2, WAIT_MS) > 0);
		if (p[0].revents & POLLOUT) {
			size_t at = sent % sizeof(chunk);
			size_t most = sizeof(chunk) - at < n - sent ? sizeof(chunk) - at : n - sent;
			ssize_t k = send(from, chunk + at, most, MSG_DONTWAIT);
			assert_true(k > 0);
			sent += (size_t)k;
			if (sent == n)
				assert_int_equal(shutdown(from, SHUT_WR), 0);
		}
		if (p[1].revents == 0)
			continue;
		ssize_t k = recv(to, got, sizeof(got), 0);
		assert_true(k >= 0);
		if (k == 0)
			break;
		for (size_t i = 0; i < (size_t)k; i++)
			if (got[i] != chunk[(received + i) % sizeof(chunk)])
				fail_msg("byte %zu is another", received + i);
		received += (size_t)k;
	}
	assert_int_equal(received, n);
}

/* Each way has an end of its own: the second transfer begins when the first way is shut. */
static void test_half_close(void **)
{
	struct lab l;
	struct relay_config config = usual();
	lab_start(&l, &config);
	for (int i = 0; i < 4; i++) {
		int guest = -1;
		int target = -1;
		open_through(&l, &guest, &target);
		send_all(i % 2 ? guest : target, i % 2 ? target : guest, i < 2 ? BULK_BYTES : 0);
		send_all(i % 2 ? target : guest, i % 2 ? guest : target, BULK_BYTES);
		fd_close(&guest);
		fd_close(&target);
	}
	lab_stop(&l);
}

static void expect_reset(int fd)
{
	char byte;
	assert_true(readable(fd, WAIT_MS));
	assert_int_equal(recv(fd, &byte, 1, 0), -1);
	assert_int_equal(errno, ECONNRESET);
}

static void reset(int *fd)
{
	const struct linger none = {.l_onoff = 1};
	assert_int_equal(setsockopt(*fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none)), 0);
	fd_close(fd);
}

static void test_broken(void **)
{
	struct lab l;
	struct relay_config config = usual();
	int guest = -1;
	int target = -1;
	lab_start(&l, &config);
	open_through(&l, &guest, &target);
	reset(&target);
	expect_reset(guest);
	fd_close(&guest);
	open_through(&l, &guest, &target);
	reset(&guest);
	expect_reset(target);
	fd_close(&target);
	/* No socket, then one that nobody listens for. */
	const struct dial_targets nothing = {0};
	guest = connect_guest(&l, INADDR_LOOPBACK);
	answer_dial(&l, &nothing);
	expect_reset(guest);
	fd_close(&guest);
	fd_close(&l.server);
	guest = connect_guest(&l, INADDR_LOOPBACK);
	answer_dial(&l, &l.targets);
	expect_reset(guest);
	fd_close(&guest);
	lab_stop(&l);
}

static void test_only_the_guest(void **)
{
	struct lab l;
	struct relay_config config = usual();
	char byte;
	lab_start(&l, &config);
	int other = connect_guest(&l, INADDR_LOOPBACK + 1);
	assert_true(readable(other, WAIT_MS));
	assert_true(recv(other, &byte, 1, 0) <= 0);
	assert_false(readable(l.channel, QUIET_MS));
	fd_close(&other);
	lab_stop(&l);
}

static void test_limit(void **)
{
	struct lab l;
	struct relay_config config = usual();
	config.connections_max = 2;
	lab_start(&l, &config);
	int guests[3], targets[3];
	open_through(&l, &guests[0], &targets[0]);
	open_through(&l, &guests[1], &targets[1]);
	guests[2] = connect_guest(&l, INADDR_LOOPBACK);
	assert_false(readable(l.channel, QUIET_MS));
	fd_close(&guests[0]);
	fd_close(&targets[0]);
	answer_dial(&l, &l.targets);
	targets[2] = accept(l.server, NULL, NULL);
	assert_true(targets[2] >= 0);
	for (int i = 1; i < 3; i++) {
		send_all(guests[i], targets[i], 1000);
		fd_close(&guests[i]);
		fd_close(&targets[i]);
	}
	lab_stop(&l);
}

static void test_deadlines(void **)
{
	struct lab l;
	struct relay_config config = usual();
	config.idle_ms = config.connect_ms = QUIET_MS;
	int guest = -1;
	int target = -1;
	lab_start(&l, &config);
	open_through(&l, &guest, &target);
	expect_reset(guest);
	expect_reset(target);
	fd_close(&guest);
	fd_close(&target);
	/* The keeper does not answer; its answer of later serves another. */
	guest = connect_guest(&l, INADDR_LOOPBACK);
	expect_reset(guest);
	fd_close(&guest);
	answer_dial(&l, &l.targets);
	lab_stop(&l);
}

/* The value of a line of /proc/PID/status. */
static void status_of(pid_t pid, const char *name, char *ret, size_t size)
{
	char path[64];
	char text[8192];
	(void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	assert_true(file_read_text(AT_FDCWD, path, text, sizeof(text), NULL) > 0);
	const char *at = strstr(text, name);
	assert_non_null(at);
	at += strlen(name);
	at += strspn(at, ": \t");
	(void)snprintf(ret, size, "%.*s", (int)strcspn(at, "\n"), at);
}

static void test_posture(void **)
{
	static const struct {
		const char *name, *value;
	} rows[] = {
		{"\nUid", "987655\t987655\t987655\t987655"},
		{"\nGid", "987655\t987655\t987655\t987655"},
		{"\nGroups", " "},
		{"\nCapInh", "0000000000000000"},
		{"\nCapPrm", "0000000000000000"},
		{"\nCapEff", "0000000000000000"},
		{"\nCapBnd", "0000000000000000"},
		{"\nCapAmb", "0000000000000000"},
		{"\nNoNewPrivs", "1"},
		{"\nSeccomp", "2"},
	};
	struct lab l;
	struct relay_config config = usual();
	int guest = -1;
	int target = -1;
	lab_start(&l, &config);
	open_through(&l, &guest, &target);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char value[256];
		status_of(l.relay.pid, rows[i].name, value, sizeof(value));
		if (strcmp(value, rows[i].value) != 0 && strspn(value, " ") != strlen(value))
			fail_msg("%s: \"%s\"", rows[i].name + 1, value);
	}
	fd_close(&guest);
	fd_close(&target);
	lab_stop(&l);
}

int main(int, char *arguments[])
{
	if (geteuid() != 0)
		return 77; /* namespaces and addresses of the test's own need root */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_half_close), cmocka_unit_test(test_broken),
		cmocka_unit_test(test_limit),      cmocka_unit_test(test_only_the_guest),
		cmocka_unit_test(test_deadlines),  cmocka_unit_test(test_posture),
	};
	/* The relay is this program too, started by another name. */
	if (strcmp(arguments[0], "ermite-relay") == 0)
		_exit(relay_run());
	return cmocka_run_group_tests(tests, NULL, NULL);
}
