#include "sys/nft.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <libnftnl/chain.h>
#include <libnftnl/common.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <libnftnl/set.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "sys/netlink.h"

enum {
	BATCH_BYTES = 65536,
	MESSAGE_BYTES_MAX = 4096,    /* of any one message here */
	LOG_BYTES = 128,             /* of a packet: its heads */
	BURST_LEAST_BYTES = 1 << 18, /* of a rate: a few of the largest packets that a link carries at once */
	BURST_MOST_BYTES = 1 << 30,
};

/* Rate and burst together, in bytes times nanoseconds, are less than 64 bits in the kernel. No link is this fast. */
#define RATE_MOST (UINT64_C(16) << 30)

struct nft_batch {
	struct netlink *netlink;
	size_t n;
	struct nlmsghdr *last; /* message; NULL before the first */
	bool overflow;
	_Alignas(struct nlmsghdr) char bytes[BATCH_BYTES];
};

/* --- keys ---------------------------------------------------------------------------------------------------- */

void nft_key_bytes(struct nft_key *k, const void *p, size_t n)
{
	size_t padded = (n + 3) & ~(size_t)3;
	assert(k->n + padded <= sizeof(k->bytes));
	memset(k->bytes + k->n, 0, padded);
	memcpy(k->bytes + k->n, p, n);
	k->n += padded;
}

void nft_key_link(struct nft_key *k, const char *name)
{
	char padded[IFNAMSIZ] = {0};
	size_t n = strlen(name);
	memcpy(padded, name, n < IFNAMSIZ ? n : IFNAMSIZ - 1);
	nft_key_bytes(k, padded, sizeof(padded));
}

void nft_key_address(struct nft_key *k, uint32_t address)
{
	address = htonl(address);
	nft_key_bytes(k, &address, sizeof(address));
}

void nft_key_port(struct nft_key *k, uint16_t port)
{
	port = htons(port);
	nft_key_bytes(k, &port, sizeof(port));
}

void nft_key_number(struct nft_key *k, uint32_t number)
{
	nft_key_bytes(k, &number, sizeof(number));
}

/* --- the batch ----------------------------------------------------------------------------------------------- */

/* Begins a message of the batch; the one after it needs room, too. */
static struct nlmsghdr *begin(struct nft_batch *b, uint16_t type, uint8_t family, uint16_t flags)
{
	if (b->n + 2 * MESSAGE_BYTES_MAX > sizeof(b->bytes)) {
		b->overflow = true;
		b->n = 0;
	}
	b->last = nftnl_nlmsg_build_hdr(b->bytes + b->n, type, family, flags, netlink_sequence(b->netlink));
	return b->last;
}

static void finish(struct nft_batch *b, const struct nlmsghdr *m)
{
	b->n += ((size_t)m->nlmsg_len + NLMSG_ALIGNTO - 1) & ~(size_t)(NLMSG_ALIGNTO - 1);
}

static void restart(struct nft_batch *b)
{
	b->overflow = false;
	b->last = NULL;
	b->n = 0;
	const struct nlmsghdr *m = nftnl_batch_begin(b->bytes, netlink_sequence(b->netlink));
	finish(b, m);
}

int nft_open(int netns, struct nft_batch **ret, struct err *e)
{
	struct nft_batch *b = calloc(1, sizeof(*b));
	if (!b)
		return err_set(e, -ENOMEM, "nftables: out of memory");
	int r = netlink_open(NETLINK_NETFILTER, netns, &b->netlink, e);
	if (r < 0) {
		free(b);
		return r;
	}
	restart(b);
	*ret = b;
	return 0;
}

void nft_close(struct nft_batch *b)
{
	if (b)
		netlink_close(b->netlink);
	free(b);
}

int nft_commit(struct nft_batch *b, struct err *e)
{
	int r = 0;
	if (b->overflow) {
		r = err_set(e, -E2BIG, "a transaction that is too large");
	} else if (b->last) {
		/* An error is answered to any message; that there was none, only to the last: many answers would be
		 * more than the socket holds. */
		b->last->nlmsg_flags |= NLM_F_ACK;
		const struct nlmsghdr *end = nftnl_batch_end(b->bytes + b->n, netlink_sequence(b->netlink));
		finish(b, end);
		r = netlink_send_batch(b->netlink, b->bytes, b->n, b->last->nlmsg_seq, e);
	}
	restart(b);
	return r < 0 ? err_ctx(e, r, "nftables") : 0;
}

