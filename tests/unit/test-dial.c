#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/scope.h"
#include "fds.h"
#include "net/dial.h"
#include "net/resolvers.h"
#include "spec/message.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const struct cidr own = {0x0ac80000, 16}; /* 10.200.0.0/16 */

/* "ADDRESS[%SCOPE] …" of all targets. */
static void describe(const struct dial_targets *targets, struct buf *ret)
{
	for (uint32_t i = 0; i < targets->n; i++) {
		char text[INET6_ADDRSTRLEN] = "";
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		memcpy(&v4, &targets->items[i].address, sizeof(v4));
		memcpy(&v6, &targets->items[i].address, sizeof(v6));
		bool is_v4 = v4.sin_family == AF_INET;
		assert_int_equal(ntohs(v4.sin_port), 53);
		assert_int_equal(targets->items[i].n, is_v4 ? sizeof(v4) : sizeof(v6));
		assert_non_null(inet_ntop(v4.sin_family, is_v4 ? (void *)&v4.sin_addr : (void *)&v6.sin6_addr,
					  text, sizeof(text)));
		buf_fmt(ret, "%s%s", i > 0 ? " " : "", text);
		if (!is_v4 && v6.sin6_scope_id)
			buf_fmt(ret, "%%%u", v6.sin6_scope_id);
	}
}

