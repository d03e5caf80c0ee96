/* wire/dns.h: hostile clients, hostile resolvers, and what is written, byte for byte. */
#include "wire/dns.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/scope.h"

#define CLIENT_ID   0x0102
#define UPSTREAM_ID 0xabcd

#define BYTES(text) (text), sizeof(text) - 1
#define NAME        "\2ok\4test\0"
#define QUESTION    NAME "\0\1\0\1"
#define TO_NAME     "\300\14"
#define RECORD      "\0\1\0\0\0\74" /* class and TTL, behind a type */
#define A_8844      "\0\1" RECORD "\0\4\10\10\4\4"
#define A_PRIVATE   "\0\1" RECORD "\0\4\12\0\0\1"
#define OPT_HEAD    "\0\0\51\4\320\0\0\0\0" /* 1232 bytes */
#define OPT         OPT_HEAD "\0\0"
#define OPT_DO      "\0\0\51\4\320\0\0\200\0\0\0"
#define L15         "\17aaaaaaaaaaaaaaa"
#define L63         "\77aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define L64         "\100aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void add_u16(struct buf *b, unsigned value)
{
	const uint8_t bytes[] = {(uint8_t)(value >> 8), (uint8_t)value};
	buf_add(b, bytes, sizeof(bytes));
}

/* counts: of the four sections, a hexadecimal digit each. */
static void add_head(struct buf *b, unsigned id, unsigned flags, unsigned counts)
{
	add_u16(b, id);
	add_u16(b, flags);
	for (unsigned i = 4; i-- > 0;)
		add_u16(b, counts >> (4 * i) & 0xf);
}

/* Both readers get memory of the exact length, so that a sanitizer sees one byte too far. */
static int read_query(const void *p, size_t n, struct dns_query *ret)
{
	uint8_t *exact = malloc(n > 0 ? n : 1);
	assert_non_null(exact);
	memcpy(exact, p, n);
	int r = dns_query_read(exact, n, ret);
	free(exact);
	return r;
}

static void make_query(struct dns_query *ret, unsigned flags, const char *body, size_t n,
		       unsigned additionals)
{
	scoped_buf struct buf b = BUF_INIT(1024);
	add_head(&b, CLIENT_ID, flags, 0x1000 | additionals);
	buf_add(&b, body, n);
	assert_int_equal(read_query(b.p, b.n, ret), 0);
}