/* --- elements ------------------------------------------------------------------------------------------------ */

/* The library's objects are made and freed within one call; without memory there is no way to go on but to fail the
 * whole batch. */
static struct nftnl_expr *new_statement(const struct nft_element *x)
{
	struct nftnl_expr *s = NULL;
	if (x->flows_over > 0 && (s = nftnl_expr_alloc("connlimit"))) {
		nftnl_expr_set_u32(s, NFTNL_EXPR_CONNLIMIT_COUNT, x->flows_over);
		nftnl_expr_set_u32(s, NFTNL_EXPR_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV);
	}
	if (x->bytes_per_s > 0 && (s = nftnl_expr_alloc("limit"))) {
		uint64_t rate = x->bytes_per_s < RATE_MOST ? x->bytes_per_s : RATE_MOST;
		uint64_t burst = rate / 4;
		burst = burst < BURST_LEAST_BYTES ? BURST_LEAST_BYTES : burst;
		burst = burst > BURST_MOST_BYTES ? BURST_MOST_BYTES : burst;
		nftnl_expr_set_u64(s, NFTNL_EXPR_LIMIT_RATE, rate);
		nftnl_expr_set_u64(s, NFTNL_EXPR_LIMIT_UNIT, 1);
		nftnl_expr_set_u32(s, NFTNL_EXPR_LIMIT_BURST, (uint32_t)burst);
		nftnl_expr_set_u32(s, NFTNL_EXPR_LIMIT_TYPE, NFT_LIMIT_PKT_BYTES);
		nftnl_expr_set_u32(s, NFTNL_EXPR_LIMIT_FLAGS, NFT_LIMIT_F_INV);
	}
	return s;
}

static struct nftnl_set_elem *new_element(const struct nft_element *x, bool with_statement)
{
	struct nftnl_set_elem *element = nftnl_set_elem_alloc();
	if (!element)
		return NULL;
	nftnl_set_elem_set(element, NFTNL_SET_ELEM_KEY, x->key.bytes, (uint32_t)x->key.n);
	if (x->last.n > 0)
		nftnl_set_elem_set(element, NFTNL_SET_ELEM_KEY_END, x->last.bytes, (uint32_t)x->last.n);
	if (x->jump) {
		nftnl_set_elem_set_u32(element, NFTNL_SET_ELEM_VERDICT, (uint32_t)NFT_JUMP);
		nftnl_set_elem_set_str(element, NFTNL_SET_ELEM_CHAIN, x->jump);
	}
	struct nftnl_expr *statement = with_statement ? new_statement(x) : NULL;
	if (statement)
		nftnl_set_elem_add_expr(element, statement);
	return element;
}

static struct nftnl_set *new_set(const struct nft_table *t, const char *name)
{
	struct nftnl_set *s = nftnl_set_alloc();
	if (!s)
		return NULL;
	nftnl_set_set_str(s, NFTNL_SET_TABLE, t->name);
	nftnl_set_set_str(s, NFTNL_SET_NAME, name);
	return s;
}

static void put_element(struct nft_batch *b, uint16_t type, uint16_t flags, const struct nft_table *t,
			const char *set, const struct nft_element *x)
{
	struct nftnl_set *s = new_set(t, set);
	struct nftnl_set_elem *element = s && x ? new_element(x, type == NFT_MSG_NEWSETELEM) : NULL;
	b->overflow = b->overflow || !s || (x && !element);
	if (element)
		nftnl_set_elem_add(s, element);
	if (s && !b->overflow) {
		struct nlmsghdr *m = begin(b, type, t->family, flags);
		nftnl_set_elems_nlmsg_build_payload(m, s);
		finish(b, m);
	}
	nftnl_set_free(s);
}

