#include "net/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/num.h"
#include "base/scope.h"
#include "spec/message.h"

/* Ports of the upper half, 32768 and above: a number of 15 bits picks one evenly. The kernel's own choice among
 * ip_local_port_range is random too, but of fewer, and of how few the host's administrator decides; the lower half is
 * where services listen, which a question under way must not keep from starting. */
#define PORTS_FROM 32768
#define PORT_TRIES 16

/* Reads "fe80::1%eth0": a scope is a link's name or number. */
static bool read_scope(const char *text, uint32_t *ret)
{
	uint64_t number = 0;
	*ret = if_nametoindex(text);
	if (*ret == 0 && num_parse(text, 1, INT32_MAX, &number) == 0)
		*ret = (uint32_t)number;
	return *ret != 0;
}

/* Reads an address; text is changed. An IPv4 address in the form of IPv6 is one of IPv4. */
static bool read_address(char *text, uint16_t port, struct dial_target *ret)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
	*ret = (struct dial_target){0};
	char *scope = strchr(text, '%');
	if (scope)
		*scope++ = '\0';
	bool is_v4 = !scope && inet_pton(AF_INET, text, &v4.sin_addr) == 1;
	if (!is_v4 && inet_pton(AF_INET6, text, &v6.sin6_addr) != 1)
		return false;
	if (scope && !read_scope(scope, &v6.sin6_scope_id))
		return false;
	if (!is_v4 && IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
		is_v4 = true;
		memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, sizeof(v4.sin_addr));
	}
	ret->n = is_v4 ? sizeof(v4) : sizeof(v6);
	memcpy(&ret->address, is_v4 ? (const void *)&v4 : (const void *)&v6, ret->n);
	return true;
}

static bool is_own(const struct dial_target *t, const struct cidr *own)
{
	struct sockaddr_in v4;
	memcpy(&v4, &t->address, sizeof(v4));
	return v4.sin_family == AF_INET && cidr_holds(own, ntohl(v4.sin_addr.s_addr));
}

/* Addresses have no gaps: what is not used of one is zero. */
static bool is_same(const struct dial_target *a, const struct dial_target *b)
{
	const uint8_t *bytes_a = (const void *)&a->address;
	const uint8_t *bytes_b = (const void *)&b->address;
	return a->n == b->n && memcmp(bytes_a, bytes_b, a->n) == 0;
}

bool dial_targets_are_same(const struct dial_targets *a, const struct dial_targets *b)
{
	bool same = a->n == b->n;
	for (uint32_t i = 0; same && i < a->n; i++)
		same = is_same(&a->items[i], &b->items[i]);
	return same;
}

static void add_target(const struct dial_target *t, struct dial_targets *targets)
{
	for (uint32_t i = 0; i < targets->n; i++)
		if (is_same(&targets->items[i], t))
			return;
	if (targets->n < DIAL_TARGETS_MAX)
		targets->items[targets->n++] = *t;
}

static void note(struct buf *notes, const char *p, size_t n, const char *what)
{
	buf_str(notes, "name server ");
	buf_plain(notes, p, n);
	buf_str(notes, what);
}

/* One line: "nameserver", blanks, and an address up to the next blank. */
static void read_line(const char *p, size_t n, uint16_t port, const struct cidr *own,
		      struct dial_targets *targets, struct buf *notes)
{
	static const char word[] = "nameserver";
	static const char blanks[] = " \t\r";
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1] = "";
	struct dial_target target;
	size_t at = strlen(word);
	if (n <= at || memcmp(p, word, at) != 0 || !strchr(blanks, p[at]))
		return;
	while (at < n && strchr(blanks, p[at]))
		at++;
	size_t end = at;
	while (end < n && !strchr(blanks, p[end]))
		end++;
	if (end - at < sizeof(address))
		memcpy(address, p + at, end - at);
	if (!read_address(address, port, &target))
		note(notes, p + at, end - at, " is no address\n");
	else if (is_own(&target, own))
		note(notes, p + at, end - at, " is an address of the sandboxes' own network\n");
	else
		add_target(&target, targets);
}

