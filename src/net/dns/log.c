#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/dns/state.h"
#include "spec/refusal.h"

#define FLOW_AGAIN_MS 10000
#define REFUSED_BATCH 16 /* messages read from the netlink socket at a time */

_Static_assert(LOG_LINE_MAX < PIPE_BUF, "a line is written whole or not at all");

static void begin_line(struct log *l, const char *kind)
{
	struct timespec now = {0};
	char text[21];
	(void)clock_gettime(CLOCK_REALTIME, &now);
	clock_format_utc((uint64_t)now.tv_sec, text);
	buf_clear(&l->line);
	/* Without the Z at its end. */
	buf_fmt(&l->line, "{\"time\":\"%.19s.%03ldZ\",\"kind\":\"%s\"", text, now.tv_nsec / 1000000, kind);
}

static void write_line(struct dns *d)
{
	struct buf *line = &d->log.line;
	buf_str(line, "}\n");
	if (buf_check(line) < 0 || write(DNS_FD_LOG, buf_text(line), line->n) != (ssize_t)line->n)
		d->counts->log_lost++;
}

void log_open(struct dns *d)
{
	d->log.line = BUF_INIT(LOG_LINE_MAX);
	begin_line(&d->log, "");
}

/* The name of a type, "TYPE65280" for one without. */
static void add_type(struct buf *b, uint16_t type)
{
	static const struct {
		uint16_t type;
		const char *name;
	} types[] = {
		{1, "A"},     {2, "NS"},    {5, "CNAME"},  {6, "SOA"},    {12, "PTR"},  {15, "MX"},
		{16, "TXT"},  {28, "AAAA"}, {33, "SRV"},   {35, "NAPTR"}, {43, "DS"},   {48, "DNSKEY"},
		{52, "TLSA"}, {64, "SVCB"}, {65, "HTTPS"}, {252, "AXFR"}, {255, "ANY"}, {257, "CAA"},
	};
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (types[i].type == type) {
			buf_str(b, types[i].name);
			return;
		}
	}
	buf_fmt(b, "TYPE%u", (unsigned)type);
}

void log_question(struct dns *d, const struct dns_query *q, const char *verdict, const char *rule,
		  unsigned rcode, uint64_t ms)
{
	if (!d->config->log)
		return;
	char name[DNS_NAME_TEXT_MAX] = "";
	if (q->question_n > 0)
		dns_query_name(q, name);
	struct buf *line = &d->log.line;
	begin_line(&d->log, "dns");
	buf_str(line, ",\"name\":");
	buf_json(line, name, strlen(name));
	buf_str(line, ",\"type\":\"");
	add_type(line, q->type);
	buf_fmt(line, "\",\"verdict\":\"%s\",\"rule\":\"%s\"", verdict, rule);
	buf_fmt(line, ",\"rcode\":%u,\"ms\":%llu", rcode, (unsigned long long)ms);
	write_line(d);
}

/* True when the same was logged a short while ago; from now on it was. The table is small: another flow in the same
 * place is forgotten for it. */
static bool seen_lately(struct dns *d, const struct flow *f)
{
	const uint8_t *p = (const uint8_t *)f;
	uint32_t hash = 2166136261u;
	for (size_t i = 0; i < sizeof(*f); i++)
		hash = (hash ^ p[i]) * 16777619u;
	struct flow_seen *seen = &d->log.seen[hash % FLOWS_SEEN];
	if (d->now_ms < seen->until_ms && memcmp(&seen->flow, f, sizeof(*f)) == 0)
		return true;
	seen->flow = *f;
	seen->until_ms = d->now_ms + FLOW_AGAIN_MS;
	return false;
}

static void log_flow(struct dns *d, const struct flow *f)
{
	char text[FLOW_ADDRESS_TEXT];
	char protocol[FLOW_PROTOCOL_MAX];
	struct buf *line = &d->log.line;
	begin_line(&d->log, "flow");
	flow_address_text(f, f->source, text);
	buf_fmt(line, ",\"source\":\"%s\"", text);
	flow_address_text(f, f->address, text);
	buf_fmt(line, ",\"address\":\"%s\"", text);
	if (f->has_ports)
		buf_fmt(line, ",\"port\":%u", (unsigned)f->port);
	flow_protocol_text(f, protocol);
	buf_fmt(line, ",\"protocol\":\"%s\",\"verdict\":\"refused\",\"rule\":\"%s\"", protocol,
		refusal_name(f->mark));
	write_line(d);
}

int log_refused(void *data, int fd, uint32_t, struct err *e)
{
	struct dns *d = data;
	d->now_ms = clock_boot_ms();
	for (int i = 0; i < REFUSED_BATCH; i++) {
		/* ENOBUFS tells that some were lost: there are too many to log each. */
		ssize_t n = recv(fd, d->received, sizeof(d->received), MSG_DONTWAIT);
		if (n < 0 && errno != ENOBUFS)
			break;
		struct rd r = rd_over(d->received, n < 0 ? 0 : (size_t)n);
		struct flow f;
		while (flow_next(&r, &f))
			if (!seen_lately(d, &f))
				log_flow(d, &f);
	}
	return dns_settle(d, e);
}

void log_close(struct dns *d)
{
	buf_done(&d->log.line);
}
