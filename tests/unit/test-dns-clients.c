/* The sandbox's side of the forwarder: its connections, and what is written down. Needs root: the forwarder isolates
 * itself as it always does. */
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "dns-lab.h"
#include "io/chan.h"
#include "net/dns/state.h"
#include "spec/message.h"
#include "spec/refusal.h"

static struct lab lab;
static struct lab_message message, kept;

/* The connection is closed, in whatever way. */
static void expect_closed(int fd)
{
	char byte;
	if (!lab_readable(&lab, fd, 3000))
		fail_msg("the connection is still open");
	ssize_t n = read(fd, &byte, 1);
	assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
}

static void test_connections(void **)
{
	int clients[17];
	lab_init(&lab);
	lab_open(&lab);
	for (int i = 0; i < 16; i++) {
		clients[i] = lab_client(LAB_GUEST, SOCK_STREAM);
		/* One after the other, so that it is clear which is the oldest. */
		lab_ask(clients[i], SOCK_STREAM, (uint16_t)i, "a.test");
		lab_asked(&lab, 0, &message);
		lab_make_public(&message);
		lab_answer(&lab, 0, &message);
		lab_expect(&lab, clients[i], SOCK_STREAM, (uint16_t)i, DNS_NOERROR, 1);
	}
	/* For the oldest something is being asked, so the one after it goes. */
	lab_ask(clients[0], SOCK_STREAM, 20, "b.test");
	lab_asked(&lab, 0, &message);
	kept = message;
	clients[16] = lab_client(LAB_GUEST, SOCK_STREAM);
	lab_ask(clients[16], SOCK_STREAM, 21, "c.test");
	lab_asked(&lab, 0, &message);
	expect_closed(clients[1]);
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, clients[16], SOCK_STREAM, 21, DNS_NOERROR, 1);
	lab_make_public(&kept);
	lab_answer(&lab, 0, &kept);
	lab_expect(&lab, clients[0], SOCK_STREAM, 20, DNS_NOERROR, 1);
	for (int i = 2; i < 16; i++)
		assert_false(lab_readable(&lab, clients[i], 0));
	for (int i = 0; i < 17; i++)
		close(clients[i]);
	lab_close(&lab, 0);
}

static void test_all_connections_wait(void **)
{
	int clients[17];
	char name[32];
	lab_init(&lab);
	lab.config.udp_ms = 3000;
	lab.config.question_ms = 3000;
	lab_open(&lab);
	for (int i = 0; i < 17; i++) {
		lab_name((unsigned)i, name);
		clients[i] = lab_client(LAB_GUEST, SOCK_STREAM);
		lab_ask(clients[i], SOCK_STREAM, (uint16_t)i, name);
		if (i < 16)
			lab_asked(&lab, 0, &message);
	}
	assert_false(lab_readable(&lab, lab.udp[0], QUIET_MS));
	/* Once one of them has its answer, it makes room. */
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, clients[15], SOCK_STREAM, 15, DNS_NOERROR, 1);
	expect_closed(clients[15]);
	lab_asked(&lab, 0, &message);
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, clients[16], SOCK_STREAM, 16, DNS_NOERROR, 1);
	for (int i = 0; i < 17; i++)
		close(clients[i]);
	lab_close(&lab, 0);
}

static void test_connection_times(void **)
{
	lab_init(&lab);
	lab.config.connection_ms = 500;
	lab_open(&lab);
	uint64_t start = clock_boot_ms();
	int idle = lab_client(LAB_GUEST, SOCK_STREAM);
	int begun = lab_client(LAB_GUEST, SOCK_STREAM);
	int body = lab_client(LAB_GUEST, SOCK_STREAM);
	assert_int_equal(write(begun, "", 1), 1);
	assert_int_equal(write(body, "\0\20abc", 5), 5);
	expect_closed(begun);
	expect_closed(body);
	uint64_t took = clock_boot_ms() - start;
	assert_true(took >= lab.config.message_ms && took < lab.config.connection_ms);
	expect_closed(idle);
	assert_true(clock_boot_ms() - start >= lab.config.connection_ms);
	close(idle);
	close(begun);
	close(body);
	lab_close(&lab, 0);
}

