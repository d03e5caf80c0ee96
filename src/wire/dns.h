/*
 * DNS messages as a forwarder needs them: a client's question, the question that goes upstream, the check of what
 * comes back, and what the client gets. Pure bytes; no descriptor, no clock, no memory but the caller's.
 *
 * A message is never passed on as it came. A question is taken apart and built anew; of an answer only records
 * that were walked are copied. Names are walked strictly: labels of at most 63 bytes, 255 in all, pointers only
 * backwards and at most 16 of them, none at all in a question.
 */
#ifndef ERMITE_WIRE_DNS_H
#define ERMITE_WIRE_DNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DNS_MESSAGE_MAX   65535
#define DNS_QUESTION_MAX  259 /* name, type and class */
#define DNS_QUERY_MAX     (12 + DNS_QUESTION_MAX + 11)
#define DNS_UDP_MIN       512  /* what a client without EDNS takes */
#define DNS_UPSTREAM_UDP  1232 /* what we say that we take */
#define DNS_NAME_TEXT_MAX 1024 /* of a name with every byte escaped, and its end */

enum dns_type {
	DNS_A = 1,
	DNS_SOA = 6,
	DNS_AAAA = 28,
	DNS_OPT = 41,
	DNS_SVCB = 64,
	DNS_HTTPS = 65,
	DNS_IXFR = 251,
	DNS_AXFR = 252,
	DNS_ANY = 255
};

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
	DNS_BADVERS = 16
};

/* One question of a client. Two with the same question bytes, recursion, checking and dnssec flags and edns are
 * equal. */
struct dns_query {
	uint16_t id;
	uint8_t opcode; /* for the answer to one that is refused */
	bool recursion_desired, checking_disabled, authentic_data;
	bool edns, dnssec_ok;
	uint32_t udp_bytes; /* the largest answer over UDP: at least DNS_UDP_MIN */
	uint16_t type;
	uint16_t question_n;                /* 0 when the question could not be read */
	uint8_t question[DNS_QUESTION_MAX]; /* byte for byte as it came */
};

/* Reads a client's message. Returns 0; -EBADMSG when it must not be answered at all (shorter than a head, or an
 * answer itself); a positive rcode to answer with (ret is then good for dns_error_write()): FORMERR when it is
 * malformed, has not exactly one question, or bytes behind its end; NOTIMP for another opcode than QUERY; REFUSED
 * for a class other than IN, and for ANY, AXFR and IXFR; BADVERS. */
[[nodiscard]] int dns_query_read(const uint8_t *p, size_t n, struct dns_query *ret);

/* True when one answer serves both. */
bool dns_query_equal(const struct dns_query *a, const struct dns_query *b);

/* Builds the question that goes upstream, with the id given and an OPT of our own. Returns its length. */
[[nodiscard]] size_t dns_query_write(const struct dns_query *q, uint16_t id,
				     uint8_t out[static DNS_QUERY_MAX]);

/* The name of the question as text: labels between dots, no last dot ("." for the root), bytes outside printable
 * ASCII, dots and backslashes in a label as \ddd. */
void dns_query_name(const struct dns_query *q, char ret[static DNS_NAME_TEXT_MAX]);

/* True when the question's name is the one of text ("forge.example"), in any case. */
bool dns_query_is_for(const struct dns_query *q, const char *text);

/* Called with every IPv4 address of an A record and with the 16 bytes of every AAAA record, in any section.
 * Returns true to refuse the answer. */
typedef bool dns_address_fn(void *data, const uint8_t *address, size_t n);

struct dns_answer {
	uint8_t rcode;  /* SERVFAIL for one that needs more than four bits */
	bool truncated; /* to be asked for over TCP; none of its records count */
	bool denied;    /* the callback refused an address */
	/* for dns_answer_write() */
	uint16_t flags;
	uint16_t answers, authorities, additionals; /* records, OPT not among them */
	size_t records_at, records_end;
};

/* Checks what came from upstream for the query that was sent with this id. Returns 0 and what it is; -ENOENT when
 * it is not the answer (another id or question byte for byte, not an answer, another opcode): to be ignored and
 * counted; -EBADMSG when it is but cannot be walked to its end, or holds records of a class other than IN or a
 * second OPT. A truncated one is not walked: its last record may be cut in two. HTTPS and SVCB records count as
 * denied when they carry address hints. */
[[nodiscard]] int dns_answer_read(const uint8_t *p, size_t n, const struct dns_query *q, uint16_t id,
				  dns_address_fn *refuse, void *data, struct dns_answer *ret);

/* Builds what the client gets from a message p that was read for a query equal to q: its own id and flags, the
 * records that were walked without any OPT, and an OPT of ours when the client sent one. An OPT that is not the
 * last record is cut off with what stands behind it. Truncated, or more than max bytes (at most DNS_MESSAGE_MAX):
 * an empty answer with TC set. out has room for DNS_MESSAGE_MAX bytes. Returns its length. */
[[nodiscard]] size_t dns_answer_write(const struct dns_query *q, const uint8_t *p, const struct dns_answer *a,
				      size_t max, uint8_t *out);

/* Builds an answer without records: an error, or NOERROR for "no such data". Returns its length. */
[[nodiscard]] size_t dns_error_write(const struct dns_query *q, unsigned rcode,
				     uint8_t out[static DNS_QUERY_MAX]);

/* Builds an answer with one A record (60 s) for the name asked. address is in host order. Returns its length. */
[[nodiscard]] size_t dns_address_write(const struct dns_query *q, uint32_t address,
				       uint8_t out[static DNS_QUERY_MAX + 16]);

#endif