void nft_add(struct nft_batch *b, const struct nft_table *t, const char *set, const struct nft_element *x)
{
	put_element(b, NFT_MSG_NEWSETELEM, NLM_F_CREATE, t, set, x);
}

void nft_remove(struct nft_batch *b, const struct nft_table *t, const char *set, const struct nft_element *x)
{
	/* The removal of what is not there fails the batch, and kernels before 6.3 know no other: it is made sure
	 * that it is there. */
	nft_add(b, t, set, x);
	put_element(b, NFT_MSG_DELSETELEM, 0, t, set, x);
}

void nft_flush_set(struct nft_batch *b, const struct nft_table *t, const char *set)
{
	put_element(b, NFT_MSG_DELSETELEM, 0, t, set, NULL);
}

/* --- chains -------------------------------------------------------------------------------------------------- */

static void put_chain(struct nft_batch *b, uint16_t type, uint16_t flags, const struct nft_table *t,
		      struct nftnl_chain *c, const char *name)
{
	b->overflow = b->overflow || !c;
	if (!c)
		return;
	nftnl_chain_set_str(c, NFTNL_CHAIN_TABLE, t->name);
	nftnl_chain_set_str(c, NFTNL_CHAIN_NAME, name);
	struct nlmsghdr *m = begin(b, type, t->family, flags);
	nftnl_chain_nlmsg_build_payload(m, c);
	finish(b, m);
	nftnl_chain_free(c);
}

/* Adds a rule of one expression to a chain. Takes the expression. */
static void put_rule(struct nft_batch *b, const struct nft_table *t, const char *chain, struct nftnl_expr *x)
{
	struct nftnl_rule *rule = nftnl_rule_alloc();
	b->overflow = b->overflow || !rule || !x;
	if (!rule || !x) {
		nftnl_rule_free(rule);
		return;
	}
	nftnl_rule_set_str(rule, NFTNL_RULE_TABLE, t->name);
	nftnl_rule_set_str(rule, NFTNL_RULE_CHAIN, chain);
	nftnl_rule_add_expr(rule, x);
	struct nlmsghdr *m = begin(b, NFT_MSG_NEWRULE, t->family, NLM_F_CREATE | NLM_F_APPEND);
	nftnl_rule_nlmsg_build_payload(m, rule);
	finish(b, m);
	nftnl_rule_free(rule);
}