static const struct {
	const char *what;
	unsigned flags;
	unsigned counts;
	const char *body;
	size_t n;
	int expected;
	uint32_t udp_bytes;
} queries[] = {
	{"plain", 0x0100, 0x1000, BYTES(QUESTION), 0, 512},
	{"root", 0x0100, 0x1000, BYTES("\0\0\1\0\1"), 0, 512},
	{"zero and dot in a label", 0, 0x1000, BYTES("\5a\0.\377b\4test\0\0\1\0\1"), 0, 512},
	{"name of 255", 0, 0x1000, BYTES(L63 L63 L63 L15 L15 L15 "\15aaaaaaaaaaaaa\0\0\1\0\1"), 0, 512},
	{"type 0", 0, 0x1000, BYTES(NAME "\0\0\0\1"), 0, 512},
	{"type 65535", 0, 0x1000, BYTES(NAME "\377\377\0\1"), 0, 512},
	{"OPT", 0, 0x1001, BYTES(QUESTION OPT), 0, 1232},
	{"OPT of no bytes", 0, 0x1001, BYTES(QUESTION "\0\0\51\0\0\0\0\0\0\0\0"), 0, 512},
	{"OPT of 511 bytes", 0, 0x1001, BYTES(QUESTION "\0\0\51\1\377\0\0\0\0\0\0"), 0, 512},
	{"OPT of 513 bytes", 0, 0x1001, BYTES(QUESTION "\0\0\51\2\1\0\0\0\0\0\0"), 0, 513},
	{"options", 0, 0x1001, BYTES(QUESTION OPT_HEAD "\0\13\0\12\0\3abc\0\14\0\0"), 0, 1232},
	{"another record", 0, 0x1002, BYTES(QUESTION TO_NAME A_8844 OPT), 0, 1232},

	{"an answer", 0x8180, 0x1000, BYTES(QUESTION), -EBADMSG, 0},

	{"opcode 2", 0x1100, 0x1000, BYTES(QUESTION), DNS_NOTIMP, 512},
	{"update", 0x2800, 0x1000, BYTES(QUESTION), DNS_NOTIMP, 512},
	{"class CH", 0x0100, 0x1000, BYTES("\7version\4bind\0\0\20\0\3"), DNS_REFUSED, 512},
	{"class ANY", 0x0100, 0x1000, BYTES(NAME "\0\1\0\377"), DNS_REFUSED, 512},
	{"ANY", 0x0100, 0x1000, BYTES(NAME "\0\377\0\1"), DNS_REFUSED, 512},
	{"AXFR", 0x0100, 0x1000, BYTES(NAME "\0\374\0\1"), DNS_REFUSED, 512},
	{"IXFR", 0x0100, 0x1000, BYTES(NAME "\0\373\0\1"), DNS_REFUSED, 512},
	{"OPT 1", 0, 0x1001, BYTES(QUESTION "\0\0\51\4\320\0\1\0\0\0\0"), DNS_BADVERS, 1232},

	{"no question counted", 0x0100, 0x0000, BYTES(""), DNS_FORMERR, 512},
	{"no question there", 0x0100, 0x1000, BYTES(""), DNS_FORMERR, 512},
	{"15 questions", 0x0100, 0xf000, BYTES(QUESTION), DNS_FORMERR, 512},
	{"two questions", 0x0100, 0x2000, BYTES(QUESTION QUESTION), DNS_FORMERR, 512},
	{"half a class", 0x0100, 0x1000, BYTES(NAME "\0\1\0"), DNS_FORMERR, 512},
	{"pointer to itself", 0x0100, 0x1000, BYTES(TO_NAME "\0\1\0\1"), DNS_FORMERR, 512},
	{"pointer to the head", 0x0100, 0x1000, BYTES("\300\0\0\1\0\1"), DNS_FORMERR, 512},
	{"pointer past the end", 0x0100, 0x1000, BYTES("\377\377\0\1\0\1"), DNS_FORMERR, 512},
	{"pointer behind a label", 0x0100, 0x1000, BYTES("\2ok" TO_NAME "\0\1\0\1"), DNS_FORMERR, 512},
	{"label of 64", 0x0100, 0x1000, BYTES(L64 "\0\0\1\0\1"), DNS_FORMERR, 512},
	{"label of kind 10", 0x0100, 0x1000, BYTES("\200\0\0\1\0\1"), DNS_FORMERR, 512},
	{"name of 256", 0, 0x1000, BYTES(L63 L63 L63 L15 L15 L15 "\16aaaaaaaaaaaaaa\0\0\1\0\1"), DNS_FORMERR,
	 512},
	{"name of 321", 0x0100, 0x1000, BYTES(L63 L63 L63 L63 L63 "\0\0\1\0\1"), DNS_FORMERR, 512},
	{"name without end", 0x0100, 0x1000, BYTES("\3abc"), DNS_FORMERR, 512},
	{"junk behind", 0x0100, 0x1000, BYTES(QUESTION "\0"), DNS_FORMERR, 512},
	{"answers counted", 0, 0x1100, BYTES(QUESTION), DNS_FORMERR, 512},
	{"authorities counted", 0, 0x1010, BYTES(QUESTION), DNS_FORMERR, 512},
	{"record in answers", 0, 0x1100, BYTES(QUESTION TO_NAME A_8844), DNS_FORMERR, 512},
	{"OPT in answers", 0, 0x1100, BYTES(QUESTION OPT), DNS_FORMERR, 512},
	{"OPT in authorities", 0, 0x1010, BYTES(QUESTION OPT), DNS_FORMERR, 512},
	{"OPT not counted", 0, 0x1000, BYTES(QUESTION OPT), DNS_FORMERR, 512},
	{"OPT not there", 0, 0x1001, BYTES(QUESTION), DNS_FORMERR, 512},
	{"two OPT", 0, 0x1002, BYTES(QUESTION OPT OPT), DNS_FORMERR, 1232},
	{"OPT of a name", 0, 0x1001, BYTES(QUESTION "\1a" OPT), DNS_FORMERR, 512},
	{"OPT of a pointer", 0, 0x1001, BYTES(QUESTION "\300\23\0\51\4\320\0\0\0\0\0\0"), DNS_FORMERR, 512},
	{"OPT too short", 0, 0x1001, BYTES(QUESTION OPT_HEAD "\47\17"), DNS_FORMERR, 512},
	{"option too short", 0, 0x1001, BYTES(QUESTION OPT_HEAD "\0\5\0\12\0\2a"), DNS_FORMERR, 512},
	{"option cut", 0, 0x1001, BYTES(QUESTION OPT_HEAD "\0\3\0\12\0"), DNS_FORMERR, 512},
};

static void test_queries(void **)
{
	for (size_t i = 0; i < sizeof(queries) / sizeof(queries[0]); i++) {
		scoped_buf struct buf b = BUF_INIT(4096);
		add_head(&b, CLIENT_ID, queries[i].flags, queries[i].counts);
		buf_add(&b, queries[i].body, queries[i].n);
		struct dns_query q = {0};
		int r = read_query(b.p, b.n, &q);
		if (r != queries[i].expected || q.udp_bytes != queries[i].udp_bytes)
			fail_msg("%s: %d, %u bytes", queries[i].what, r, (unsigned)q.udp_bytes);
		if (r >= 0)
			assert_int_equal(q.id, CLIENT_ID);
	}
}

/* Shorter than a head there is no id to answer to. */
static void test_short(void **)
{
	static const uint8_t zeros[12];
	struct dns_query q;
	for (size_t n = 0; n < sizeof(zeros); n++)
		assert_int_equal(read_query(zeros, n, &q), -EBADMSG);
	assert_int_equal(read_query(zeros, sizeof(zeros), &q), DNS_FORMERR);
	assert_int_equal(q.question_n, 0);
}

