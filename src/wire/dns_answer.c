#include <assert.h>
#include <errno.h>
#include <string.h>

#include "wire/dns.h"
#include "wire/dns_parts.h"

enum svc_param { SVC_IPV4HINT = 4, SVC_IPV6HINT = 6 };

/* What RDATA consists of, in this order and to its end. Names in these types may be compressed (RFC 1035, RFC 3597). */
struct form {
	uint16_t type;
	uint8_t bytes;   /* plain ones in front */
	uint8_t strings; /* each with its length in its first byte */
	uint8_t names;
	uint8_t tail; /* plain bytes behind */
};

static const struct form forms[] = {
	{DNS_A, .bytes = 4},
	{2, .names = 1}, /* NS */
	{3, .names = 1}, /* MD */
	{4, .names = 1}, /* MF */
	{5, .names = 1}, /* CNAME */
	{DNS_SOA, .names = 2, .tail = 20},
	{7, .names = 1},              /* MB */
	{8, .names = 1},              /* MG */
	{9, .names = 1},              /* MR */
	{12, .names = 1},             /* PTR */
	{14, .names = 2},             /* MINFO */
	{15, .bytes = 2, .names = 1}, /* MX */
	{17, .names = 2},             /* RP */
	{18, .bytes = 2, .names = 1}, /* AFSDB */
	{21, .bytes = 2, .names = 1}, /* RT */
	{26, .bytes = 2, .names = 2}, /* PX */
	{DNS_AAAA, .bytes = 16},
	{33, .bytes = 6, .names = 1},               /* SRV */
	{35, .bytes = 4, .strings = 3, .names = 1}, /* NAPTR */
	{36, .bytes = 2, .names = 1},               /* KX */
	{39, .names = 1},                           /* DNAME */
};

struct walk {
	const uint8_t *message;
	struct rd r;
	dns_address_fn *refuse;
	void *data;
	bool opt;      /* one was there */
	bool extended; /* it had upper bits of an rcode */
	struct dns_answer a;
};

static const struct form *form_of(uint16_t type)
{
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		if (forms[i].type == type)
			return &forms[i];
	return NULL;
}

/* RDATA of other types is opaque: nobody may compress names there. */
static bool walk_rdata(const struct walk *w, const struct dns_record *record)
{
	const struct form *form = form_of(record->type);
	if (!form)
		return true;
	struct rd r = record->rdata;
	(void)rd_bytes(&r, form->bytes);
	for (unsigned i = 0; i < form->strings; i++)
		(void)rd_bytes(&r, rd_u8(&r));
	for (unsigned i = 0; i < form->names; i++)
		dns_name_skip(&r, w->message, DNS_POINTERS_MAX);
	(void)rd_bytes(&r, form->tail);
	return rd_finish(&r);
}

/* RFC 9460: priority, a name that is never compressed, parameters whose keys ascend. */
static bool walk_service(struct walk *w, const struct dns_record *record)
{
	struct rd r = record->rdata;
	(void)dns_u16(&r);
	dns_name_skip(&r, w->message, 0);
	for (unsigned next_key = 0; !r.bad && rd_left(&r) > 0;) {
		unsigned key = dns_u16(&r);
		size_t n = dns_u16(&r);
		(void)rd_bytes(&r, n);
		if (key < next_key)
			return false;
		next_key = key + 1;
		if (key == SVC_IPV4HINT || key == SVC_IPV6HINT)
			w->a.denied = true;
	}
	return rd_finish(&r);
}

static bool walk_record(struct walk *w, const struct dns_record *record)
{
	if (record->class != DNS_CLASS_IN)
		return false;
	if (record->type == DNS_SVCB || record->type == DNS_HTTPS)
		return walk_service(w, record);
	if (!walk_rdata(w, record))
		return false;
	bool is_address = record->type == DNS_A || record->type == DNS_AAAA;
	if (is_address && w->refuse(w->data, record->rdata.p, rd_left(&record->rdata)))
		w->a.denied = true;
	return true;
}

