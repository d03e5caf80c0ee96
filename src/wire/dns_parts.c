#include "wire/dns_parts.h"

#include <string.h>

#define LABEL_MAX      63
#define NAME_BYTES_MAX 255

static uint32_t big_endian(struct rd *r, size_t n_bytes)
{
	const uint8_t *at = rd_bytes(r, n_bytes);
	uint32_t value = 0;
	for (size_t i = 0; at && i < n_bytes; i++)
		value = value << 8 | at[i];
	return value;
}

uint16_t dns_u16(struct rd *r)
{
	return (uint16_t)big_endian(r, 2);
}

uint32_t dns_u32(struct rd *r)
{
	return big_endian(r, 4);
}

struct dns_head dns_head_read(struct rd *r)
{
	struct dns_head head = {.id = dns_u16(r)};
	head.flags = dns_u16(r);
	head.questions = dns_u16(r);
	head.answers = dns_u16(r);
	head.authorities = dns_u16(r);
	head.additionals = dns_u16(r);
	return head;
}

/* Everything before the current part was already inside the message, and each jump makes what may be read smaller: no
 * loop is possible, and no end to be run over. */
void dns_name_skip(struct rd *r, const uint8_t *message, unsigned pointers_max)
{
	struct rd elsewhere = *r, *at = r;
	const uint8_t *part = r->p;
	size_t name_n = 0;
	for (;;) {
		size_t label_n = rd_u8(at);
		if (!at->bad && label_n >= DNS_POINTER) {
			size_t target = (label_n - DNS_POINTER) << 8 | rd_u8(at);
			size_t limit = (size_t)(part - message);
			if (at->bad || pointers_max-- == 0 || target < DNS_HEAD || target >= limit)
				break;
			part = message + target;
			elsewhere = rd_over(part, limit - target);
			at = &elsewhere;
			continue;
		}
		name_n += 1 + label_n;
		if (label_n > LABEL_MAX || name_n > NAME_BYTES_MAX || !rd_bytes(at, label_n))
			break;
		if (label_n == 0)
			return;
	}
	r->bad = true;
}

bool dns_record_read(struct rd *r, const uint8_t *message, struct dns_record *ret)
{
	const uint8_t *owner = r->p;
	dns_name_skip(r, message, DNS_POINTERS_MAX);
	struct dns_record record = {.at_root = r->p - owner == 1};
	record.type = dns_u16(r);
	record.class = dns_u16(r);
	record.ttl = dns_u32(r);
	size_t rdata_n = dns_u16(r);
	const uint8_t *rdata = rd_bytes(r, rdata_n);
	if (!rdata)
		return false;
	record.rdata = rd_over(rdata, rdata_n);
	*ret = record;
	return true;
}

bool dns_opt_is_sound(const struct dns_record *record)
{
	struct rd options = record->rdata;
	while (!options.bad && rd_left(&options) > 0) {
		(void)dns_u16(&options);
		size_t n = dns_u16(&options);
		(void)rd_bytes(&options, n);
	}
	return record->at_root && rd_finish(&options);
}

uint16_t dns_reply_flags(const struct dns_query *q)
{
	unsigned flags = DNS_FLAG_QR | (unsigned)q->opcode << DNS_OPCODE_SHIFT;
	flags |= q->recursion_desired ? DNS_FLAG_RD : 0;
	flags |= q->checking_disabled ? DNS_FLAG_CD : 0;
	return (uint16_t)flags;
}

uint8_t *dns_put(uint8_t *at, uint64_t value, unsigned n_bytes)
{
	for (unsigned i = 0; i < n_bytes; i++)
		at[i] = (uint8_t)(value >> (8 * (n_bytes - 1 - i)));
	return at + n_bytes;
}

uint8_t *dns_start_put(uint8_t *at, const struct dns_head *head, const struct dns_query *q)
{
	at = dns_put(at, head->id, 2);
	at = dns_put(at, head->flags, 2);
	at = dns_put(at, q->question_n > 0, 2);
	at = dns_put(at, head->answers, 2);
	at = dns_put(at, head->authorities, 2);
	at = dns_put(at, head->additionals, 2);
	memcpy(at, q->question, q->question_n);
	return at + q->question_n;
}

uint8_t *dns_opt_put(uint8_t *at, unsigned rcode, const struct dns_query *q)
{
	at = dns_put(at, 0, 1); /* owned by the root */
	at = dns_put(at, DNS_OPT, 2);
	at = dns_put(at, DNS_UPSTREAM_UDP, 2);
	at = dns_put(at, rcode >> 4, 1);
	at = dns_put(at, 0, 1); /* the version */
	at = dns_put(at, q->dnssec_ok ? DNS_OPT_DO : 0, 2);
	return dns_put(at, 0, 2);
}