/* Each of the pointers leads to the next one, forward. */
static void test_pointer_chain(void **)
{
	scoped_buf struct buf b = BUF_INIT(1024);
	add_head(&b, CLIENT_ID, 0x0100, 0x1000);
	for (unsigned i = 0; i < 120; i++)
		add_u16(&b, 0xc000 | (12 + 2 * i + 2));
	buf_add(&b, BYTES("\0\0\1\0\1"));
	struct dns_query q;
	assert_int_equal(read_query(b.p, b.n, &q), DNS_FORMERR);
}

static void test_option_flood(void **)
{
	struct dns_query q;
	for (unsigned junk = 0; junk < 2; junk++) {
		scoped_buf struct buf b = BUF_INIT(DNS_MESSAGE_MAX);
		add_head(&b, CLIENT_ID, 0x0100, 0x1001);
		buf_add(&b, BYTES(QUESTION OPT_HEAD));
		add_u16(&b, 60000 + junk);
		for (unsigned i = 0; i < 15000; i++)
			buf_add(&b, BYTES("\0\14\0\0"));
		buf_add(&b, "x", junk);
		assert_int_equal(buf_check(&b), 0);
		assert_int_equal(read_query(b.p, b.n, &q), junk ? DNS_FORMERR : 0);
	}
}

static void test_fields(void **)
{
	struct dns_query q;
	make_query(&q, 0x0130, BYTES(QUESTION OPT_DO), 1);
	assert_true(q.recursion_desired && q.checking_disabled && q.authentic_data);
	assert_true(q.edns && q.dnssec_ok);
	assert_int_equal(q.type, DNS_A);
	assert_int_equal(q.question_n, sizeof(QUESTION) - 1);
	assert_memory_equal(q.question, QUESTION, sizeof(QUESTION) - 1);
	make_query(&q, 0, BYTES(NAME "\0\34\0\1" OPT), 1);
	assert_false(q.recursion_desired || q.checking_disabled || q.authentic_data || q.dnssec_ok);
	assert_true(q.edns);
	assert_int_equal(q.type, DNS_AAAA);
}

static void test_equal(void **)
{
	static const struct {
		unsigned flags;
		const char *body;
		size_t n;
		unsigned additionals;
	} others[] = {
		{0x0000, BYTES(QUESTION OPT), 1},         {0x0110, BYTES(QUESTION OPT), 1},
		{0x0120, BYTES(QUESTION OPT), 1},         {0x0100, BYTES(QUESTION), 0},
		{0x0100, BYTES(QUESTION OPT_DO), 1},      {0x0100, BYTES("\2oK\4test\0\0\1\0\1" OPT), 1},
		{0x0100, BYTES(NAME "\0\34\0\1" OPT), 1}, {0x0100, BYTES("\2ok\0\0\1\0\1" OPT), 1},
	};
	struct dns_query q, same, other;
	make_query(&q, 0x0100, BYTES(QUESTION OPT), 1);
	make_query(&same, 0x0100, BYTES(QUESTION "\0\0\51\20\0\0\0\0\0\0\0"), 1);
	same.id = 77;
	assert_true(dns_query_equal(&q, &same));
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		make_query(&other, others[i].flags, others[i].body, others[i].n, others[i].additionals);
		if (dns_query_equal(&q, &other) || dns_query_equal(&other, &q))
			fail_msg("row %zu", i);
	}
}

static void test_names(void **)
{
	static const struct {
		const char *body;
		size_t n;
		const char *text, *is_for, *is_not_for;
	} rows[] = {
		{BYTES(QUESTION), "ok.test", "OK.Test", "k.test"},
		{BYTES("\2OK\4tEST\0\0\1\0\1"), "OK.tEST", "ok.test", "ok.test."},
		{BYTES("\0\0\1\0\1"), ".", ".", ""},
		{BYTES("\7ok.test\0\0\1\0\1"), "ok\\046test", "ok\\046test", "ok.test"},
		{BYTES("\5a\0\\\377 \1b\0\0\1\0\1"), "a\\000\\092\\255\\032.b", "a\\000\\092\\255\\032.b",
		 "a"},
		{BYTES("\10ok\0.test\0\0\1\0\1"), "ok\\000\\046test", "ok\\000\\046test", "ok"},
		{BYTES("\2ok\4test\1x\0\0\1\0\1"), "ok.test.x", "ok.test.x", "ok.test"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dns_query q;
		char name[DNS_NAME_TEXT_MAX];
		make_query(&q, 0, rows[i].body, rows[i].n, 0);
		dns_query_name(&q, name);
		assert_string_equal(name, rows[i].text);
		assert_true(dns_query_is_for(&q, rows[i].is_for));
		assert_false(dns_query_is_for(&q, rows[i].is_not_for));
	}
	struct dns_query none = {0};
	char name[DNS_NAME_TEXT_MAX] = "x";
	dns_query_name(&none, name);
	assert_string_equal(name, "");
	assert_false(dns_query_is_for(&none, ""));
}

/* The longest text: every byte of the longest name escaped. */
static void test_longest_name(void **)
{
	scoped_buf struct buf b = BUF_INIT(1024);
	static const unsigned labels[] = {63, 63, 63, 61};
	for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
		buf_fmt(&b, "%c", (int)labels[i]);
		for (unsigned k = 0; k < labels[i]; k++)
			buf_add(&b, "\1", 1);
	}
	buf_add(&b, BYTES("\0\0\1\0\1"));
	struct dns_query q;
	char name[DNS_NAME_TEXT_MAX];
	make_query(&q, 0, b.p, b.n, 0);
	assert_int_equal(q.question_n, DNS_QUESTION_MAX);
	dns_query_name(&q, name);
	assert_int_equal(strlen(name), 250 * 4 + 3);
}

