/* Needs root: makes network namespaces for the host, the gateway and a sandbox. The programs are this one, too, started
 * by other names. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "io/child.h"
#include "net/dial.h"
#include "net/relay/relay.h"
#include "net/service.h"
#include "net/services.h"
#include "spec/id.h"
#include "spec/message.h"
#include "spec/network.h"
#include "sys/netlink.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define WAIT_MS     15000
#define SLOT        3
#define LINK        "erveth3"
#define FORGE_PORT  8443

/* One helper under test. */
struct watcher {
	struct loop *loop;
	struct source *timer;
	unsigned starts, warnings, dials;
	uint64_t sockets;
	char sentence[700];
	unsigned stop_after_warnings; /* 0: never */
};

static int stop_loop(void *data, struct err *)
{
	struct watcher *w = data;
	loop_stop(w->loop);
	return 0;
}

static int no_config(void *, int *ret_fd, struct err *e)
{
	return file_memfd("config", "", 0, ret_fd, e);
}

static int count_dial(void *data, int channel, const struct chan_message *m, struct err *e)
{
	struct watcher *w = data;
	const struct dial_targets none = {0};
	w->dials++;
	w->sockets += m->a;
	return dial_answer(&none, 1, channel, m, e);
}

static int count_start(void *data, const char *, pid_t, struct err *)
{
	struct watcher *w = data;
	w->starts++;
	return 0;
}

static void count_warning(void *data, const char *sentence)
{
	struct watcher *w = data;
	w->warnings++;
	(void)snprintf(w->sentence, sizeof(w->sentence), "%s", sentence);
	if (w->warnings == w->stop_after_warnings)
		loop_stop(w->loop);
}

static void run(struct watcher *w, uint64_t ms)
{
	assert_int_equal(loop_arm(w->timer, ms, NULL), 0);
	assert_int_equal(loop_run(w->loop, NULL), 0);
}

/* Runs a stand-in by its name until it was warned of so often, or for ms. */
static void run_stand_in(const char *name, unsigned warnings, uint64_t ms, struct watcher *w)
{
	int before = fds_open();
	static const int fds[] = {-1, -1, STDERR_FILENO, -1, -1};
	scoped_loop struct loop *loop = loop_new();
	struct service *s = NULL;
	*w = (struct watcher){.loop = loop, .stop_after_warnings = warnings};
	const struct service_plan plan = {.name = name,
					  .id = "er00000000",
					  .path = "/proc/self/exe",
					  .fds = fds,
					  .n_fds = COUNT(fds),
					  .configure = no_config,
					  .dial = count_dial,
					  .started = count_start,
					  .warn = count_warning,
					  .data = w};
	assert_int_equal(loop_add_timer(loop, stop_loop, w, &w->timer, NULL), 0);
	assert_int_equal(service_start(&plan, loop, &s, NULL), 0);
	run(w, ms);
	service_end(s);
	loop_free(ptr_steal(&loop));
	assert_int_equal(fds_open(), before);
}

/* Five times at once, then not for ten seconds. */
static void test_dies_at_once(void **)
{
	struct watcher w;
	uint64_t begin = clock_boot_ms();
	run_stand_in("dies", 6, WAIT_MS, &w);
	assert_int_equal(w.starts, 1 + SERVICE_STARTS_MAX);
	assert_int_equal(w.warnings, 6);
	assert_non_null(
		strstr(w.sentence, "dies ended with status 7; it happens often, the next start is in "));
	assert_true(clock_boot_ms() - begin < SERVICE_WINDOW_MS);
}

static void test_starts_again_later(void **)
{
	struct watcher w;
	uint64_t begin = clock_boot_ms();
	run_stand_in("dies", 7, 2 * SERVICE_WINDOW_MS, &w);
	assert_int_equal(w.starts, 3 + SERVICE_STARTS_MAX);
	assert_true(clock_boot_ms() - begin >= SERVICE_WINDOW_MS - 1000);
}

