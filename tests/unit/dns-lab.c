#include "dns-lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/scope.h"
#include "guard/isolate.h"
#include "io/chan.h"
#include "net/dial.h"
#include "spec/message.h"

#define TEST_UID      987654
#define GATEWAY_PORT  5353
#define RESOLVER      0x7f000201u /* and the two behind it */
#define RESOLVER_PORT 5300
#define PATIENCE_MS   10000

static struct sockaddr_in address_of(uint32_t address, uint16_t port)
{
	return (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(address), .sin_port = htons(port)};
}

static int open_socket(uint32_t address, uint16_t port, int type)
{
	int on = 1;
	struct sockaddr_in at = address_of(address, port);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static int open_listener(uint32_t address, uint16_t port, int type)
{
	int fd = open_socket(address, port, type);
	if (type == SOCK_STREAM)
		assert_int_equal(listen(fd, 64), 0);
	return fd;
}

void lab_enter(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	assert_int_equal(unshare(CLONE_NEWNET), 0);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(ioctl(fd, SIOCGIFFLAGS, &request), 0);
	request.ifr_flags |= IFF_UP;
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
	close(fd);
}

void lab_init(struct lab *l)
{
	*l = (struct lab){.n_resolvers = LAB_RESOLVERS};
	dns_config_init(&l->config);
	l->config.uid = TEST_UID;
	l->config.guest = LAB_GUEST;
	l->config.gateway = LAB_GATEWAY;
	l->config.log = true;
	l->config.udp_ms = l->config.tcp_ms = l->config.message_ms = 150;
	l->config.question_ms = 900;
	l->config.connection_ms = 5000;
}

/* In the child: each of fds becomes DNS_FD_CONFIG and what follows it. */
static void run_forwarder(const int *fds)
{
	int away[DNS_FDS - DNS_FD_CONFIG];
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) < 0)
		_exit(90);
	for (int i = 0; i < DNS_FDS - DNS_FD_CONFIG; i++)
		away[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 100);
	for (int i = 0; i < DNS_FDS - DNS_FD_CONFIG; i++)
		if (dup2(away[i], DNS_FD_CONFIG + i) < 0)
			_exit(91);
	if (close_range(DNS_FDS, ~0U, 0) < 0)
		_exit(92);
	_exit(dns_run());
}

void lab_open(struct lab *l)
{
	int ends[2];
	int log[2];
	int refused[2];
	l->config.n_resolvers = l->n_resolvers;
	for (uint32_t i = 0; i < LAB_RESOLVERS; i++) {
		l->udp[i] = open_listener(RESOLVER + i, RESOLVER_PORT, SOCK_DGRAM);
		l->tcp[i] = open_listener(RESOLVER + i, RESOLVER_PORT, SOCK_STREAM);
	}
	assert_int_equal(chan_pair(ends, NULL), 0);
	assert_int_equal(pipe2(log, O_CLOEXEC), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, refused), 0);
	int config = memfd_create("config", MFD_CLOEXEC);
	assert_int_equal(write(config, &l->config, sizeof(l->config)), sizeof(l->config));
	int counts = memfd_create("counts", MFD_CLOEXEC);
	assert_int_equal(ftruncate(counts, sizeof(*l->counts)), 0);
	l->counts = mmap(NULL, sizeof(*l->counts), PROT_READ, MAP_SHARED, counts, 0);
	assert_ptr_not_equal(l->counts, MAP_FAILED);
	const int fds[] = {config,
			   ends[1],
			   open_listener(LAB_GATEWAY, GATEWAY_PORT, SOCK_DGRAM),
			   open_listener(LAB_GATEWAY, GATEWAY_PORT, SOCK_STREAM),
			   counts,
			   log[1],
			   refused[1]};
	l->pid = fork();
	assert_true(l->pid >= 0);
	if (l->pid == 0)
		run_forwarder(fds);
	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		close(fds[i]);
	l->channel = ends[0];
	l->log = log[0];
	l->refused = refused[0];
}

void lab_close(struct lab *l, int status)
{
	int ended = -1;
	close(l->channel);
	assert_int_equal(waitpid(l->pid, &ended, 0), l->pid);
	if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status)
		fail_msg("the forwarder ended with %#x", (unsigned)ended);
	close(l->log);
	close(l->refused);
	for (uint32_t i = 0; i < LAB_RESOLVERS; i++) {
		close(l->udp[i]);
		close(l->tcp[i]);
	}
	assert_int_equal(munmap(l->counts, sizeof(*l->counts)), 0);
}