static void check_bytes(const uint8_t *p, size_t n, const char *wanted, size_t wanted_n)
{
	assert_int_equal(n, wanted_n);
	assert_memory_equal(p, wanted, wanted_n);
}

static void test_query_write(void **)
{
	uint8_t out[DNS_QUERY_MAX];
	struct dns_query q;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	size_t n = dns_query_write(&q, UPSTREAM_ID, out);
	check_bytes(out, n, BYTES("\253\315\1\0\0\1\0\0\0\0\0\1" QUESTION OPT));
	make_query(&q, 0x0030, BYTES(QUESTION OPT_DO), 1);
	n = dns_query_write(&q, UPSTREAM_ID, out);
	check_bytes(out, n, BYTES("\253\315\0\60\0\1\0\0\0\0\0\1" QUESTION OPT_DO));
}

static void test_error_write(void **)
{
	uint8_t out[DNS_QUERY_MAX];
	struct dns_query q;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	size_t n = dns_error_write(&q, DNS_SERVFAIL, out);
	check_bytes(out, n, BYTES("\1\2\201\202\0\1\0\0\0\0\0\0" QUESTION));
	make_query(&q, 0x0010, BYTES(QUESTION OPT_DO), 1);
	n = dns_error_write(&q, DNS_NOERROR, out);
	check_bytes(out, n, BYTES("\1\2\200\220\0\1\0\0\0\0\0\1" QUESTION OPT_DO));
	n = dns_error_write(&q, DNS_BADVERS, out);
	check_bytes(out, n, BYTES("\1\2\200\220\0\1\0\0\0\0\0\1" QUESTION "\0\0\51\4\320\1\0\200\0\0\0"));

	assert_int_equal(read_query("\1\2\51\0\0\1\0\0\0\0\0\0", 12, &q), DNS_NOTIMP);
	n = dns_error_write(&q, DNS_NOTIMP, out);
	check_bytes(out, n, BYTES("\1\2\251\204\0\0\0\0\0\0\0\0"));
}

static void test_address_write(void **)
{
	uint8_t out[DNS_QUERY_MAX + 16];
	struct dns_query q;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	size_t n = dns_address_write(&q, 0x08080404, out);
	check_bytes(out, n, BYTES("\1\2\201\200\0\1\0\1\0\0\0\0" QUESTION TO_NAME A_8844));
	make_query(&q, 0x0100, BYTES(QUESTION OPT), 1);
	n = dns_address_write(&q, 0x08080404, out);
	check_bytes(out, n, BYTES("\1\2\201\200\0\1\0\1\0\0\0\1" QUESTION TO_NAME A_8844 OPT));
}

struct seen {
	unsigned v4, v6;
};

static bool refuse_private(void *data, const uint8_t *address, size_t n)
{
	struct seen *seen = data;
	assert_true(n == 4 || n == 16);
	seen->v4 += n == 4;
	seen->v6 += n == 16;
	return address[0] == 10 || address[0] == 0 || address[0] == 0xfd;
}

static int read_answer(const struct buf *b, const struct dns_query *q, struct seen *seen,
		       struct dns_answer *ret)
{
	uint8_t *exact = malloc(b->n);
	assert_non_null(exact);
	memcpy(exact, b->p, b->n);
	int r = dns_answer_read(exact, b->n, q, UPSTREAM_ID, refuse_private, seen, ret);
	free(exact);
	return r;
}

#define V6(prefix)  prefix "\0\0\0\0\0\0\0\0\0\0\0\0\0\1"
#define HTTPS(rest) TO_NAME "\0\101" RECORD rest
#define SOA_NUMBERS "\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5"
#define OWN         "\300\31" /* the first record itself */

