#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "net/dns/state.h"

void questions_init(struct dns *d)
{
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		d->questions[i].dns = d;
		d->questions[i].fd = -1;
	}
	for (size_t i = WAITERS_MAX; i-- > 0;) {
		d->waiters[i].next = d->free_waiters;
		d->free_waiters = &d->waiters[i];
	}
}

/* Answers at once, without a record or with what stands in d->sent already. */
static void answer_here(struct dns *d, struct waiter *w, size_t n, const char *verdict, const char *rule,
			unsigned rcode)
{
	client_send(d, w, n);
	log_question(d, &w->query, verdict, rule, rcode, 0);
}

/* The rule by which a question is answered with an error. */
static const char *rule_of(int rcode)
{
	static const struct {
		int rcode;
		const char *rule;
	} rules[] = {
		{DNS_FORMERR, "malformed"},
		{DNS_NOTIMP, "opcode"},
		{DNS_REFUSED, "type"},
		{DNS_BADVERS, "version"},
	};
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (rules[i].rcode == rcode)
			return rules[i].rule;
	return "malformed";
}

/* Answers what needs no resolver: the forge's name is the gateway and has nothing else, and there is no IPv6. Service
 * records are not passed on, since they bring addresses of their own. Returns false for everything else. */
static bool answer_local(struct dns *d, struct waiter *w)
{
	const struct dns_query *q = &w->query;
	bool forge = d->config->forge && dns_query_is_for(q, d->config->forge_name);
	if (!forge && q->type != DNS_AAAA && q->type != DNS_HTTPS && q->type != DNS_SVCB)
		return false;
	size_t n = forge && q->type == DNS_A ? dns_address_write(q, d->config->gateway, d->sent + 2)
					     : dns_error_write(q, DNS_NOERROR, d->sent + 2);
	answer_here(d, w, n, "local", forge ? "forge" : "no-ipv6", DNS_NOERROR);
	return true;
}

/* What all who wait for a question get. */
struct outcome {
	const char *verdict, *rule;
	unsigned rcode;
	const uint8_t *message; /* NULL: an answer without records */
	const struct dns_answer *answer;
};

static size_t write_answer(struct dns *d, const struct waiter *w, const struct outcome *o)
{
	if (!o->message)
		return dns_error_write(&w->query, o->rcode, d->sent + 2);
	size_t max = DNS_MESSAGE_MAX;
	if (!w->connection)
		max = w->query.udp_bytes < UDP_ANSWER_MAX ? w->query.udp_bytes : UDP_ANSWER_MAX;
	return dns_answer_write(&w->query, o->message, o->answer, max, d->sent + 2);
}

/* Ends a question: everyone who waits gets the outcome. */
static void finish(struct question *q, const struct outcome *o)
{
	struct dns *d = q->dns;
	for (struct waiter *w = q->waiters, *next = NULL; w; w = next) {
		next = w->next;
		if (!w->gone) {
			if (w->connection)
				w->connection->waiting--;
			client_send(d, w, write_answer(d, w, o));
		}
		log_question(d, &w->query, o->verdict, o->rule, o->rcode, d->now_ms - q->begun_ms);
		w->next = d->free_waiters;
		d->free_waiters = w;
	}
	q->waiters = NULL;
	upstream_end_try(q);
	q->state = QUESTION_FREE;
}

static void fail(struct question *q)
{
	const struct outcome failed = {.verdict = "failed", .rule = "forward", .rcode = DNS_SERVFAIL};
	q->dns->counts->failed++;
	finish(q, &failed);
}

/* IPv6 is global unicast here, without what stands for IPv4 addresses (6to4, Teredo) or for examples. */
static bool is_denied_ipv6(const uint8_t *address)
{
	static const struct {
		uint32_t mask, value; /* of the first four bytes */
	} denied[] = {
		{0xffff0000, 0x20020000}, /* 2002::/16 */
		{0xffffffff, 0x20010000}, /* 2001::/32 */
		{0xffffffff, 0x20010db8}, /* 2001:db8::/32 */
		{0xfffff000, 0x3fff0000}, /* 3fff::/20 */
	};
	uint32_t head = 0;
	memcpy(&head, address, sizeof(head));
	head = ntohl(head);
	for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
		if ((head & denied[i].mask) == denied[i].value)
			return true;
	return head >> 29 != 1;
}

static bool is_denied(void *data, const uint8_t *address, size_t n)
{
	const struct dns *d = data;
	uint32_t ipv4 = 0;
	if (n != sizeof(ipv4))
		return is_denied_ipv6(address);
	memcpy(&ipv4, address, sizeof(ipv4));
	return network_is_denied(ntohl(ipv4), &d->config->allow);
}