void nft_add_ingress(struct nft_batch *b, const struct nft_table *t, const char *name, const char *link,
		     int32_t priority, const char *to)
{
	struct nftnl_chain *c = nftnl_chain_alloc();
	if (c) {
		nftnl_chain_set_str(c, NFTNL_CHAIN_TYPE, "filter");
		nftnl_chain_set_u32(c, NFTNL_CHAIN_HOOKNUM, NF_NETDEV_INGRESS);
		nftnl_chain_set_s32(c, NFTNL_CHAIN_PRIO, priority);
		nftnl_chain_set_u32(c, NFTNL_CHAIN_POLICY, NF_DROP);
		nftnl_chain_set_str(c, NFTNL_CHAIN_DEV, link);
	}
	put_chain(b, NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, t, c, name);
	struct nftnl_expr *verdict = nftnl_expr_alloc("immediate");
	if (verdict) {
		nftnl_expr_set_u32(verdict, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
		nftnl_expr_set_u32(verdict, NFTNL_EXPR_IMM_VERDICT, (uint32_t)NFT_GOTO);
		nftnl_expr_set_str(verdict, NFTNL_EXPR_IMM_CHAIN, to);
	}
	put_rule(b, t, name, verdict);
}

void nft_add_log(struct nft_batch *b, const struct nft_table *t, const char *name, uint16_t group)
{
	put_chain(b, NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_EXCL, t, nftnl_chain_alloc(), name);
	struct nftnl_expr *log = nftnl_expr_alloc("log");
	if (log) {
		nftnl_expr_set_u16(log, NFTNL_EXPR_LOG_GROUP, group);
		nftnl_expr_set_u32(log, NFTNL_EXPR_LOG_SNAPLEN, LOG_BYTES);
	}
	put_rule(b, t, name, log);
}

void nft_remove_chain(struct nft_batch *b, const struct nft_table *t, const char *name)
{
	put_chain(b, NFT_MSG_DELCHAIN, 0, t, nftnl_chain_alloc(), name);
}

/* --- reading ------------------------------------------------------------------------------------------------- */

/* Sends a request for elements of a set and reads the answer. x: the one element, NULL: all. */
static int ask_elements(struct nft_batch *b, const struct nft_table *t, const char *set,
			const struct nft_element *x, netlink_fn *fn, void *data)
{
	_Alignas(struct nlmsghdr) char bytes[MESSAGE_BYTES_MAX];
	struct nftnl_set *s = new_set(t, set);
	struct nftnl_set_elem *element = s && x ? new_element(x, false) : NULL;
	int r = -ENOMEM;
	if (s && (!x || element)) {
		struct nlmsghdr *m =
			nftnl_nlmsg_build_hdr(bytes, NFT_MSG_GETSETELEM, t->family, x ? 0 : NLM_F_DUMP, 0);
		if (element)
			nftnl_set_elem_add(s, element);
		nftnl_set_elems_nlmsg_build_payload(m, s);
		r = netlink_ask(b->netlink, m, fn, data, NULL);
	}
	nftnl_set_free(s);
	return r;
}

struct each {
	nft_key_fn *fn;
	void *data;
	uint64_t packets;
	int error;
};

static int take_counter(struct nftnl_expr *x, void *data)
{
	struct each *each = data;
	if (strcmp(nftnl_expr_get_str(x, NFTNL_EXPR_NAME), "counter") == 0)
		each->packets = nftnl_expr_get_u64(x, NFTNL_EXPR_CTR_PACKETS);
	return 0;
}

static int take_element(struct nftnl_set_elem *element, void *data)
{
	struct each *each = data;
	uint32_t n = 0;
	const void *key = nftnl_set_elem_get(element, NFTNL_SET_ELEM_KEY, &n);
	(void)nftnl_set_elem_expr_foreach(element, take_counter, each);
	if (each->fn && key && each->error == 0)
		each->error = each->fn(each->data, key, n);
	return each->error;
}

static int take_elements(void *data, const struct nlmsghdr *m)
{
	struct each *each = data;
	struct nftnl_set *s = nftnl_set_alloc();
	if (!s)
		return -ENOMEM;
	if (nftnl_set_elems_nlmsg_parse(m, s) == 0)
		(void)nftnl_set_elem_foreach(s, take_element, each);
	nftnl_set_free(s);
	return each->error;
}

int nft_counter(struct nft_batch *b, const struct nft_table *t, const char *set, const struct nft_key *key,
		uint64_t *ret, struct err *e)
{
	struct each each = {0};
	const struct nft_element x = {.key = *key};
	int r = ask_elements(b, t, set, &x, take_elements, &each);
	if (r < 0)
		return err_code(e, r, "read a counter of %s", set);
	*ret = each.packets;
	return 0;
}

int nft_each(struct nft_batch *b, const struct nft_table *t, const char *set, nft_key_fn *fn, void *data,
	     struct err *e)
{
	struct each each = {.fn = fn, .data = data};
	int r = ask_elements(b, t, set, NULL, take_elements, &each);
	return r < 0 ? err_code(e, r, "list the elements of %s", set) : 0;
}

struct removal {
	struct nft_batch *batch;
	const struct nft_table *table;
	const char *set;
	const struct nft_key *prefix;
	int n;
};

static int remove_if_prefixed(struct nftnl_set_elem *element, void *data)
{
	struct removal *r = data;
	struct nft_element x = {0};
	uint32_t n = 0;
	const void *key = nftnl_set_elem_get(element, NFTNL_SET_ELEM_KEY, &n);
	if (!key || n > sizeof(x.key.bytes) || n < r->prefix->n ||
	    memcmp(key, r->prefix->bytes, r->prefix->n) != 0)
		return 0;
	nft_key_bytes(&x.key, key, n);
	key = nftnl_set_elem_get(element, NFTNL_SET_ELEM_KEY_END, &n);
	if (key && n <= sizeof(x.last.bytes))
		nft_key_bytes(&x.last, key, n);
	put_element(r->batch, NFT_MSG_DELSETELEM, 0, r->table, r->set, &x);
	r->n++;
	return 0;
}

static int remove_prefixed(void *data, const struct nlmsghdr *m)
{
	struct nftnl_set *s = nftnl_set_alloc();
	if (!s)
		return -ENOMEM;
	if (nftnl_set_elems_nlmsg_parse(m, s) == 0)
		(void)nftnl_set_elem_foreach(s, remove_if_prefixed, data);
	nftnl_set_free(s);
	return 0;
}

int nft_remove_prefixed(struct nft_batch *b, const struct nft_table *t, const char *set,
			const struct nft_key *prefix, struct err *e)
{
	struct removal removal = {.batch = b, .table = t, .set = set, .prefix = prefix};
	int r = ask_elements(b, t, set, NULL, remove_prefixed, &removal);
	return r < 0 ? err_code(e, r, "list the elements of %s", set) : removal.n;
}

struct rule_count {
	const struct nft_table *table;
	int n;
};

static int count_rule(void *data, const struct nlmsghdr *m)
{
	struct rule_count *count = data;
	struct nftnl_rule *rule = nftnl_rule_alloc();
	if (!rule)
		return -ENOMEM;
	if (nftnl_rule_nlmsg_parse(m, rule) == 0 &&
	    strcmp(nftnl_rule_get_str(rule, NFTNL_RULE_TABLE), count->table->name) == 0)
		count->n++;
	nftnl_rule_free(rule);
	return 0;
}

int nft_count_rules(struct nft_batch *b, const struct nft_table *t, struct err *e)
{
	_Alignas(struct nlmsghdr) char bytes[MESSAGE_BYTES_MAX];
	struct rule_count count = {.table = t};
	struct nlmsghdr *m = nftnl_nlmsg_build_hdr(bytes, NFT_MSG_GETRULE, t->family, NLM_F_DUMP, 0);
	mnl_attr_put_strz(m, NFTA_RULE_TABLE, t->name);
	int r = netlink_ask(b->netlink, m, count_rule, &count, NULL);
	return r < 0 && r != -ENOENT ? err_code(e, r, "count the rules of %s", t->name) : count.n;
}

struct chain_search {
	uint32_t hook;
	nft_chain_fn *fn;
	void *data;
};

static int take_chain(void *data, const struct nlmsghdr *m)
{
	const struct chain_search *search = data;
	struct nftnl_chain *c = nftnl_chain_alloc();
	int r = 0;
	if (!c)
		return -ENOMEM;
	if (nftnl_chain_nlmsg_parse(m, c) == 0 && nftnl_chain_is_set(c, NFTNL_CHAIN_HOOKNUM) &&
	    nftnl_chain_get_u32(c, NFTNL_CHAIN_HOOKNUM) == search->hook)
		r = search->fn(search->data, nftnl_chain_get_str(c, NFTNL_CHAIN_TABLE),
			       nftnl_chain_get_str(c, NFTNL_CHAIN_NAME),
			       nftnl_chain_get_u32(c, NFTNL_CHAIN_POLICY) == NF_DROP);
	nftnl_chain_free(c);
	return r;
}

int nft_each_base_chain(struct nft_batch *b, uint32_t hook, nft_chain_fn *fn, void *data, struct err *e)
{
	static const uint8_t families[] = {NFPROTO_IPV4, NFPROTO_INET};
	struct chain_search search = {.hook = hook, .fn = fn, .data = data};
	for (size_t i = 0; i < sizeof(families); i++) {
		_Alignas(struct nlmsghdr) char bytes[MESSAGE_BYTES_MAX];
		struct nlmsghdr *m =
			nftnl_nlmsg_build_hdr(bytes, NFT_MSG_GETCHAIN, families[i], NLM_F_DUMP, 0);
		int r = netlink_ask(b->netlink, m, take_chain, &search, NULL);
		if (r < 0)
			return err_code(e, r, "list the chains");
	}
	return 0;
}
