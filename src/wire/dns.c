#include "wire/dns.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "wire/dns_parts.h"

#define ADDRESS_TTL_S 60

static bool read_question(struct rd *r, const uint8_t *message, struct dns_query *q, uint16_t *ret_class)
{
	const uint8_t *start = r->p;
	dns_name_skip(r, message, 0);
	uint16_t type = dns_u16(r);
	uint16_t class = dns_u16(r);
	if (r->bad)
		return false;
	q->question_n = (uint16_t)(r->p - start);
	memcpy(q->question, start, q->question_n);
	q->type = type;
	*ret_class = class;
	return true;
}

/* Of the additional records only OPT says something to us; the others are walked and left out. */
static bool read_additionals(struct rd *r, const uint8_t *message, unsigned n, struct dns_query *q,
			     uint8_t *ret_version)
{
	for (unsigned i = 0; i < n; i++) {
		struct dns_record record;
		if (!dns_record_read(r, message, &record))
			return false;
		if (record.type != DNS_OPT)
			continue;
		if (q->edns || !dns_opt_is_sound(&record))
			return false;
		q->edns = true;
		q->dnssec_ok = record.ttl & DNS_OPT_DO;
		q->udp_bytes = record.class > DNS_UDP_MIN ? record.class : DNS_UDP_MIN;
		*ret_version = (uint8_t)(record.ttl >> 16);
	}
	return rd_finish(r);
}

int dns_query_read(const uint8_t *p, size_t n, struct dns_query *ret)
{
	struct rd r = rd_over(p, n);
	struct dns_head head = dns_head_read(&r);
	if (r.bad || (head.flags & DNS_FLAG_QR))
		return -EBADMSG;
	*ret = (struct dns_query){
		.id = head.id,
		.opcode = head.flags >> DNS_OPCODE_SHIFT & DNS_OPCODE_MASK,
		.recursion_desired = head.flags & DNS_FLAG_RD,
		.checking_disabled = head.flags & DNS_FLAG_CD,
		.authentic_data = head.flags & DNS_FLAG_AD,
		.udp_bytes = DNS_UDP_MIN,
	};
	/* The other kinds of messages have sections of their own meaning. */
	if (ret->opcode != 0)
		return DNS_NOTIMP;
	uint16_t class = 0;
	if (head.questions != 1 || !read_question(&r, p, ret, &class))
		return DNS_FORMERR;
	uint8_t version = 0;
	if (head.answers > 0 || head.authorities > 0 ||
	    !read_additionals(&r, p, head.additionals, ret, &version))
		return DNS_FORMERR;
	if (version != 0)
		return DNS_BADVERS;
	if (class != DNS_CLASS_IN || ret->type == DNS_ANY || ret->type == DNS_AXFR || ret->type == DNS_IXFR)
		return DNS_REFUSED;
	return 0;
}

bool dns_query_equal(const struct dns_query *a, const struct dns_query *b)
{
	return a->question_n == b->question_n && memcmp(a->question, b->question, a->question_n) == 0 &&
	       a->recursion_desired == b->recursion_desired && a->checking_disabled == b->checking_disabled &&
	       a->authentic_data == b->authentic_data && a->edns == b->edns && a->dnssec_ok == b->dnssec_ok;
}

size_t dns_query_write(const struct dns_query *q, uint16_t id, uint8_t out[static DNS_QUERY_MAX])
{
	unsigned flags = 0;
	flags |= q->recursion_desired ? DNS_FLAG_RD : 0;
	flags |= q->checking_disabled ? DNS_FLAG_CD : 0;
	flags |= q->authentic_data ? DNS_FLAG_AD : 0;
	struct dns_head head = {.id = id, .flags = (uint16_t)flags, .additionals = 1};
	uint8_t *at = dns_start_put(out, &head, q);
	at = dns_opt_put(at, DNS_NOERROR, q);
	return (size_t)(at - out);
}

void dns_query_name(const struct dns_query *q, char ret[static DNS_NAME_TEXT_MAX])
{
	struct rd r = rd_over(q->question, q->question_n);
	size_t at = 0;
	for (size_t n = rd_u8(&r); n > 0; n = rd_u8(&r)) {
		const uint8_t *label = rd_bytes(&r, n);
		if (at > 0)
			ret[at++] = '.';
		for (size_t i = 0; label && i < n; i++) {
			if (label[i] > ' ' && label[i] < 0x7f && label[i] != '.' && label[i] != '\\')
				ret[at++] = (char)label[i];
			else
				at += (size_t)snprintf(ret + at, 5, "\\%03u", label[i]);
		}
	}
	if (at == 0 && q->question_n > 0)
		ret[at++] = '.';
	ret[at] = '\0';
}

bool dns_query_is_for(const struct dns_query *q, const char *text)
{
	char name[DNS_NAME_TEXT_MAX];
	dns_query_name(q, name);
	return q->question_n > 0 && strcasecmp(name, text) == 0;
}

size_t dns_error_write(const struct dns_query *q, unsigned rcode, uint8_t out[static DNS_QUERY_MAX])
{
	struct dns_head head = {.id = q->id, .additionals = q->edns};
	head.flags = (uint16_t)(dns_reply_flags(q) | DNS_FLAG_RA | (rcode & DNS_RCODE_MASK));
	uint8_t *at = dns_start_put(out, &head, q);
	if (q->edns)
		at = dns_opt_put(at, rcode, q);
	return (size_t)(at - out);
}

size_t dns_address_write(const struct dns_query *q, uint32_t address, uint8_t out[static DNS_QUERY_MAX + 16])
{
	struct dns_head head = {.id = q->id, .answers = 1, .additionals = q->edns};
	head.flags = (uint16_t)(dns_reply_flags(q) | DNS_FLAG_RA);
	uint8_t *at = dns_start_put(out, &head, q);
	at = dns_put(at, DNS_POINTER << 8 | DNS_HEAD, 2); /* the name of the question */
	at = dns_put(at, DNS_A, 2);
	at = dns_put(at, DNS_CLASS_IN, 2);
	at = dns_put(at, ADDRESS_TTL_S, 4);
	at = dns_put(at, sizeof(address), 2);
	at = dns_put(at, address, sizeof(address));
	if (q->edns)
		at = dns_opt_put(at, DNS_NOERROR, q);
	return (size_t)(at - out);
}