static void test_resolvers(void **)
{
	static const struct {
		const char *text, *targets, *notes;
	} rows[] = {
		{"", "127.0.0.1", ""},
		{"search example\noptions edns0\n", "127.0.0.1", ""},
		{"nameserver 192.0.2.1\n", "192.0.2.1", ""},
		{"nameserver 192.0.2.1", "192.0.2.1", ""},
		{"nameserver\t 192.0.2.1 \t\r\nnameserver 2001:db8::1\n", "192.0.2.1 2001:db8::1", ""},
		{"# nameserver 192.0.2.1\n;nameserver 192.0.2.2\nnameserver 192.0.2.3 # here\n", "192.0.2.3",
		 ""},
		{"nameserver 192.0.2.1\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n", "192.0.2.1 192.0.2.2",
		 ""},
		{"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\n",
		 "192.0.2.1 192.0.2.2 192.0.2.3", ""},
		{"nameserver fe80::1%lo\nnameserver fe80::1%7\n", "fe80::1%1 fe80::1%7", ""},
		{"nameserver fe80::1%no-such\n", "127.0.0.1", "name server fe80::1%no-such is no address\n"},
		{"nameserver 192.0.2.1%lo\n", "127.0.0.1", "name server 192.0.2.1%lo is no address\n"},
		{"nameserver ::ffff:192.0.2.1\n", "192.0.2.1", ""},
		{"nameserver 10.200.0.1\nnameserver 10.201.0.1\n", "10.201.0.1",
		 "name server 10.200.0.1 is an address of the sandboxes' own network\n"},
		{"nameserver ::ffff:10.200.3.1\n", "127.0.0.1",
		 "name server ::ffff:10.200.3.1 is an address of the sandboxes' own network\n"},
		{"nameserver dns.example\nnameserver \x1b[2J\n", "127.0.0.1",
		 "name server dns.example is no address\nname server \\x1b[2J is no address\n"},
		{"nameserver\nnameserver \nnameservers 192.0.2.1\n nameserver 192.0.2.2\n", "127.0.0.1",
		 "name server  is no address\n"},
		{"nameserver 1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1\n",
		 "127.0.0.1",
		 "name server 1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1 is "
		 "no "
		 "address\n"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		scoped_buf struct buf notes = BUF_INIT(1024);
		scoped_buf struct buf text = BUF_INIT(1024);
		struct dial_targets targets;
		dial_read_resolvers(rows[i].text, 53, &own, &targets, &notes);
		describe(&targets, &text);
		assert_string_equal(buf_text(&text), rows[i].targets);
		assert_string_equal(buf_text(&notes), rows[i].notes);
	}
}

static int listen_at(int family, int type, struct dial_targets *ret)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(family, type | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	bool is_v4 = family == AF_INET;
	assert_int_equal(bind(fd, is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6,
			      is_v4 ? sizeof(v4) : sizeof(v6)),
			 0);
	*ret = (struct dial_targets){.n = 1, .items[0].n = sizeof(struct sockaddr_storage)};
	assert_int_equal(getsockname(fd, (struct sockaddr *)&ret->items[0].address, &ret->items[0].n), 0);
	assert_true(type == SOCK_DGRAM || listen(fd, 8) == 0);
	return fd;
}

/* Has a DIAL answered; returns what dial_answer() does, and the answer. */
static int ask(const struct dial_targets *targets, uint32_t id, uint64_t count, uint64_t kind,
	       struct chan_message *ret)
{
	int ends[2];
	struct chan_message m = {.type = MESSAGE_DIAL, .id = id, .a = count, .b = kind};
	assert_int_equal(chan_pair(ends, NULL), 0);
	int r = dial_answer(targets, 42, ends[0], &m, NULL);
	if (r == 0) {
		assert_int_equal(chan_receive(ends[1], ret, NULL), 1);
		assert_int_equal(ret->type, MESSAGE_SOCKETS);
		assert_int_equal(ret->id, id);
		assert_int_equal(ret->a, 42);
		assert_int_equal(ret->b, kind);
	}
	fd_close(&ends[0]);
	fd_close(&ends[1]);
	return r;
}

static uint16_t local_port(int fd)
{
	struct sockaddr_in6 at = {0};
	socklen_t n = sizeof(at);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
	return ntohs(at.sin6_port);
}

static void test_udp(void **)
{
	static const int families[] = {AF_INET, AF_INET6};
	for (size_t f = 0; f < COUNT(families); f++) {
		int before = fds_open();
		struct dial_targets targets;
		struct chan_message m = {0};
		int server = listen_at(families[f], SOCK_DGRAM, &targets);
		assert_int_equal(ask(&targets, 0, MESSAGE_FDS_MAX, DIAL_UDP, &m), 0);
		assert_int_equal(m.n_fds, MESSAGE_FDS_MAX);
		for (uint32_t i = 0; i < m.n_fds; i++) {
			char byte = 0;
			assert_true(fcntl(m.fds[i], F_GETFL) & O_NONBLOCK);
			assert_int_equal(recv(m.fds[i], &byte, 1, 0), -1);
			assert_int_equal(write(m.fds[i], "q", 1), 1);
			assert_int_equal(recv(server, &byte, 1, 0), 1);
		}
		chan_close_fds(&m);
		fd_close(&server);
		assert_int_equal(fds_open(), before);
	}
}

/* Distinct ports over the whole upper half, in no order. */
static void test_ports(void **)
{
	enum { ROUNDS = 64, TOTAL = ROUNDS * MESSAGE_FDS_MAX };
	static uint8_t seen[65536];
	struct dial_targets targets;
	struct chan_message m = {0};
	int server = listen_at(AF_INET, SOCK_DGRAM, &targets);
	uint16_t least = UINT16_MAX;
	uint16_t most = 0;
	uint16_t last = 0;
	unsigned distinct = 0;
	unsigned near = 0;
	for (int i = 0; i < ROUNDS; i++) {
		assert_int_equal(ask(&targets, 0, MESSAGE_FDS_MAX, DIAL_UDP, &m), 0);
		for (uint32_t k = 0; k < m.n_fds; k++) {
			uint16_t port = local_port(m.fds[k]);
			distinct += seen[port]++ == 0;
			near += (uint16_t)(port - last) < 4;
			least = port < least ? port : least;
			most = port > most ? port : most;
			last = port;
		}
		chan_close_fds(&m);
	}
	/* 16 of 1024 are expected to repeat, 0.1 to be near each other. */
	assert_true(distinct >= TOTAL * 96 / 100);
	assert_true(near < 8);
	assert_true(least >= 32768 && most - least > 30000);
	fd_close(&server);
}

static void test_tcp(void **)
{
	int before = fds_open();
	struct dial_targets targets;
	struct chan_message m = {0};
	int server = listen_at(AF_INET6, SOCK_STREAM, &targets);
	assert_int_equal(ask(&targets, 0, 2, DIAL_TCP, &m), 0);
	assert_int_equal(m.n_fds, 2);
	for (int i = 0; i < 2; i++) {
		int fd = accept(server, NULL, NULL);
		assert_true(fd >= 0);
		fd_close(&fd);
	}
	chan_close_fds(&m);
	fd_close(&server);
	assert_int_equal(fds_open(), before);
}

static void test_refusals(void **)
{
	static const struct {
		uint32_t id;
		uint64_t count, kind;
		int result;
	} rows[] = {
		{0, 1, DIAL_UDP, 0},       {1, 1, DIAL_UDP, 0},         {UINT32_MAX, 1, DIAL_TCP, 0},
		{0, 0, DIAL_UDP, -EPROTO}, {0, 17, DIAL_UDP, -EPROTO},  {0, UINT64_MAX, DIAL_TCP, -EPROTO},
		{0, 1, 2, -EPROTO},        {0, 1, UINT64_MAX, -EPROTO}, {0, 1, UINT64_C(1) << 32, -EPROTO},
		{0, 16, DIAL_UDP, 0},
	};
	/* A broadcast address, to which nobody may connect without asking for it. */
	struct dial_targets targets = {.n = 1, .items[0].n = sizeof(struct sockaddr_in)};
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons(53), .sin_addr.s_addr = htonl(INADDR_BROADCAST)};
	memcpy(&targets.items[0].address, &at, sizeof(at));
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct chan_message m = {0};
		assert_int_equal(ask(&targets, rows[i].id, rows[i].count, rows[i].kind, &m), rows[i].result);
		assert_int_equal(m.n_fds, 0);
	}
}

