/* A client's message: a good one is the same after it was written for upstream, and what answers it can be read. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "wire/dns.h"

#define UPSTREAM_ID 0x1234

static bool count_addresses(void *data, const uint8_t *, size_t)
{
	++*(unsigned *)data;
	return false;
}

/* What we say ourselves must pass our own check of answers. Returns the number of addresses. */
static unsigned check_reply(const struct dns_query *q, const uint8_t *p, size_t n, unsigned rcode)
{
	unsigned addresses = 0;
	struct dns_answer a = {0};
	uint8_t *exact = malloc(n);
	REQUIRE(exact);
	memcpy(exact, p, n);
	REQUIRE(dns_answer_read(exact, n, q, q->id, count_addresses, &addresses, &a) == 0);
	REQUIRE(a.rcode == (rcode <= 0xf ? rcode : DNS_SERVFAIL) && !a.truncated && !a.denied);
	free(exact);
	return addresses;
}

static void check_replies(const struct dns_query *q, unsigned rcode)
{
	uint8_t out[DNS_QUERY_MAX + 16];
	size_t n = dns_error_write(q, rcode, out);
	REQUIRE(n >= 12 && n <= DNS_QUERY_MAX && (rcode <= 0xf || q->edns));
	if (q->question_n == 0 || q->opcode != 0)
		return;
	REQUIRE(check_reply(q, out, n, rcode) == 0);
	n = dns_address_write(q, 0x0ac80001, out);
	REQUIRE(n <= sizeof(out) && check_reply(q, out, n, DNS_NOERROR) == 1);
}

static void check_round_trip(const struct dns_query *q)
{
	uint8_t out[DNS_QUERY_MAX];
	struct dns_query sent;
	size_t n = dns_query_write(q, UPSTREAM_ID, out);
	REQUIRE(n <= sizeof(out) && dns_query_read(out, n, &sent) == 0);
	REQUIRE(sent.id == UPSTREAM_ID && sent.edns && sent.udp_bytes == DNS_UPSTREAM_UDP);
	REQUIRE(sent.type == q->type);
	sent.edns = q->edns; /* the only difference: upstream always gets an OPT */
	REQUIRE(dns_query_equal(&sent, q) && dns_query_equal(q, q));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct dns_query q;
	char name[DNS_NAME_TEXT_MAX];
	int r = dns_query_read(data, size, &q);
	REQUIRE(r >= 0 || r == -EBADMSG);
	if (r < 0)
		return 0;
	REQUIRE(q.question_n <= DNS_QUESTION_MAX && q.udp_bytes >= DNS_UDP_MIN &&
		q.udp_bytes <= DNS_MESSAGE_MAX);
	REQUIRE((q.question_n > 0 || r > 0) && (r == DNS_NOTIMP) == (q.opcode != 0));
	dns_query_name(&q, name);
	REQUIRE(strlen(name) < sizeof(name) && (name[0] != '\0') == (q.question_n > 0));
	REQUIRE(dns_query_is_for(&q, name) == (q.question_n > 0));
	check_replies(&q, (unsigned)r);
	if (r == 0)
		check_round_trip(&q);
	return 0;
}