/* Answers one DIAL. */
static void serve(struct lab *l)
{
	struct chan_message m;
	assert_int_equal(chan_receive(l->channel, &m, NULL), 1);
	assert_int_equal(m.type, MESSAGE_DIAL);
	assert_true(m.id < l->n_resolvers && m.a >= 1 && m.a <= MESSAGE_FDS_MAX && m.n_fds == 0);
	bool none = m.b == DIAL_UDP ? l->no_udp : l->no_tcp;
	struct sockaddr_in to = address_of(RESOLVER + l->first + m.id, RESOLVER_PORT);
	for (uint64_t i = 0; i < m.a && !none; i++) {
		int type = (m.b == DIAL_UDP ? SOCK_DGRAM : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK;
		int fd = socket(AF_INET, type, 0);
		assert_true(fd >= 0);
		assert_true(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 || errno == EINPROGRESS);
		m.fds[m.n_fds++] = fd;
	}
	m.type = MESSAGE_SOCKETS;
	m.a = l->generation;
	assert_int_equal(chan_send(l->channel, &m, NULL), 0);
	chan_close_fds(&m);
}

bool lab_readable(struct lab *l, int fd, int ms)
{
	uint64_t end = clock_boot_ms() + (uint64_t)ms;
	for (;;) {
		uint64_t now = clock_boot_ms();
		struct pollfd p[] = {{.fd = fd, .events = POLLIN}, {.fd = l->channel, .events = POLLIN}};
		int n = poll(p, 2, now < end ? (int)(end - now) : 0);
		assert_true(n >= 0);
		if (p[1].revents)
			serve(l);
		if (p[0].revents)
			return true;
		if (n == 0)
			return false;
	}
}

static void await(struct lab *l, int fd)
{
	if (!lab_readable(l, fd, PATIENCE_MS))
		fail_msg("nothing came on descriptor %d", fd);
}

void lab_change(struct lab *l, uint32_t generation, uint32_t first, uint32_t n)
{
	struct chan_message m = {.type = MESSAGE_RESOLVERS, .a = generation, .b = n};
	/* What was asked for before is answered before. */
	while (lab_readable(l, l->channel, 0))
		;
	l->generation = generation;
	l->first = first;
	l->n_resolvers = n;
	assert_int_equal(chan_send(l->channel, &m, NULL), 0);
}

int lab_client(uint32_t address, int type)
{
	struct sockaddr_in to = address_of(LAB_GATEWAY, GATEWAY_PORT);
	int fd = open_socket(address, 0, type);
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

size_t lab_question(uint8_t *p, uint16_t id, const char *name, uint16_t type, uint16_t edns)
{
	const uint8_t head[12] = {(uint8_t)(id >> 8), (uint8_t)id, 1, 0, 0, 1, [11] = edns > 0};
	const uint8_t opt[11] = {0, 0, 41, (uint8_t)(edns >> 8), (uint8_t)edns};
	memcpy(p, head, sizeof(head));
	size_t n = sizeof(head);
	while (*name) {
		size_t label = strcspn(name, ".");
		p[n++] = (uint8_t)label;
		memcpy(p + n, name, label);
		n += label;
		name += label + (name[label] == '.');
	}
	const uint8_t end[] = {0, (uint8_t)(type >> 8), (uint8_t)type, 0, 1};
	memcpy(p + n, end, sizeof(end));
	n += sizeof(end);
	memcpy(p + n, opt, sizeof(opt));
	return n + (edns > 0 ? sizeof(opt) : 0);
}

void lab_ask(int fd, int type, uint16_t id, const char *name)
{
	uint8_t p[2 + 512];
	size_t n = lab_question(p + 2, id, name, 1, 0);
	p[0] = (uint8_t)(n >> 8);
	p[1] = (uint8_t)n;
	if (type == SOCK_STREAM)
		assert_int_equal(write(fd, p, 2 + n), 2 + n);
	else
		assert_int_equal(write(fd, p + 2, n), n);
}

static void read_all(struct lab *l, int fd, uint8_t *p, size_t n)
{
	while (n > 0) {
		await(l, fd);
		ssize_t got = read(fd, p, n);
		if (got <= 0)
			fail_msg("the connection is closed");
		p += got;
		n -= (size_t)got;
	}
}

void lab_hear(struct lab *l, int fd, int type, struct lab_message *ret)
{
	struct sockaddr_in from = {0};
	socklen_t size = sizeof(from);
	if (type == SOCK_STREAM) {
		uint8_t length[2];
		read_all(l, fd, length, sizeof(length));
		ret->n = (size_t)length[0] << 8 | length[1];
		read_all(l, fd, ret->p, ret->n);
		return;
	}
	await(l, fd);
	ssize_t n = recvfrom(fd, ret->p, sizeof(ret->p), 0, (struct sockaddr *)&from, &size);
	assert_true(n >= 0);
	ret->n = (size_t)n;
	ret->from_port = ntohs(from.sin_port);
}

void lab_asked(struct lab *l, uint32_t i, struct lab_message *ret)
{
	lab_hear(l, l->udp[i], SOCK_DGRAM, ret);
	assert_true(ret->n >= 12);
}

int lab_asked_tcp(struct lab *l, uint32_t i, struct lab_message *ret)
{
	await(l, l->tcp[i]);
	int fd = accept4(l->tcp[i], NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	lab_hear(l, fd, SOCK_STREAM, ret);
	assert_true(ret->n >= 12);
	return fd;
}

void lab_make_answer(struct lab_message *m, uint16_t type, const void *content, size_t n, unsigned count)
{
	size_t end = 12;
	while (m->p[end] != 0)
		end += 1u + m->p[end];
	end += 5;
	m->p[2] = 0x81;
	m->p[3] = 0x80;
	m->p[6] = (uint8_t)(count >> 8);
	m->p[7] = (uint8_t)count;
	m->p[11] = 0;
	const uint8_t head[] = {0xc0, 12, (uint8_t)(type >> 8), (uint8_t)type, 0, 1, 0, 0,
				0,    60, (uint8_t)(n >> 8),    (uint8_t)n};
	for (unsigned i = 0; i < count; i++) {
		assert_true(end + sizeof(head) + n <= sizeof(m->p));
		memcpy(m->p + end, head, sizeof(head));
		memcpy(m->p + end + sizeof(head), content, n);
		end += sizeof(head) + n;
	}
	m->n = end;
}

void lab_make_public(struct lab_message *m)
{
	lab_make_answer(m, 1, LAB_PUBLIC, 4, 1);
}

void lab_name(unsigned i, char name[static 32])
{
	assert_true(snprintf(name, 32, "n%u.test", i) > 0);
}

void lab_answer(struct lab *l, uint32_t i, const struct lab_message *m)
{
	struct sockaddr_in to = address_of(0x7f000001, m->from_port);
	assert_int_equal(sendto(l->udp[i], m->p, m->n, 0, (struct sockaddr *)&to, sizeof(to)), m->n);
}

void lab_answer_tcp(int connection, const struct lab_message *m)
{
	const uint8_t length[] = {(uint8_t)(m->n >> 8), (uint8_t)m->n};
	/* In pieces, so that it has to be put together. */
	assert_int_equal(send(connection, length, 1, MSG_NOSIGNAL), 1);
	assert_int_equal(send(connection, length + 1, 1, MSG_NOSIGNAL), 1);
	assert_int_equal(send(connection, m->p, 5, MSG_NOSIGNAL), 5);
	assert_int_equal(send(connection, m->p + 5, m->n - 5, MSG_NOSIGNAL), m->n - 5);
}

void lab_expect(struct lab *l, int fd, int type, uint16_t id, unsigned rcode, unsigned records)
{
	static struct lab_message m;
	lab_hear(l, fd, type, &m);
	assert_true(m.n >= 12);
	assert_int_equal((unsigned)m.p[0] << 8 | m.p[1], id);
	assert_int_equal(m.p[2] & 0x80, 0x80);
	assert_int_equal(m.p[3] & 15, rcode);
	assert_int_equal((unsigned)m.p[6] << 8 | m.p[7], records);
}

void lab_expect_log(struct lab *l, const char *const *words)
{
	char line[4096];
	size_t n = 0;
	do {
		await(l, l->log);
		assert_true(n + 1 < sizeof(line));
		assert_int_equal(read(l->log, line + n, 1), 1);
	} while (line[n++] != '\n');
	line[n - 1] = '\0';
	for (; *words; words++)
		if (!strstr(line, *words))
			fail_msg("\"%s\" is not in %s", *words, line);
}