static void test_pipeline(void **)
{
	uint8_t p[200];
	size_t n = 0;
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_STREAM);
	for (uint16_t i = 0; i < 3; i++) {
		char name[32];
		lab_name(i, name);
		size_t length = lab_question(p + n + 2, i, name, DNS_A, 0);
		p[n] = 0;
		p[n + 1] = (uint8_t)length;
		n += 2 + length;
	}
	/* In two parts, with the cut inside of a message; then the client sends no more. */
	assert_int_equal(write(client, p, n - 5), n - 5);
	lab_asked(&lab, 0, &kept);
	lab_asked(&lab, 0, &message);
	assert_int_equal(write(client, p + n - 5, 5), 5);
	assert_int_equal(shutdown(client, SHUT_WR), 0);
	/* The answers come as they are there. */
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, client, SOCK_STREAM, 1, DNS_NOERROR, 1);
	lab_make_public(&kept);
	lab_answer(&lab, 0, &kept);
	lab_expect(&lab, client, SOCK_STREAM, 0, DNS_NOERROR, 1);
	lab_asked(&lab, 0, &message);
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, client, SOCK_STREAM, 2, DNS_NOERROR, 1);
	expect_closed(client);
	close(client);
	lab_close(&lab, 0);
}

/* A client that asks for more at once than its own end takes gets all of it as it reads. */
static void test_slow_reader(void **)
{
	enum { COUNT = 2000 };
	static uint8_t p[COUNT * 32];
	int small = 4096;
	size_t n = 0;
	lab_init(&lab);
	lab.config.log = false;
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_STREAM);
	assert_int_equal(setsockopt(client, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	for (uint16_t i = 0; i < COUNT; i++) {
		size_t length = lab_question(p + n + 2, i, "a.test", DNS_AAAA, 0);
		p[n] = 0;
		p[n + 1] = (uint8_t)length;
		n += 2 + length;
	}
	assert_int_equal(write(client, p, n), n);
	for (uint16_t i = 0; i < COUNT; i++)
		lab_expect(&lab, client, SOCK_STREAM, i, DNS_NOERROR, 0);
	assert_int_equal(lab.counts->questions, COUNT);
	close(client);
	lab_close(&lab, 0);
}

/* A client that asks for much and reads nothing loses its connection, and nobody else notices. */
static void test_reader_that_does_not(void **)
{
	static const uint8_t content[250];
	int small = 4096;
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	int deaf = lab_client(LAB_GUEST, SOCK_STREAM);
	assert_int_equal(setsockopt(deaf, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	/* The forwarder's own end takes a few MiB, depending on the machine; then it stops reading. */
	for (int round = 0; round < 200; round++) {
		char name[32];
		lab_name((unsigned)round, name);
		uint8_t p[2 + 64];
		size_t n = lab_question(p + 2, 1, name, DNS_A, 0);
		p[0] = 0;
		p[1] = (uint8_t)n;
		if (send(deaf, p, 2 + n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ||
		    !lab_readable(&lab, lab.udp[0], QUIET_MS))
			break;
		lab_asked(&lab, 0, &message);
		message.p[2] |= 0x82;
		message.p[11] = 0;
		lab_make_answer(&message, DNS_A, LAB_PUBLIC, 4, 0);
		message.p[2] |= 2;
		lab_answer(&lab, 0, &message);
		int connection = lab_asked_tcp(&lab, 0, &message);
		lab_make_answer(&message, 16, content, sizeof(content), 240);
		lab_answer_tcp(connection, &message);
		close(connection);
		assert_true(round < 199);
	}
	lab_ask(client, SOCK_DGRAM, 9, "other.test");
	lab_asked(&lab, 0, &message);
	lab_make_public(&message);
	lab_answer(&lab, 0, &message);
	lab_expect(&lab, client, SOCK_DGRAM, 9, DNS_NOERROR, 1);
	close(deaf);
	close(client);
	lab_close(&lab, 0);
}

static void test_strangers(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int stranger = lab_client(LAB_STRANGER, SOCK_DGRAM);
	int connection = lab_client(LAB_STRANGER, SOCK_STREAM);
	lab_ask(stranger, SOCK_DGRAM, 1, "a.test");
	expect_closed(connection);
	assert_false(lab_readable(&lab, stranger, QUIET_MS));
	assert_false(lab_readable(&lab, lab.udp[0], 0));
	assert_int_equal(lab.counts->dropped, 2);
	close(stranger);
	close(connection);
	lab_close(&lab, 0);
}

/* A message of the kernel's packet log: a SYN to 10.1.1.1:443 that was refused as private. */
static size_t make_log_message(uint8_t *p)
{
	static const uint8_t packet[] = {0x45, 0, 0,  40, 0, 0, 0,    0,    64, 6,    0, 0, 10, 200,
					 0,    2, 10, 1,  1, 1, 0x9c, 0x40, 1,  0xbb, 0, 0, 0,  0};
	struct nlmsghdr head = {.nlmsg_type = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET};
	const uint8_t middle[] = {2,
				  0,
				  0,
				  0, /* nfgenmsg */
				  8,
				  0,
				  NFULA_PACKET_HDR,
				  0,
				  8,
				  0,
				  0,
				  0,
				  8,
				  0,
				  NFULA_MARK,
				  0,
				  0,
				  0,
				  0,
				  REFUSAL_PRIVATE,
				  4 + sizeof(packet),
				  0,
				  NFULA_PAYLOAD,
				  0};
	head.nlmsg_len = (uint32_t)(sizeof(head) + sizeof(middle) + sizeof(packet));
	memcpy(p, &head, sizeof(head));
	memcpy(p + sizeof(head), middle, sizeof(middle));
	memcpy(p + sizeof(head) + sizeof(middle), packet, sizeof(packet));
	return head.nlmsg_len;
}

static void test_flows(void **)
{
	uint8_t p[256];
	size_t n = make_log_message(p);
	lab_init(&lab);
	lab_open(&lab);
	const char *const words[] = {"\"kind\":\"flow\",\"source\":\"10.200.0.2\",\"address\":\"10.1.1.1\","
				     "\"port\":443,\"protocol\":\"tcp\",\"verdict\":\"refused\","
				     "\"rule\":\"private\"}",
				     NULL};
	assert_int_equal(write(lab.refused, p, n), n);
	assert_int_equal(write(lab.refused, p, n), n);
	assert_int_equal(write(lab.refused, p, n - 20), n - 20);
	lab_expect_log(&lab, words);
	assert_false(lab_readable(&lab, lab.log, QUIET_MS));
	p[n - 5] ^= 1; /* another port */
	assert_int_equal(write(lab.refused, p, n), n);
	lab_expect_log(&lab, (const char *const[]){"\"kind\":\"flow\"", "\"port\":442", NULL});
	assert_int_equal(lab.counts->log_lost, 0);
	lab_close(&lab, 0);
}

static void test_full_log(void **)
{
	lab_init(&lab);
	lab_open(&lab);
	int client = lab_client(LAB_GUEST, SOCK_DGRAM);
	assert_true(fcntl(lab.log, F_SETPIPE_SZ, 4096) == 4096);
	for (uint16_t i = 0; i < 60; i++) {
		uint8_t p[64];
		size_t n = lab_question(p, i, "a.test", DNS_AAAA, 0);
		assert_int_equal(write(client, p, n), n);
		lab_expect(&lab, client, SOCK_DGRAM, i, DNS_NOERROR, 0);
	}
	/* A question is counted last. */
	while (lab.counts->questions < 60)
		(void)sched_yield();
	assert_true(lab.counts->log_lost > 0 && lab.counts->log_lost < 60);
	for (uint64_t i = lab.counts->log_lost; i < 60; i++)
		lab_expect_log(&lab, (const char *const[]){"{\"time\":", "\"ms\":0}", NULL});
	assert_false(lab_readable(&lab, lab.log, 0));
	close(client);
	lab_close(&lab, 0);
}

static void test_keeper_that_errs(void **)
{
	static const uint32_t types[] = {MESSAGE_START, MESSAGE_DIAL, MESSAGE_RESOLVERS};
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		lab_init(&lab);
		lab_open(&lab);
		struct chan_message m = {.type = types[i], .b = DIAL_TARGETS_MAX + 1};
		assert_int_equal(chan_send(lab.channel, &m, NULL), 0);
		lab_close(&lab, 1);
	}
}

static long try_socket(int)
{
	return socket(AF_INET, SOCK_DGRAM, 0);
}

static long try_connect(int fd)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	return connect(fd, (struct sockaddr *)&to, sizeof(to));
}

static long try_bind(int fd)
{
	return bind(fd, NULL, 0);
}

static long try_dup2(int fd)
{
	return dup2(fd, DNS_FD_UDP);
}

static long try_dup(int fd)
{
	return dup(fd);
}

static long try_fcntl(int fd)
{
	return fcntl(fd, F_DUPFD, 0);
}

static long try_close(int fd)
{
	return syscall(SYS_close, fd);
}

static long try_write(int fd)
{
	return write(fd, "", 0);
}

static long try_sendto(int fd)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	return sendto(fd, "", 0, 0, (struct sockaddr *)&to, sizeof(to));
}

static long try_sendmsg(int fd)
{
	struct msghdr m = {0};
	return sendmsg(fd, &m, 0);
}

static long try_sendmmsg(int fd)
{
	struct mmsghdr m = {0};
	return sendmmsg(fd, &m, 1, 0);
}

/* What a forwarder that somebody else has taken over could try, by descriptor. */
static void test_filter(void **)
{
	static const struct {
		const char *name;
		long (*attempt)(int fd);
		int fd;
		bool killed;
	} rows[] = {
		{"socket", try_socket, 0, true},
		{"connect", try_connect, 20, true},
		{"bind", try_bind, 20, true},
		{"dup2", try_dup2, 20, true},
		{"dup", try_dup, 20, true},
		{"fcntl", try_fcntl, 20, true},
		{"close the configuration", try_close, DNS_FD_CONFIG, true},
		{"close the channel", try_close, DNS_FD_CHANNEL, true},
		{"close UDP", try_close, DNS_FD_UDP, true},
		{"close TCP", try_close, DNS_FD_TCP, true},
		{"close the log", try_close, DNS_FD_LOG, true},
		{"close 10", try_close, 10, false},
		{"close 11", try_close, 11, false},
		{"close 15", try_close, 15, false},
		{"close 16", try_close, 16, false},
		{"close 300", try_close, 300, false},
		{"close 511", try_close, 511, false},
		{"close 512", try_close, 512, true},
		{"write to UDP", try_write, DNS_FD_UDP, true},
		{"write to netlink", try_write, DNS_FD_REFUSED, true},
		{"write to the log", try_write, DNS_FD_LOG, false},
		{"write to a resolver", try_write, 20, false},
		{"sendto UDP", try_sendto, DNS_FD_UDP, false},
		{"sendto a resolver", try_sendto, 20, true},
		{"sendmsg the channel", try_sendmsg, DNS_FD_CHANNEL, false},
		{"sendmsg UDP", try_sendmsg, DNS_FD_UDP, true},
		{"sendmsg a resolver", try_sendmsg, 20, true},
		{"sendmmsg UDP", try_sendmmsg, DNS_FD_UDP, true},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			/* Nothing but the filter looks at the numbers: most are not open. */
			(void)signal(SIGPIPE, SIG_IGN);
			if (unshare(CLONE_NEWNS) < 0 || dns_isolate(987654, NULL) < 0)
				_exit(1);
			(void)rows[i].attempt(rows[i].fd);
			(void)syscall(SYS_exit_group, 0);
		}
		int status = -1;
		assert_int_equal(waitpid(pid, &status, 0), pid);
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
		if (killed != rows[i].killed || (!killed && status != 0))
			fail_msg("%s: status %#x", rows[i].name, (unsigned)status);
	}
}

int main(void)
{
	if (geteuid() != 0)
		return 77;
	lab_enter();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connections),      cmocka_unit_test(test_all_connections_wait),
		cmocka_unit_test(test_connection_times), cmocka_unit_test(test_pipeline),
		cmocka_unit_test(test_slow_reader),      cmocka_unit_test(test_reader_that_does_not),
		cmocka_unit_test(test_strangers),        cmocka_unit_test(test_flows),
		cmocka_unit_test(test_full_log),         cmocka_unit_test(test_keeper_that_errs),
		cmocka_unit_test(test_filter),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