static void test_misbehaves(void **)
{
	static const struct {
		const char *name, *sentence;
	} rows[] = {
		{"talks",
		 "talks was ended: it sent STARTED with 0 descriptors and 0 bytes; it was started anew"},
		{"stuffs",
		 "stuffs was ended: it sent DIAL with 0 descriptors and 4 bytes; it was started anew"},
		{"gives",
		 "gives was ended: it sent DIAL with 1 descriptors and 0 bytes; it was started anew"},
		{"begs", "begs was ended: DIAL for 17 sockets of kind 0; it was started anew"},
		{"babbles",
		 "babbles was ended: receive a message: it has not the form of one; it was started anew"},
		{"deaf", "deaf was ended: it does not read what it has asked for; it was started anew"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct watcher w;
		run_stand_in(rows[i].name, 1, WAIT_MS, &w);
		assert_string_equal(w.sentence, rows[i].sentence);
		assert_int_equal(w.starts, 2);
	}
}

/* What it asks for in a second and a half, in sockets, is what is allowed: not more, and not much less. */
static void test_asks_too_often(void **)
{
	struct watcher w;
	run_stand_in("greedy", 0, 1500, &w);
	assert_int_equal(w.warnings, 0);
	assert_in_range(w.sockets, SERVICE_SOCKETS_PER_S / 2, SERVICE_SOCKETS_PER_S * 7 / 4);
}

static void send_dial(uint64_t count, uint32_t bytes, int fd)
{
	struct chan_message m = {.type = MESSAGE_DIAL, .a = count, .n = bytes};
	m.n_fds = fd >= 0;
	m.fds[0] = fd;
	if (chan_send(SERVICE_FD_CHANNEL, &m, NULL) < 0)
		_exit(1);
}

/* What the stand-ins do, in the place of main(). */
static int stand_in(const char *name)
{
	struct chan_message m = {.type = MESSAGE_STARTED};
	if (strcmp(name, "dies") == 0)
		return 7;
	if (strcmp(name, "talks") == 0)
		(void)!chan_send(SERVICE_FD_CHANNEL, &m, NULL);
	if (strcmp(name, "stuffs") == 0)
		send_dial(1, 4, -1);
	if (strcmp(name, "gives") == 0)
		send_dial(1, 0, STDERR_FILENO);
	if (strcmp(name, "begs") == 0)
		send_dial(17, 0, -1);
	if (strcmp(name, "babbles") == 0)
		(void)!write(SERVICE_FD_CHANNEL, "x", 1);
	while (strcmp(name, "deaf") == 0)
		send_dial(1, 0, -1);
	while (strcmp(name, "greedy") == 0) {
		send_dial(MESSAGE_FDS_MAX, 0, -1);
		if (chan_receive(SERVICE_FD_CHANNEL, &m, NULL) != 1)
			return 1;
	}
	(void)chan_receive(SERVICE_FD_CHANNEL, &m, NULL);
	for (;;)
		(void)pause();
}

/* The whole: the test is keeper, resolvers, target and sandbox. */
struct lab {
	struct watcher watcher;
	struct config config;
	char root_path[32];
	int root, host_netns, gateway_netns, guest_netns;
	pid_t dns;
	int resolvers[2]; /* at 127.0.0.1 and 127.0.0.2 */
	unsigned asked[2];
	int question; /* the sandbox's socket */
	unsigned answers;
	struct source *sources[4];
};

static void ip(const char *a, const char *b, const char *c, const char *d, const char *e, const char *f)
{
	const char *const arguments[] = {"ip", a, b, c, d, e, f, NULL};
	assert_int_equal(child_run("/sbin/ip", arguments, STDERR_FILENO, NULL), 0);
}

static int new_netns(void)
{
	int fd = -1;
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	ip("link", "set", "lo", "up", NULL, NULL);
	assert_int_equal(netns_open(&fd, NULL), 0);
	return fd;
}

static void set_resolver(const struct lab *l, const char *address)
{
	char text[64];
	(void)snprintf(text, sizeof(text), "nameserver %s\n", address);
	assert_int_equal(file_replace(l->root, "resolv.conf", 0644, text, strlen(text), NULL), 0);
}

/* A program of ours is a link to this one, which knows by its name what it is. */
static void make_root(struct lab *l)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(n > 0);
	self[n] = '\0';
	(void)snprintf(l->root_path, sizeof(l->root_path), "/tmp/ermite-test-XXXXXX");
	assert_non_null(mkdtemp(l->root_path));
	l->root = open(l->root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(l->root >= 0);
	assert_int_equal(mkdirat(l->root, "etc", 0755), 0);
	assert_int_equal(symlinkat("/resolv.conf", l->root, "etc/resolv.conf"), 0);
	/* A name that only this root directory knows. */
	scoped_fd int hosts = openat(l->root, "etc/hosts", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	assert_true(hosts >= 0);
	assert_int_equal(file_write_all(hosts, "127.0.0.1 target.example\n", 25, NULL), 0);
	assert_int_equal(symlinkat(self, l->root, "ermite-dns"), 0);
	assert_int_equal(symlinkat(self, l->root, "ermite-relay"), 0);
	set_resolver(l, "127.0.0.1");
}

/* Says that there is no such name, whatever is asked. */
static int resolver_ready(void *data, int fd, uint32_t, struct err *)
{
	struct lab *l = data;
	uint8_t message[512];
	struct sockaddr_in from;
	socklen_t from_n = sizeof(from);
	ssize_t n = recvfrom(fd, message, sizeof(message), 0, (struct sockaddr *)&from, &from_n);
	assert_true(n > 12);
	message[2] |= 0x80;
	message[3] = 0x83;
	l->asked[fd == l->resolvers[1]]++;
	assert_int_equal(sendto(fd, message, (size_t)n, 0, (struct sockaddr *)&from, from_n), n);
	return 0;
}

static int answer_ready(void *data, int fd, uint32_t, struct err *)
{
	struct lab *l = data;
	uint8_t message[512];
	ssize_t n = recv(fd, message, sizeof(message), 0);
	/* 0 byte is what the connected socket says of an error: nobody listens for a moment. */
	if (n > 12 && (message[3] & 15) == 3) {
		l->answers++;
		loop_stop(l->watcher.loop);
	}
	return 0;
}

static int remember_dns(void *data, const char *name, pid_t pid, struct err *)
{
	struct lab *l = data;
	if (strcmp(name, "ermite-dns") == 0)
		l->dns = pid;
	l->watcher.starts++;
	return 0;
}

static void remember_warning(void *data, const char *sentence)
{
	struct lab *l = data;
	count_warning(&l->watcher, sentence);
}

static int open_resolver(uint32_t address)
{
	const struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(address)};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

/* A socket of the sandbox's network namespace, connected to a port of the gateway. */
static int guest_socket(const struct lab *l, int type, uint16_t port)
{
	const struct sockaddr_in to = {.sin_family = AF_INET,
				       .sin_port = htons(port),
				       .sin_addr.s_addr = htonl(slot_gateway(&l->config, SLOT))};
	assert_int_equal(netns_enter(l->guest_netns, NULL), 0);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	assert_int_equal(netns_enter(l->host_netns, NULL), 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

/* The link between gateway and sandbox, as the keeper makes it later than the listeners. */
static void make_link(const struct lab *l)
{
	char path[64];
	(void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), l->guest_netns);
	assert_int_equal(netns_enter(l->gateway_netns, NULL), 0);
	const char *const pair[] = {"ip", "link", "add", LINK, "type", "veth", "peer", "name", "inner", NULL};
	assert_int_equal(child_run("/sbin/ip", pair, STDERR_FILENO, NULL), 0);
	ip("link", "set", "inner", "netns", path, NULL);
	ip("address", "add", "10.200.0.13/30", "dev", LINK, NULL);
	ip("link", "set", LINK, "up", NULL, NULL);
	assert_int_equal(netns_enter(l->guest_netns, NULL), 0);
	ip("address", "add", "10.200.0.14/30", "dev", "inner", NULL);
	ip("link", "set", "inner", "up", NULL, NULL);
	assert_int_equal(netns_enter(l->host_netns, NULL), 0);
}

/* Asks until an answer comes. */
static void ask(struct lab *l)
{
	static uint8_t id;
	const uint8_t question[] = {0,   ++id, 1,   0,   0,   1, 0,   0,   0,   0,   0, 0, 7, 'e', 'x',
				    'a', 'm',  'p', 'l', 'e', 4, 't', 'e', 's', 't', 0, 0, 1, 0,   1};
	unsigned answers = l->answers;
	assert_int_equal(send(l->question, question, sizeof(question), 0), sizeof(question));
	run(&l->watcher, WAIT_MS);
	assert_int_equal(l->answers, answers + 1);
}

static void lab_watch(struct lab *l)
{
	struct loop *loop = l->watcher.loop;
	assert_int_equal(loop_add_timer(loop, stop_loop, &l->watcher, &l->watcher.timer, NULL), 0);
	for (size_t i = 0; i < 2; i++) {
		l->resolvers[i] = open_resolver(INADDR_LOOPBACK + (uint32_t)i);
		assert_int_equal(
			loop_add_fd(loop, l->resolvers[i], EPOLLIN, resolver_ready, l, &l->sources[i], NULL),
			0);
	}
	l->question = guest_socket(l, SOCK_DGRAM, 53);
	assert_int_equal(loop_add_fd(loop, l->question, EPOLLIN, answer_ready, l, &l->sources[2], NULL), 0);
}

static int target_ready(void *data, int fd, uint32_t, struct err *)
{
	struct lab *l = data;
	scoped_fd int connection = accept(fd, NULL, NULL);
	assert_true(connection >= 0);
	assert_int_equal(send(connection, "forge", 5, 0), 5);
	loop_stop(l->watcher.loop);
	return 0;
}

static void visit_forge(struct lab *l, int target)
{
	char text[16] = "";
	assert_int_equal(loop_add_fd(l->watcher.loop, target, EPOLLIN, target_ready, l, &l->sources[3], NULL),
			 0);
	int guest = guest_socket(l, SOCK_STREAM, 443);
	run(&l->watcher, WAIT_MS);
	assert_int_equal(recv(guest, text, sizeof(text), 0), 5);
	assert_string_equal(text, "forge");
	fd_close(&guest);
}

static int listen_forge(void)
{
	const struct sockaddr_in at = {.sin_family = AF_INET,
				       .sin_port = htons(FORGE_PORT),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static void lab_init(struct lab *l)
{
	*l = (struct lab){.host_netns = -1};
	config_defaults(&l->config);
	assert_int_equal(config_set(&l->config, "ERMITE_RUNNER_GUEST_FORGE", "1", NULL), 0);
	assert_int_equal(config_set(&l->config, "ERMITE_RUNNER_URL", "https://forge.example", NULL), 0);
	assert_int_equal(
		config_set(&l->config, "ERMITE_RUNNER_GUEST_FORGE_TARGET", "target.example:8443", NULL), 0);
	make_root(l);
	l->gateway_netns = new_netns();
	l->guest_netns = new_netns();
	l->host_netns = new_netns();
	l->watcher.loop = loop_new();
}

/* The host's name servers are replaced while it runs. */
static void swap_resolvers(struct lab *l)
{
	set_resolver(l, "127.0.0.2");
	uint64_t begin = clock_boot_ms();
	while (l->asked[1] == 0 && clock_boot_ms() - begin < WAIT_MS) {
		ask(l);
		run(&l->watcher, 100);
	}
	assert_true(l->asked[1] > 0);
	unsigned asked = l->asked[0];
	ask(l);
	assert_int_equal(l->asked[0], asked);
}

static void test_together(void **)
{
	struct lab l;
	struct services *s = NULL;
	struct dns_counts counts;
	lab_init(&l);
	int target = listen_forge();
	int log[2];
	assert_int_equal(pipe2(log, O_CLOEXEC), 0);
	const struct services_plan plan = {.config = &l.config,
					   .id = "er00000000",
					   .slot = SLOT,
					   .gateway_fd = l.gateway_netns,
					   .root_fd = l.root,
					   .log_fd = log[1],
					   .programs = l.root_path,
					   .started = remember_dns,
					   .warn = remember_warning,
					   .data = &l};
	struct err e = ERR_INIT;
	if (services_start(&plan, l.watcher.loop, &s, &e) < 0)
		fail_msg("%s", e.msg);
	assert_int_equal(l.watcher.starts, 2);
	make_link(&l);
	assert_int_equal(services_bind(s, LINK, NULL), 0);
	lab_watch(&l);
	ask(&l);
	assert_int_equal(l.asked[0], 1);
	visit_forge(&l, target);
	swap_resolvers(&l);

	assert_int_equal(kill(l.dns, SIGKILL), 0);
	l.watcher.stop_after_warnings = l.watcher.warnings + 1;
	run(&l.watcher, WAIT_MS);
	assert_string_equal(l.watcher.sentence, "ermite-dns was killed by signal 9; it was started anew");
	services_counts(s, &counts);
	uint64_t before = counts.questions;
	assert_true(before >= 3);
	ask(&l);
	services_counts(s, &counts);
	assert_int_equal(counts.questions, before + 1);

	services_end(s);
	loop_free(l.watcher.loop);
	(void)close(target);
	scoped_fd int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(file_remove_tree(tmp, strrchr(l.root_path, '/') + 1, NULL), 0);
}

int main(int, char *arguments[])
{
	if (geteuid() != 0)
		return 77; /* namespaces and addresses of the test's own need root */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_dies_at_once),       cmocka_unit_test(test_misbehaves),
		cmocka_unit_test(test_asks_too_often),     cmocka_unit_test(test_together),
		cmocka_unit_test(test_starts_again_later),
	};
	if (strcmp(arguments[0], "ermite-dns") == 0)
		_exit(dns_run());
	if (strcmp(arguments[0], "ermite-relay") == 0)
		_exit(relay_run());
	if (!strchr(arguments[0], '/'))
		_exit(stand_in(arguments[0]));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