void question_answered(struct question *q, const uint8_t *p, size_t n)
{
	struct dns *d = q->dns;
	struct dns_answer answer = {0};
	int r = dns_answer_read(p, n, &q->query, q->id, is_denied, d, &answer);
	if (r == -ENOENT)
		d->counts->forged++;
	/* Somebody else may be guessing, so the next try is one in which that is of no use. */
	if (r < 0 || answer.truncated) {
		question_next_try(q);
		return;
	}
	struct outcome o = {.verdict = "answered",
			    .rule = "forward",
			    .rcode = answer.rcode,
			    .message = p,
			    .answer = &answer};
	if (answer.denied) {
		o = (struct outcome){.verdict = "refused", .rule = "private", .rcode = DNS_REFUSED};
		d->counts->refused++;
	}
	finish(q, &o);
}

void question_next_try(struct question *q)
{
	bool was_udp = q->state == QUESTION_UDP || q->state == QUESTION_WANTS_UDP;
	upstream_end_try(q);
	if (was_udp) {
		upstream_ask_tcp(q);
		return;
	}
	q->resolver++;
	if (q->resolver < q->dns->n_resolvers)
		upstream_ask_udp(q);
	else
		fail(q);
}

/* Begins with the first resolver. */
static void ask_first(struct question *q)
{
	q->resolver = 0;
	if (q->dns->n_resolvers > 0)
		upstream_ask_udp(q);
	else
		fail(q);
}

/* The question that is being asked already, else a free row, else NULL. */
static struct question *find_row(struct dns *d, const struct dns_query *q)
{
	struct question *row = NULL;
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		struct question *candidate = &d->questions[i];
		if (candidate->state == QUESTION_FREE)
			row = row ? row : candidate;
		else if (dns_query_equal(&candidate->query, q))
			return candidate;
	}
	return row;
}

static void begin(struct dns *d, struct question *q, const struct waiter *w)
{
	q->query = w->query;
	q->begun_ms = d->now_ms;
	q->end_ms = d->now_ms + d->config->question_ms;
	dns_due(d, q->end_ms);
	d->counts->forwarded++;
	ask_first(q);
}

/* Puts a waiter to its question, which is begun when it is not under way. Returns false when there is no room. */
static bool await(struct dns *d, const struct waiter *model)
{
	struct question *q = find_row(d, &model->query);
	struct waiter *w = d->free_waiters;
	if (!q || !w)
		return false;
	d->free_waiters = w->next;
	*w = *model;
	if (w->connection)
		w->connection->waiting++;
	bool fresh = q->state == QUESTION_FREE;
	w->next = fresh ? NULL : q->waiters;
	/* Without a resolver it ends at once, so the waiter must stand there first. */
	q->waiters = w;
	if (fresh)
		begin(d, q, w);
	return true;
}

bool question_take(struct dns *d, const struct sockaddr_in *from, struct connection *connection,
		   const uint8_t *p, size_t n)
{
	struct waiter w = {.connection = connection};
	if (from)
		w.from = *from;
	int r = dns_query_read(p, n, &w.query);
	if (r < 0) {
		d->counts->dropped++;
		return true;
	}
	/* Of the forge's name even a question for everything has an answer: nothing. */
	bool of_forge = d->config->forge && dns_query_is_for(&w.query, d->config->forge_name);
	if (r > 0 && !(r == DNS_REFUSED && of_forge)) {
		d->counts->refused++;
		answer_here(d, &w, dns_error_write(&w.query, (unsigned)r, d->sent + 2), "refused", rule_of(r),
			    (unsigned)r);
		return true;
	}
	if (!answer_local(d, &w) && !await(d, &w)) {
		if (connection)
			return false;
		d->counts->dropped++;
		log_question(d, &w.query, "dropped", "limit", DNS_NOERROR, 0);
	}
	d->counts->questions++;
	return true;
}

void questions_restart(struct dns *d)
{
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		struct question *q = &d->questions[i];
		if (q->state == QUESTION_FREE)
			continue;
		upstream_end_try(q);
		ask_first(q);
	}
}

void questions_forget(struct dns *d, const struct connection *c)
{
	for (size_t i = 0; i < WAITERS_MAX; i++) {
		struct waiter *w = &d->waiters[i];
		if (w->connection == c) {
			w->gone = true;
			w->connection = NULL;
		}
	}
}

uint64_t questions_deadline(const struct dns *d)
{
	uint64_t first = NO_DEADLINE;
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		const struct question *q = &d->questions[i];
		if (q->state == QUESTION_FREE)
			continue;
		first = q->end_ms < first ? q->end_ms : first;
		first = q->try_ms < first ? q->try_ms : first;
	}
	return first;
}

void questions_expire(struct dns *d)
{
	for (size_t i = 0; i < QUESTIONS_MAX; i++) {
		struct question *q = &d->questions[i];
		if (q->state == QUESTION_FREE)
			continue;
		if (q->end_ms <= d->now_ms)
			fail(q);
		else if (q->try_ms <= d->now_ms)
			question_next_try(q);
	}
}

void questions_close(struct dns *d)
{
	for (size_t i = 0; i < QUESTIONS_MAX; i++)
		upstream_end_try(&d->questions[i]);
}