void dial_read_resolvers(const char *text, uint16_t port, const struct cidr *own, struct dial_targets *ret,
			 struct buf *notes)
{
	struct dial_target loopback;
	char loopback_text[] = "127.0.0.1";
	*ret = (struct dial_targets){0};
	while (*text) {
		size_t n = strcspn(text, "\n");
		read_line(text, n, port, own, ret, notes);
		text += n + (text[n] == '\n');
	}
	if (ret->n == 0 && read_address(loopback_text, port, &loopback))
		add_target(&loopback, ret);
}

/* Binds to a port that nobody can guess. */
static int bind_random(int fd, sa_family_t family)
{
	for (int i = 0; i < PORT_TRIES; i++) {
		uint16_t port = 0;
		if (getrandom(&port, sizeof(port), 0) != (ssize_t)sizeof(port))
			return -EIO;
		port = htons(port | PORTS_FROM);
		struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = port};
		struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = port};
		bool is_v6 = family == AF_INET6;
		const void *address = is_v6 ? (const void *)&v6 : (const void *)&v4;
		if (bind(fd, address, is_v6 ? sizeof(v6) : sizeof(v4)) == 0)
			return 0;
		if (errno != EADDRINUSE)
			return -errno;
	}
	return -EADDRINUSE;
}

/* A datagram must neither be kept from leaving nor shrink its successors because somebody claims that the way is
 * narrow: the size of the path is not looked at, and nothing is marked as not to be fragmented. */
static int prepare_udp(int fd, sa_family_t family)
{
	const int on = 1;
	const int omit_v4 = IP_PMTUDISC_OMIT;
	const int omit_v6 = IPV6_PMTUDISC_OMIT;
	bool v6 = family == AF_INET6;
	/* Otherwise a port of IPv6 were one of IPv4, too. */
	if (v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) < 0)
		return -errno;
	int r = v6 ? setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &omit_v6, sizeof(omit_v6))
		   : setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &omit_v4, sizeof(omit_v4));
	return r < 0 ? -errno : bind_random(fd, family);
}

/* What came in between bind() and connect(), from whomever, is thrown away: nothing has been asked yet. */
static int discard_early(int fd)
{
	char byte;
	for (int i = 0; i < PORT_TRIES; i++)
		if (recv(fd, &byte, sizeof(byte), MSG_DONTWAIT) < 0)
			return errno == EAGAIN ? 0 : -errno;
	return -EBUSY;
}

/* Makes one socket. Returns a descriptor that the caller owns, or a negative errno. */
static int dial(const struct dial_target *t, enum dial_kind kind)
{
	const int on = 1;
	sa_family_t family = t->address.ss_family;
	int type = kind == DIAL_UDP ? SOCK_DGRAM : SOCK_STREAM;
	scoped_fd int fd = socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	int r = 0;
	if (kind == DIAL_UDP)
		r = prepare_udp(fd, family);
	else if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
		r = -errno;
	if (r == 0 && connect(fd, (const struct sockaddr *)&t->address, t->n) < 0 && errno != EINPROGRESS)
		r = -errno;
	if (r == 0 && kind == DIAL_UDP)
		r = discard_early(fd);
	return r < 0 ? r : fd_steal(&fd);
}

int dial_answer(const struct dial_targets *targets, uint32_t generation, int channel,
		const struct chan_message *m, struct err *e)
{
	_Static_assert(MESSAGE_FDS_MAX <= CHAN_FDS_MAX, "an answer fits a message");
	if (m->b > DIAL_TCP || m->a < 1 || m->a > MESSAGE_FDS_MAX)
		return err_set(e, -EPROTO, "DIAL for %llu sockets of kind %llu", (unsigned long long)m->a,
			       (unsigned long long)m->b);
	struct chan_message answer;
	answer.type = MESSAGE_SOCKETS;
	answer.id = m->id;
	answer.a = generation;
	answer.b = m->b;
	answer.n = answer.n_fds = 0;
	while (m->id < targets->n && answer.n_fds < m->a) {
		int fd = dial(&targets->items[m->id], (enum dial_kind)m->b);
		if (fd < 0)
			break;
		answer.fds[answer.n_fds++] = fd;
	}
	int r = chan_send(channel, &answer, e);
	chan_close_fds(&answer);
	return r;
}