/* kept: records of the three sections, a hexadecimal digit each. */
static const struct {
	const char *what;
	unsigned flags;
	unsigned counts;
	const char *body;
	size_t n;
	int expected;
	unsigned kept, v4, v6;
	bool denied;
} answers[] = {
	{"A", 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_8844), 0, 0x100, 1, 0, false},
	{"nothing", 0x8180, 0x1000, BYTES(QUESTION), 0, 0x000, 0, 0, false},
	{"AAAA", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\34" RECORD "\0\20" V6("\46\0")), 0, 0x100, 0, 1,
	 false},
	{"private", 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_PRIVATE), 0, 0x100, 1, 0, true},
	{"mixed", 0x8180, 0x1200, BYTES(QUESTION TO_NAME A_PRIVATE TO_NAME A_8844), 0, 0x200, 2, 0, true},
	{"private AAAA", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\34" RECORD "\0\20" V6("\375\0")), 0,
	 0x100, 0, 1, true},
	{"private authority", 0x8180, 0x1010, BYTES(QUESTION TO_NAME A_PRIVATE), 0, 0x010, 1, 0, true},
	{"private additional", 0x8180, 0x1001, BYTES(QUESTION TO_NAME A_PRIVATE), 0, 0x001, 1, 0, true},
	{"private behind OPT", 0x8180, 0x1002, BYTES(QUESTION OPT TO_NAME A_PRIVATE), 0, 0x000, 1, 0, true},
	{"private of another name", 0x8180, 0x1100, BYTES(QUESTION "\1x\0" A_PRIVATE), 0, 0x100, 1, 0, true},
	{"CNAME and A", 0x8180, 0x1200, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\4\1x\300\17\300\45" A_8844),
	 0, 0x200, 1, 0, false},
	{"CNAME to itself", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\2" TO_NAME), 0, 0x100, 0,
	 0, false},
	{"zero in a name", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\6\4a\0.b\0"), 0, 0x100, 0,
	 0, false},
	{"SOA", 0x8183, 0x1010, BYTES(QUESTION TO_NAME "\0\6" RECORD "\0\32\1a" TO_NAME TO_NAME SOA_NUMBERS),
	 0, 0x010, 0, 0, false},
	{"SOA longer than RDLENGTH", 0x8183, 0x1010,
	 BYTES(QUESTION TO_NAME "\0\6" RECORD "\0\31\1a" TO_NAME TO_NAME SOA_NUMBERS), -EBADMSG, 0x000, 0, 0,
	 false},
	{"MX", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\17" RECORD "\0\6\0\1\1m" TO_NAME), 0, 0x100, 0, 0,
	 false},
	{"SRV", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\41" RECORD "\0\10\0\0\0\0\0\0" TO_NAME), 0, 0x100,
	 0, 0, false},
	{"NAPTR", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\43" RECORD "\0\12\0\0\0\0\1u\0\0" TO_NAME), 0,
	 0x100, 0, 0, false},
	{"TXT of anything", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\20" RECORD "\0\2\377\377"), 0, 0x100,
	 0, 0, false},
	{"HTTPS", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\12\0\1\0\0\1\0\3\2h2")), 0, 0x100, 0, 0, false},
	{"HTTPS alias", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\5\0\0\1x\0")), 0, 0x100, 0, 0, false},
	{"IPv4 hint", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\13\0\1\0\0\4\0\4\10\10\4\4")), 0, 0x100, 0, 0,
	 true},
	{"IPv6 hint", 0x8180, 0x1100,
	 BYTES(QUESTION TO_NAME "\0\100" RECORD "\0\27\0\1\0\0\6\0\20" V6("\46\0")), 0, 0x100, 0, 0, true},
	{"OPT last", 0x8180, 0x1101, BYTES(QUESTION TO_NAME A_8844 OPT), 0, 0x100, 1, 0, false},
	{"OPT between", 0x8180, 0x1003, BYTES(QUESTION TO_NAME A_8844 OPT TO_NAME A_8844), 0, 0x001, 2, 0,
	 false},
	{"truncated", 0x8380, 0x1000, BYTES(QUESTION), 0, 0x000, 0, 0, false},
	{"truncated in a record", 0x8380, 0x1100, BYTES(QUESTION TO_NAME "\0\1"), 0, 0x000, 0, 0, false},

	{"not an answer", 0x0100, 0x1000, BYTES(QUESTION), -ENOENT, 0x000, 0, 0, false},
	{"opcode 2", 0x9180, 0x1000, BYTES(QUESTION), -ENOENT, 0x000, 0, 0, false},
	{"another name", 0x8180, 0x1100, BYTES("\2no\4test\0\0\1\0\1" TO_NAME A_8844), -ENOENT, 0x000, 0, 0,
	 false},
	{"another case", 0x8180, 0x1100, BYTES("\2oK\4test\0\0\1\0\1" TO_NAME A_8844), -ENOENT, 0x000, 0, 0,
	 false},
	{"another type", 0x8180, 0x1100, BYTES(NAME "\0\34\0\1" TO_NAME A_8844), -ENOENT, 0x000, 0, 0, false},
	{"two questions", 0x8180, 0x2100, BYTES(QUESTION QUESTION TO_NAME A_8844), -ENOENT, 0x000, 0, 0,
	 false},
	{"no question", 0x8180, 0x0100, BYTES(NAME A_8844), -ENOENT, 0x000, 0, 0, false},
	{"question cut", 0x8180, 0x1000, BYTES(NAME "\0\1\0"), -ENOENT, 0x000, 0, 0, false},

	{"owner is a loop", 0x8180, 0x1100, BYTES(QUESTION OWN A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"loop behind a label", 0x8180, 0x1100, BYTES(QUESTION "\1a" OWN A_8844), -EBADMSG, 0x000, 0, 0,
	 false},
	{"pointer forward", 0x8180, 0x1100, BYTES(QUESTION "\300\33" A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"pointer past the end", 0x8180, 0x1100, BYTES(QUESTION "\377\377" A_8844), -EBADMSG, 0x000, 0, 0,
	 false},
	{"pointer to the head", 0x8180, 0x1100, BYTES(QUESTION "\300\4" A_8844), -EBADMSG, 0x000, 0, 0,
	 false},
	{"pointer to a pointer", 0x8180, 0x1200, BYTES(QUESTION TO_NAME A_8844 "\300\31" A_8844), 0, 0x200, 2,
	 0, false},
	{"pointer to a name that holds it", 0x8180, 0x1200,
	 BYTES(QUESTION TO_NAME "\0\20" RECORD "\0\1\2\300\45" A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"label of 64", 0x8180, 0x1100, BYTES(QUESTION L64 "\0" A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"name of 321", 0x8180, 0x1100, BYTES(QUESTION L63 L63 L63 L63 L63 "\0" A_8844), -EBADMSG, 0x000, 0,
	 0, false},
	{"256 with what a pointer adds", 0x8180, 0x1100,
	 BYTES(QUESTION L63 L63 L63 L15 L15 L15 "\6aaaaaa" TO_NAME A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"255 with what a pointer adds", 0x8180, 0x1100,
	 BYTES(QUESTION L63 L63 L63 L15 L15 L15 "\5aaaaa" TO_NAME A_8844), 0, 0x100, 1, 0, false},
	{"record cut", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\1" RECORD "\0\4\10"), -EBADMSG, 0x000, 0, 0,
	 false},
	{"RDLENGTH past the end", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\1" RECORD "\377\377\10\10\4\4"),
	 -EBADMSG, 0x000, 0, 0, false},
	{"A of two bytes", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\1" RECORD "\0\2\10\10"), -EBADMSG,
	 0x000, 0, 0, false},
	{"A of five bytes", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\1" RECORD "\0\5\10\10\4\4\4"),
	 -EBADMSG, 0x000, 0, 0, false},
	{"AAAA of four bytes", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\34" RECORD "\0\4\10\10\4\4"),
	 -EBADMSG, 0x000, 0, 0, false},
	{"15 records", 0x8180, 0x1f00, BYTES(QUESTION TO_NAME A_8844), -EBADMSG, 0x000, 1, 0, false},
	{"record not counted", 0x8180, 0x1000, BYTES(QUESTION TO_NAME A_8844), -EBADMSG, 0x000, 0, 0, false},
	{"junk behind", 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_8844 "x"), -EBADMSG, 0x000, 1, 0, false},
	{"class CH", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\1\0\3\0\0\0\0\0\4\10\10\4\4"), -EBADMSG,
	 0x000, 0, 0, false},
	{"CNAME longer than RDLENGTH", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\2\1x\0"),
	 -EBADMSG, 0x000, 0, 0, false},
	{"CNAME shorter than RDLENGTH", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\4\1x\0!"),
	 -EBADMSG, 0x000, 0, 0, false},
	{"CNAME loop", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\5" RECORD "\0\2\300\45"), -EBADMSG, 0x000,
	 0, 0, false},
	{"MX loop", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\17" RECORD "\0\4\0\1\300\47"), -EBADMSG, 0x000,
	 0, 0, false},
	{"NAPTR string too long", 0x8180, 0x1100,
	 BYTES(QUESTION TO_NAME "\0\43" RECORD "\0\11\0\0\0\0\0\0\4" TO_NAME), -EBADMSG, 0x000, 0, 0, false},
	{"SVCB pointer", 0x8180, 0x1100, BYTES(QUESTION TO_NAME "\0\100" RECORD "\0\4\0\1" TO_NAME), -EBADMSG,
	 0x000, 0, 0, false},
	{"parameter too short", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\11\0\1\0\0\1\0\5h2")), -EBADMSG,
	 0x000, 0, 0, false},
	{"parameters in disorder", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\15\0\1\0\0\3\0\2\1\273\0\1\0\0")),
	 -EBADMSG, 0x000, 0, 0, false},
	{"parameter twice", 0x8180, 0x1100, BYTES(QUESTION HTTPS("\0\13\0\1\0\0\1\0\0\0\1\0\0")), -EBADMSG,
	 0x000, 0, 0, false},
	{"two OPT", 0x8180, 0x1002, BYTES(QUESTION OPT OPT), -EBADMSG, 0x000, 0, 0, false},
	{"OPT in answers", 0x8180, 0x1100, BYTES(QUESTION OPT), -EBADMSG, 0x000, 0, 0, false},
	{"OPT in authorities", 0x8180, 0x1010, BYTES(QUESTION OPT), -EBADMSG, 0x000, 0, 0, false},
	{"OPT of a name", 0x8180, 0x1001, BYTES(QUESTION "\1a" OPT), -EBADMSG, 0x000, 0, 0, false},
	{"option too short", 0x8180, 0x1001, BYTES(QUESTION OPT_HEAD "\0\4\0\14\0\1"), -EBADMSG, 0x000, 0, 0,
	 false},
};

static void test_answers(void **)
{
	struct dns_query q;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		scoped_buf struct buf b = BUF_INIT(4096);
		add_head(&b, UPSTREAM_ID, answers[i].flags, answers[i].counts);
		buf_add(&b, answers[i].body, answers[i].n);
		struct seen seen = {0};
		struct dns_answer a = {0};
		int r = read_answer(&b, &q, &seen, &a);
		if (r != answers[i].expected)
			fail_msg("%s: %d", answers[i].what, r);
		unsigned kept = (unsigned)a.answers << 8 | (unsigned)a.authorities << 4 | a.additionals;
		if (kept != answers[i].kept)
			fail_msg("%s: kept %x", answers[i].what, kept);
		if (seen.v4 != answers[i].v4 || seen.v6 != answers[i].v6)
			fail_msg("%s: addresses %u and %u", answers[i].what, seen.v4, seen.v6);
		if (a.denied != answers[i].denied)
			fail_msg("%s: denied is wrong", answers[i].what);
		assert_int_equal(a.truncated, r == 0 && (answers[i].flags & 0x0200));
	}
}

/* Every message cut short anywhere is refused; with another id it is somebody else's. */
static void test_cut(void **)
{
	struct dns_query q;
	struct seen seen = {0};
	struct dns_answer a;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	scoped_buf struct buf b = BUF_INIT(1024);
	add_head(&b, UPSTREAM_ID, 0x8180, 0x1101);
	buf_add(&b, BYTES(QUESTION TO_NAME A_8844 OPT));
	size_t question_end = 12 + q.question_n, whole = b.n;
	assert_int_equal(read_answer(&b, &q, &seen, &a), 0);
	for (b.n = 1; b.n < whole; b.n++)
		assert_int_equal(read_answer(&b, &q, &seen, &a), b.n < question_end ? -ENOENT : -EBADMSG);
	assert_int_equal(
		dns_answer_read((const uint8_t *)b.p, whole, &q, UPSTREAM_ID + 1, refuse_private, &seen, &a),
		-ENOENT);
}

/* Each owner points to the one before it: the sixteenth hop is the last that is followed. */
static void test_hops(void **)
{
	struct dns_query q;
	struct seen seen = {0};
	struct dns_answer a;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	for (unsigned hops = 15; hops <= 17; hops++) {
		scoped_buf struct buf b = BUF_INIT(1024);
		add_head(&b, UPSTREAM_ID, 0x8180, 0x1f00 | (hops - 15) << 4);
		buf_add(&b, BYTES(QUESTION));
		for (unsigned i = 0; i < hops; i++) {
			add_u16(&b, 0xc000 | (i == 0 ? 12 : (unsigned)b.n - 12));
			buf_add(&b, BYTES("\0\20" RECORD "\0\0"));
		}
		assert_int_equal(read_answer(&b, &q, &seen, &a), hops <= 16 ? 0 : -EBADMSG);
	}
}

static void test_rcode(void **)
{
	struct dns_query q;
	struct seen seen = {0};
	struct dns_answer a;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	scoped_buf struct buf b = BUF_INIT(1024);
	add_head(&b, UPSTREAM_ID, 0x8183, 0x1000);
	buf_add(&b, BYTES(QUESTION));
	assert_int_equal(read_answer(&b, &q, &seen, &a), 0);
	assert_int_equal(a.rcode, DNS_NXDOMAIN);
	buf_clear(&b);
	add_head(&b, UPSTREAM_ID, 0x8180, 0x1001);
	buf_add(&b, BYTES(QUESTION "\0\0\51\4\320\1\0\0\0\0\0"));
	assert_int_equal(read_answer(&b, &q, &seen, &a), 0);
	assert_int_equal(a.rcode, DNS_SERVFAIL);
}

static const struct {
	const char *what;
	unsigned client_flags;
	const char *client;
	size_t client_n;
	unsigned client_additionals;
	size_t max;
	unsigned flags;
	unsigned counts;
	const char *body;
	size_t n;
	const char *wanted;
	size_t wanted_n;
} written[] = {
	{"plain", 0x0100, BYTES(QUESTION), 0, 512, 0x8180, 0x1101, BYTES(QUESTION TO_NAME A_8844 OPT),
	 BYTES("\1\2\201\200\0\1\0\1\0\0\0\0" QUESTION TO_NAME A_8844)},
	{"OPT of ours", 0x0100, BYTES(QUESTION OPT), 1, 512, 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_8844),
	 BYTES("\1\2\201\200\0\1\0\1\0\0\0\1" QUESTION TO_NAME A_8844 OPT)},
	{"OPT's options gone", 0x0100, BYTES(QUESTION OPT_DO), 1, 512, 0x8180, 0x1001,
	 BYTES(QUESTION "\0\0\51\20\0\0\0\0\0\0\4\0\12\0\0"),
	 BYTES("\1\2\201\200\0\1\0\0\0\0\0\1" QUESTION OPT_DO)},
	{"cut at OPT", 0x0100, BYTES(QUESTION OPT), 1, 512, 0x8180, 0x1013,
	 BYTES(QUESTION TO_NAME A_8844 "\1b\0" A_8844 OPT TO_NAME A_8844),
	 BYTES("\1\2\201\200\0\1\0\0\0\1\0\2" QUESTION TO_NAME A_8844 "\1b\0" A_8844 OPT)},
	{"flags of the client", 0x0010, BYTES(QUESTION), 0, 512, 0x85e3, 0x1000, BYTES(QUESTION),
	 BYTES("\1\2\204\223\0\1\0\0\0\0\0\0" QUESTION)},
	{"AD for who asked", 0x0120, BYTES(QUESTION), 0, 512, 0x81b0, 0x1000, BYTES(QUESTION),
	 BYTES("\1\2\201\240\0\1\0\0\0\0\0\0" QUESTION)},
	{"AD with DO", 0x0100, BYTES(QUESTION OPT_DO), 1, 512, 0x81a0, 0x1000, BYTES(QUESTION),
	 BYTES("\1\2\201\240\0\1\0\0\0\0\0\1" QUESTION OPT_DO)},
	{"truncated", 0x0100, BYTES(QUESTION OPT), 1, 512, 0x8380, 0x1100, BYTES(QUESTION TO_NAME A_8844),
	 BYTES("\1\2\203\200\0\1\0\0\0\0\0\1" QUESTION OPT)},
	{"exactly max", 0x0100, BYTES(QUESTION OPT), 1, 52, 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_8844),
	 BYTES("\1\2\201\200\0\1\0\1\0\0\0\1" QUESTION TO_NAME A_8844 OPT)},
	{"one above max", 0x0100, BYTES(QUESTION OPT), 1, 51, 0x8180, 0x1100, BYTES(QUESTION TO_NAME A_8844),
	 BYTES("\1\2\203\200\0\1\0\0\0\0\0\1" QUESTION OPT)},
	{"max without OPT", 0x0100, BYTES(QUESTION), 0, 41, 0x8180, 0x1101,
	 BYTES(QUESTION TO_NAME A_8844 OPT), BYTES("\1\2\201\200\0\1\0\1\0\0\0\0" QUESTION TO_NAME A_8844)},
	{"above max without OPT", 0x0100, BYTES(QUESTION), 0, 40, 0x8183, 0x1100,
	 BYTES(QUESTION TO_NAME A_8844), BYTES("\1\2\203\203\0\1\0\0\0\0\0\0" QUESTION)},
};

static void test_answer_write(void **)
{
	uint8_t *out = malloc(DNS_MESSAGE_MAX);
	assert_non_null(out);
	for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
		struct dns_query q;
		struct seen seen = {0};
		struct dns_answer a;
		make_query(&q, written[i].client_flags, written[i].client, written[i].client_n,
			   written[i].client_additionals);
		scoped_buf struct buf b = BUF_INIT(1024);
		add_head(&b, UPSTREAM_ID, written[i].flags, written[i].counts);
		buf_add(&b, written[i].body, written[i].n);
		assert_int_equal(read_answer(&b, &q, &seen, &a), 0);
		size_t n = dns_answer_write(&q, (const uint8_t *)b.p, &a, written[i].max, out);
		if (n != written[i].wanted_n || memcmp(out, written[i].wanted, n) != 0)
			fail_msg("%s: %zu bytes instead of %zu, or others", written[i].what, n,
				 written[i].wanted_n);
	}
	free(out);
}

/* The largest message there is, over UDP and over TCP. */
static void test_big(void **)
{
	struct dns_query q;
	struct seen seen = {0};
	struct dns_answer a;
	make_query(&q, 0x0100, BYTES(QUESTION), 0);
	scoped_buf struct buf b = BUF_INIT(DNS_MESSAGE_MAX);
	add_u16(&b, UPSTREAM_ID);
	add_u16(&b, 0x8180);
	add_u16(&b, 1);
	add_u16(&b, 4094);
	buf_add(&b, BYTES("\0\0\0\0" QUESTION));
	for (unsigned i = 0; i < 4094; i++)
		buf_add(&b, BYTES(TO_NAME A_8844));
	assert_int_equal(buf_check(&b), 0);
	assert_int_equal(read_answer(&b, &q, &seen, &a), 0);
	assert_int_equal(seen.v4, 4094);
	uint8_t *out = malloc(DNS_MESSAGE_MAX);
	assert_non_null(out);
	assert_int_equal(dns_answer_write(&q, (const uint8_t *)b.p, &a, DNS_MESSAGE_MAX, out), b.n);
	assert_memory_equal(out + 2, b.p + 2, b.n - 2);
	assert_int_equal(dns_answer_write(&q, (const uint8_t *)b.p, &a, DNS_UPSTREAM_UDP, out),
			 12 + q.question_n);
	free(out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queries),       cmocka_unit_test(test_short),
		cmocka_unit_test(test_pointer_chain), cmocka_unit_test(test_option_flood),
		cmocka_unit_test(test_fields),        cmocka_unit_test(test_equal),
		cmocka_unit_test(test_names),         cmocka_unit_test(test_longest_name),
		cmocka_unit_test(test_query_write),   cmocka_unit_test(test_error_write),
		cmocka_unit_test(test_address_write), cmocka_unit_test(test_answers),
		cmocka_unit_test(test_cut),           cmocka_unit_test(test_hops),
		cmocka_unit_test(test_rcode),         cmocka_unit_test(test_answer_write),
		cmocka_unit_test(test_big),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