/* The records must stay where they are, or pointers into them would lead elsewhere: an OPT is cut off together with
 * what stands behind it, and it is nearly always the last. */
static bool walk_section(struct walk *w, unsigned n, bool may_have_opt, uint16_t *ret_kept)
{
	for (unsigned i = 0; i < n; i++) {
		struct dns_record record;
		if (!dns_record_read(&w->r, w->message, &record))
			return false;
		if (record.type == DNS_OPT) {
			if (w->opt || !may_have_opt || !dns_opt_is_sound(&record))
				return false;
			w->opt = true;
			w->extended = record.ttl >> 24 != 0;
		} else if (!walk_record(w, &record)) {
			return false;
		}
		if (!w->opt) {
			++*ret_kept;
			w->a.records_end = (size_t)(w->r.p - w->message);
		}
	}
	return true;
}

static bool is_answer_to(struct rd *r, const struct dns_head *head, const struct dns_query *q, uint16_t id)
{
	const uint8_t *question = rd_bytes(r, q->question_n);
	unsigned opcode = head->flags >> DNS_OPCODE_SHIFT & DNS_OPCODE_MASK;
	return question && head->id == id && (head->flags & DNS_FLAG_QR) && opcode == 0 &&
	       head->questions == 1 && memcmp(question, q->question, q->question_n) == 0;
}

int dns_answer_read(const uint8_t *p, size_t n, const struct dns_query *q, uint16_t id,
		    dns_address_fn *refuse, void *data, struct dns_answer *ret)
{
	struct walk w = {.message = p, .r = rd_over(p, n), .refuse = refuse, .data = data};
	struct dns_head head = dns_head_read(&w.r);
	if (!is_answer_to(&w.r, &head, q, id))
		return -ENOENT;
	w.a.flags = head.flags;
	w.a.rcode = head.flags & DNS_RCODE_MASK;
	w.a.truncated = head.flags & DNS_FLAG_TC;
	w.a.records_at = w.a.records_end = DNS_HEAD + (size_t)q->question_n;
	/* Some servers cut the last record in two. */
	if (!w.a.truncated &&
	    (!walk_section(&w, head.answers, false, &w.a.answers) ||
	     !walk_section(&w, head.authorities, false, &w.a.authorities) ||
	     !walk_section(&w, head.additionals, true, &w.a.additionals) || !rd_finish(&w.r)))
		return -EBADMSG;
	/* The lower bits alone would say something else, BADVERS for one that all is well. */
	if (w.extended)
		w.a.rcode = DNS_SERVFAIL;
	*ret = w.a;
	return 0;
}

size_t dns_answer_write(const struct dns_query *q, const uint8_t *p, const struct dns_answer *a, size_t max,
			uint8_t *out)
{
	assert(max <= DNS_MESSAGE_MAX && a->records_at == DNS_HEAD + (size_t)q->question_n);
	size_t opt_n = q->edns ? DNS_OPT_BYTES : 0;
	bool cut = a->truncated || a->records_end + opt_n > max;
	unsigned flags = dns_reply_flags(q) | (a->flags & (DNS_FLAG_AA | DNS_FLAG_RA)) | a->rcode;
	/* RFC 6840, 5.8: only for those who asked for it. */
	if (q->authentic_data || q->dnssec_ok)
		flags |= a->flags & DNS_FLAG_AD;
	struct dns_head head = {.id = q->id, .flags = (uint16_t)flags, .additionals = q->edns};
	if (cut) {
		head.flags |= DNS_FLAG_TC;
	} else {
		head.answers = a->answers;
		head.authorities = a->authorities;
		head.additionals = (uint16_t)(a->additionals + q->edns);
	}
	uint8_t *at = dns_start_put(out, &head, q);
	if (!cut) {
		memcpy(at, p + a->records_at, a->records_end - a->records_at);
		at += a->records_end - a->records_at;
	}
	if (q->edns)
		at = dns_opt_put(at, a->rcode, q);
	return (size_t)(at - out);
}
