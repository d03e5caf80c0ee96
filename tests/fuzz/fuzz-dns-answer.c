/* An answer from upstream. Input: a byte of flags of the client's query, two of the most bytes it takes, the message.
 * The question asked is the one that the message holds, or no input would get past that check. */
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "wire/dns.h"

#define HEAD      12
#define CONTROL   3
#define OPT_BYTES 11
#define CLIENT_ID 0xc11e
#define DENIED    10 /* first byte of addresses that are refused */

enum control { EDNS = 1, DNSSEC_OK = 2, AUTHENTIC = 4, RECURSION = 8, CHECKING = 16 };

struct seen {
	unsigned addresses;
	bool denied;
};

static bool see_address(void *data, const uint8_t *address, size_t n)
{
	struct seen *seen = data;
	REQUIRE(n == 4 || n == 16);
	seen->addresses++;
	seen->denied |= address[0] == DENIED;
	return address[0] == DENIED;
}

/* The query that asked the message's question. False when there was none. */
static bool make_query(uint8_t control, const uint8_t *message, size_t n, struct dns_query *ret)
{
	uint8_t query[HEAD + DNS_QUESTION_MAX] = {CLIENT_ID >> 8, CLIENT_ID & 0xff, [5] = 1};
	size_t at = HEAD;
	while (at < n && message[at] != 0)
		at += 1u + message[at];
	at += 5; /* the root's byte, type and class */
	if (at > n || at > sizeof(query))
		return false;
	memcpy(query + HEAD, message + HEAD, at - HEAD);
	if (dns_query_read(query, at, ret) != 0)
		return false;
	ret->edns = control & EDNS;
	ret->dnssec_ok = ret->edns && (control & DNSSEC_OK);
	ret->authentic_data = control & AUTHENTIC;
	ret->recursion_desired = control & RECURSION;
	ret->checking_disabled = control & CHECKING;
	return true;
}

static void check_written(const struct dns_query *q, const uint8_t *p, const struct dns_answer *a, size_t max,
			  const struct seen *seen)
{
	struct seen again_seen = {0};
	struct dns_answer again = {0};
	uint8_t *whole = malloc(DNS_MESSAGE_MAX), *rewritten = malloc(DNS_MESSAGE_MAX);
	REQUIRE(whole && rewritten);
	size_t n = dns_answer_write(q, p, a, max, whole);
	uint8_t *out = malloc(n);
	REQUIRE(out);
	memcpy(out, whole, n);
	REQUIRE(dns_answer_read(out, n, q, q->id, see_address, &again_seen, &again) == 0);
	REQUIRE(n <= max || again.truncated);
	REQUIRE(again.rcode == a->rcode && (!a->truncated || again.truncated));
	REQUIRE(again_seen.addresses <= seen->addresses && (seen->denied || !again_seen.denied));
	REQUIRE(again.denied == a->denied || (a->denied && !again.denied));

	/* A second OPT, or one in the wrong place, is refused by the read; here it is the last or nowhere. */
	static const uint8_t opt[] = {0, 0, DNS_OPT, DNS_UPSTREAM_UDP >> 8, DNS_UPSTREAM_UDP & 0xff, 0, 0};
	size_t records_end = n - (q->edns ? OPT_BYTES : 0);
	REQUIRE(!q->edns || memcmp(out + records_end, opt, sizeof(opt)) == 0);
	REQUIRE(again.truncated ? records_end == again.records_at : records_end == a->records_end);
	if (!again.truncated) {
		REQUIRE(again.answers == a->answers && again.authorities == a->authorities);
		REQUIRE(again.additionals == a->additionals && again.records_end == a->records_end);
		REQUIRE(memcmp(out + HEAD, p + HEAD, a->records_end - HEAD) == 0);
	}
	REQUIRE(dns_answer_write(q, out, &again, max, rewritten) == n && memcmp(rewritten, out, n) == 0);
	free(out);
	free(rewritten);
	free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < CONTROL + HEAD)
		return 0;
	const uint8_t *message = data + CONTROL;
	size_t n = size - CONTROL, max = (size_t)data[1] << 8 | data[2];
	uint16_t id = (uint16_t)(message[0] << 8 | message[1]);
	struct dns_query q;
	struct dns_answer a;
	struct seen seen = {0};
	if (!make_query(data[0], message, n, &q))
		return 0;
	int r = dns_answer_read(message, n, &q, id, see_address, &seen, &a);
	REQUIRE(r == 0 || r == -ENOENT || r == -EBADMSG);
	REQUIRE(dns_answer_read(message, n, &q, id ^ 1, see_address, &seen, &a) == -ENOENT);
	if (r < 0)
		return 0;
	REQUIRE(a.denied || !seen.denied);
	REQUIRE(a.records_at <= a.records_end && a.records_end <= n && a.rcode <= 0xf);
	check_written(&q, message, &a, max, &seen);
	return 0;
}
