/*
 * Load for a DNS forwarder, and a resolver that answers everything, so that two forwarders can be compared.
 *
 *   dnsload ask ADDRESS PORT CLIENTS MS   each client has one question under way, every one for another name
 *   dnsload answer ADDRESS PORT           answers with 8.8.4.4 until it is killed
 *
 * ask prints one line: answered per second, p50 and p99 in microseconds, lost questions (no answer within a second).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/num.h"
#include "base/scope.h"

#define CLIENTS_MAX 256
#define SAMPLES_MAX (8u << 20)
#define BATCH       32
#define LOST_NS     UINT64_C(1000000000)
#define QUESTION_N  (12 + 24 + 4) /* head, a name of 24 bytes, type and class */

struct client {
	int fd;
	uint64_t asked_ns;
	uint8_t question[QUESTION_N];
};

struct load {
	struct client clients[CLIENTS_MAX];
	uint64_t n_clients;
	uint64_t number; /* of the next question */
	uint64_t lost;
	size_t n_samples;
	uint32_t *samples; /* microseconds */
	int epoll;
};

static int parse_address(const char *address, const char *port, struct sockaddr_in *ret, struct err *e)
{
	uint64_t number = 0;
	*ret = (struct sockaddr_in){.sin_family = AF_INET};
	if (inet_pton(AF_INET, address, &ret->sin_addr) != 1 || num_parse(port, 1, UINT16_MAX, &number) < 0)
		return err_set(e, -EINVAL, "\"%s\" \"%s\" is no address", address, port);
	ret->sin_port = htons((uint16_t)number);
	return 0;
}

/* Makes and sends the next question of a client: q and sixteen digits, then "bench". */
static int ask(struct load *l, struct client *c, struct err *e)
{
	static const uint8_t head[12] = {0, 0, 1, 0, 0, 1};
	static const uint8_t tail[] = {5, 'b', 'e', 'n', 'c', 'h', 0, 0, 1, 0, 1};
	static const char digits[] = "0123456789abcdef";
	uint64_t number = ++l->number;
	memcpy(c->question, head, sizeof(head));
	memcpy(c->question, &number, 2);
	c->question[12] = 16;
	for (size_t i = 0; i < 16; i++)
		c->question[13 + i] = (uint8_t)digits[number >> (4 * i) & 15];
	memcpy(c->question + 29, tail, sizeof(tail));
	c->asked_ns = clock_boot_ns();
	return write(c->fd, c->question, QUESTION_N) == QUESTION_N ? 0 : err_sys(e, "ask");
}

static int heard(struct load *l, struct client *c, struct err *e)
{
	uint8_t answer[1500];
	ssize_t n = read(c->fd, answer, sizeof(answer));
	/* One that was counted as lost comes after all. */
	if (n < 12 || memcmp(answer, c->question, 2) != 0)
		return n < 0 && errno != EAGAIN ? err_sys(e, "hear") : 0;
	if ((answer[3] & 15) != 0 || answer[7] != 1)
		return err_set(e, -EPROTO, "rcode %u with %u records", answer[3] & 15u, answer[7]);
	if (l->n_samples < SAMPLES_MAX)
		l->samples[l->n_samples++] = (uint32_t)((clock_boot_ns() - c->asked_ns) / 1000);
	return ask(l, c, e);
}

static int begin(struct load *l, const struct sockaddr_in *to, struct err *e)
{
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	l->samples = malloc(SAMPLES_MAX * sizeof(l->samples[0]));
	if (l->epoll < 0 || !l->samples)
		return err_sys(e, "begin");
	for (size_t i = 0; i < l->n_clients; i++) {
		struct client *c = &l->clients[i];
		struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
		c->fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)to, sizeof(*to)) < 0 ||
		    epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) < 0)
			return err_sys(e, "make a client");
		int r = ask(l, c, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int ask_again_lost(struct load *l, struct err *e)
{
	uint64_t now = clock_boot_ns();
	for (size_t i = 0; i < l->n_clients; i++) {
		if (now - l->clients[i].asked_ns < LOST_NS)
			continue;
		l->lost++;
		int r = ask(l, &l->clients[i], e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a;
	uint32_t y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

static int run_ask(char **arguments, struct err *e)
{
	struct sockaddr_in to;
	uint64_t ms = 0;
	scoped_free struct load *l = calloc(1, sizeof(*l));
	if (!l)
		return err_set(e, -ENOMEM, "out of memory");
	if (num_parse(arguments[2], 1, CLIENTS_MAX, &l->n_clients) < 0 ||
	    num_parse(arguments[3], 1, 3'600'000, &ms) < 0)
		return err_set(e, -EINVAL, "how many clients, how long?");
	int r = parse_address(arguments[0], arguments[1], &to, e);
	if (r == 0)
		r = begin(l, &to, e);
	uint64_t start = clock_boot_ns();
	while (r == 0 && clock_boot_ns() - start < ms * 1'000'000) {
		struct epoll_event events[BATCH];
		int n = epoll_wait(l->epoll, events, BATCH, 100);
		for (int i = 0; i < n && r == 0; i++)
			r = heard(l, events[i].data.ptr, e);
		if (r == 0)
			r = ask_again_lost(l, e);
	}
	double seconds = (double)(clock_boot_ns() - start) / 1e9;
	if (r == 0 && l->n_samples == 0)
		r = err_set(e, -ETIMEDOUT, "no answer at all");
	if (r < 0)
		return r;
	qsort(l->samples, l->n_samples, sizeof(l->samples[0]), compare);
	(void)printf("%.0f %u %u %llu\n", (double)l->n_samples / seconds, l->samples[l->n_samples / 2],
		     l->samples[l->n_samples * 99 / 100], (unsigned long long)l->lost);
	free(l->samples);
	return 0;
}

/* Turns a question into its answer in place. Returns its length, or 0 when it is no question. */
static size_t answer(uint8_t *p, size_t n)
{
	static const uint8_t record[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 8, 8, 4, 4};
	size_t end = 12;
	while (end < n && p[end] != 0)
		end += 1u + p[end];
	end += 5;
	if (end > n)
		return 0;
	p[2] = 0x81;
	p[3] = 0x80;
	p[7] = 1;
	p[11] = 0; /* without the OPT that may have come */
	memcpy(p + end, record, sizeof(record));
	return end + sizeof(record);
}

static int run_answer(char **arguments, struct err *e)
{
	struct sockaddr_in at;
	scoped_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int r = parse_address(arguments[0], arguments[1], &at, e);
	if (r < 0)
		return r;
	if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		return err_sys(e, "listen");
	for (;;) {
		uint8_t bytes[2048];
		struct sockaddr_in from;
		socklen_t size = sizeof(from);
		ssize_t n = recvfrom(fd, bytes, sizeof(bytes) - 64, 0, (struct sockaddr *)&from, &size);
		size_t out = n > 0 ? answer(bytes, (size_t)n) : 0;
		if (out > 0)
			(void)sendto(fd, bytes, out, 0, (const struct sockaddr *)&from, size);
	}
}

int main(int argc, char **argv)
{
	struct err e = ERR_INIT;
	int r = -EINVAL;
	if (argc == 6 && strcmp(argv[1], "ask") == 0)
		r = run_ask(argv + 2, &e);
	else if (argc == 4 && strcmp(argv[1], "answer") == 0)
		r = run_answer(argv + 2, &e);
	else
		r = err_set(&e, r,
			    "usage: dnsload ask ADDRESS PORT CLIENTS MS | dnsload answer ADDRESS PORT");
	if (r < 0)
		(void)fprintf(stderr, "dnsload: %s\n", e.msg);
	return r < 0;
}