static void put(int root, const char *name, const char *text)
{
	(void)unlinkat(root, name, 0);
	scoped_fd int fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, text, strlen(text), NULL), 0);
}

static void check(struct resolvers *r, int changed, const char *targets)
{
	scoped_buf struct buf notes = BUF_INIT(1024);
	scoped_buf struct buf text = BUF_INIT(1024);
	uint32_t generation = r->generation;
	assert_int_equal(resolvers_check(r, &notes), changed);
	assert_int_equal(r->generation, generation + (uint32_t)changed);
	describe(&r->targets, &text);
	assert_string_equal(buf_text(&text), targets);
}

/* The file is a link to what would be another place without the root directory. */
static void test_following(void **)
{
	char path[] = "/tmp/ermite-test-XXXXXX";
	assert_non_null(mkdtemp(path));
	scoped_fd int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct resolvers r = {.root_fd = root, .own = own};
	check(&r, 1, "127.0.0.1");
	check(&r, 0, "127.0.0.1");
	assert_int_equal(mkdirat(root, "etc", 0755), 0);
	assert_int_equal(mkdirat(root, "stub", 0755), 0);
	put(root, "stub/one", "nameserver 192.0.2.1\n");
	assert_int_equal(symlinkat("/stub/../../stub/one", root, "etc/resolv.conf"), 0);
	check(&r, 1, "192.0.2.1");
	check(&r, 0, "192.0.2.1");
	put(root, "stub/one", "# new\nnameserver 192.0.2.1\n");
	check(&r, 0, "192.0.2.1");
	put(root, "stub/one", "nameserver 192.0.2.2\nnameserver 192.0.2.1\n");
	check(&r, 1, "192.0.2.2 192.0.2.1");
	put(root, "etc/new", "nameserver 192.0.2.3\n");
	assert_int_equal(renameat(root, "etc/new", root, "etc/resolv.conf"), 0);
	check(&r, 1, "192.0.2.3");
	assert_int_equal(unlinkat(root, "etc/resolv.conf", 0), 0);
	assert_int_equal(mkfifoat(root, "etc/resolv.conf", 0644), 0);
	check(&r, 1, "127.0.0.1");
	scoped_fd int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(file_remove_tree(tmp, strrchr(path, '/') + 1, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_resolvers), cmocka_unit_test(test_udp),
		cmocka_unit_test(test_ports),     cmocka_unit_test(test_tcp),
		cmocka_unit_test(test_refusals),  cmocka_unit_test(test_following),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
