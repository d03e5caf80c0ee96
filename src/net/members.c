#include "net/members.h"

#include <errno.h>
#include <linux/netfilter.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "net/ruleset.h"

enum { GATE_PRIORITY = -500, LOG_NAME_SIZE = NETWORK_LINK_SIZE + 4 };

static const struct nft_table inet_table = {.family = NFPROTO_INET, .name = RULESET_TABLE};
static const struct nft_table gate_table = {.family = NFPROTO_NETDEV, .name = RULESET_TABLE};

uint16_t members_log_group(uint32_t slot)
{
	return (uint16_t)(slot + 1);
}

/* Name of the chain that logs what a link's sandbox is refused. */
static void log_chain(const char *link, char name[static LOG_NAME_SIZE])
{
	(void)snprintf(name, LOG_NAME_SIZE, "log_%s", link);
}

static struct nft_element element_of(const char *link)
{
	struct nft_element x = {0};
	nft_key_link(&x.key, link);
	return x;
}

/* --- adding -------------------------------------------------------------------------------------------------- */

static void add_identity(struct nft_batch *b, const struct member *m)
{
	uint8_t mac[NETWORK_MAC_BYTES];
	uint32_t guest = slot_guest(m->config, m->slot);
	slot_guest_mac(m->slot, mac);
	struct nft_element owner = element_of(m->link);
	nft_key_bytes(&owner.key, mac, sizeof(mac));
	struct nft_element claim = owner;
	nft_key_address(&owner.key, guest);
	nft_key_bytes(&claim.key, mac, sizeof(mac));
	nft_key_address(&claim.key, guest);
	nft_add(b, &gate_table, "owners", &owner);
	nft_add(b, &gate_table, "claims", &claim);
}

static void add_service(struct nft_batch *b, const struct member *m, uint8_t protocol, uint16_t port)
{
	struct nft_element x = element_of(m->link);
	nft_key_address(&x.key, slot_gateway(m->config, m->slot));
	nft_key_bytes(&x.key, &protocol, sizeof(protocol));
	nft_key_port(&x.key, port);
	nft_add(b, &inet_table, "services", &x);
}

/* True when the i-th exception lies in a prefix of another: the set takes no ranges that overlap. */
static bool is_covered(const struct network_allow *allow, uint32_t i)
{
	const struct network_exception *x = &allow->items[i];
	for (uint32_t j = 0; j < allow->n; j++) {
		const struct network_exception *other = &allow->items[j];
		bool wider = other->to.bits < x->to.bits || (other->to.bits == x->to.bits && j < i);
		if (other->port == 0 && wider && cidr_holds(&other->to, x->to.address))
			return true;
	}
	return false;
}

static void add_exception(struct nft_batch *b, const struct member *m,
			  const struct network_exception *exception)
{
	struct nft_element x = element_of(m->link);
	const struct cidr *to = &exception->to;
	if (exception->port != 0) {
		nft_key_address(&x.key, to->address);
		nft_key_port(&x.key, exception->port);
		nft_add(b, &inet_table, "exceptions_port", &x);
		return;
	}
	nft_key_link(&x.last, m->link);
	nft_key_address(&x.key, to->address);
	nft_key_address(&x.last,
			to->bits == 0 ? UINT32_MAX : to->address | (UINT32_MAX >> 1 >> (to->bits - 1)));
	nft_add(b, &inet_table, "exceptions", &x);
}

static void add_limits(struct nft_batch *b, const struct member *m)
{
	struct nft_element flows = element_of(m->link);
	flows.flows_over = m->config->job_flows;
	nft_add(b, &inet_table, "flow_limit", &flows);
	if (m->config->job_net_bandwidth == 0)
		return;
	struct nft_element rate = element_of(m->link);
	rate.bytes_per_s = m->config->job_net_bandwidth;
	nft_add(b, &gate_table, "rate", &rate);
	nft_add(b, &inet_table, "rate", &rate);
}

static void add_counters(struct nft_batch *b, const struct nft_table *t, const char *link)
{
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++) {
		struct nft_element x = element_of(link);
		nft_key_number(&x.key, kind);
		nft_add(b, t, "refused", &x);
	}
}

static void add_log(struct nft_batch *b, const struct nft_table *t, const struct member *m)
{
	char name[LOG_NAME_SIZE];
	struct nft_element x = element_of(m->link);
	log_chain(m->link, name);
	x.jump = name;
	nft_add_log(b, t, name, members_log_group(m->slot));
	nft_add(b, t, "loggers", &x);
}

int members_add(int netns, const struct member *m, struct err *e)
{
	struct nft_batch *b = NULL;
	int r = nft_open(netns, &b, e);
	if (r < 0)
		return r;
	const struct nft_element link = element_of(m->link);
	nft_add(b, &inet_table, "links", &link);
	nft_add(b, &inet_table, "opened", &link);
	add_identity(b, m);
	add_service(b, m, IPPROTO_UDP, (uint16_t)m->config->dns_port);
	add_service(b, m, IPPROTO_TCP, (uint16_t)m->config->dns_port);
	if (m->forge_port != 0)
		add_service(b, m, IPPROTO_TCP, m->forge_port);
	for (uint32_t i = 0; i < m->allow->n; i++)
		if (!is_covered(m->allow, i))
			add_exception(b, m, &m->allow->items[i]);
	add_limits(b, m);
	add_counters(b, &inet_table, m->link);
	add_counters(b, &gate_table, m->link);
	if (m->log) {
		add_log(b, &inet_table, m);
		add_log(b, &gate_table, m);
	}
	r = nft_commit(b, e);
	nft_close(b);
	return r < 0 ? err_ctx(e, r, "add %s to the gateway's rules", m->link) : 0;
}

int members_gate(int netns, const char *link, struct err *e)
{
	struct nft_batch *b = NULL;
	int r = nft_open(netns, &b, e);
	if (r < 0)
		return r;
	nft_add_ingress(b, &gate_table, link, link, GATE_PRIORITY, RULESET_GATE);
	r = nft_commit(b, e);
	nft_close(b);
	return r < 0 ? err_ctx(e, r, "put the gate before %s", link) : 0;
}

/* --- removing ------------------------------------------------------------------------------------------------ */

/* Sets with one element of the link alone; what the elements of the others are behind the link, only the sets know. */
static const struct {
	const struct nft_table *table;
	const char *set;
	bool whole_key;
} sets[] = {
	{&gate_table, "owners", false},     {&gate_table, "claims", false},
	{&gate_table, "rate", true},        {&inet_table, "services", false},
	{&inet_table, "exceptions", false}, {&inet_table, "exceptions_port", false},
	{&inet_table, "opened", true},      {&inet_table, "rate", true},
	{&inet_table, "links", true},
};

static void remove_counters(struct nft_batch *b, const struct nft_table *t, const char *link)
{
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++) {
		struct nft_element x = element_of(link);
		nft_key_number(&x.key, kind);
		nft_remove(b, t, "refused", &x);
	}
}

/* What logs, where something does. */
static int remove_log(struct nft_batch *b, const struct nft_table *t, const char *link, struct err *e)
{
	char name[LOG_NAME_SIZE];
	const struct nft_element x = element_of(link);
	int n = nft_remove_prefixed(b, t, "loggers", &x.key, e);
	if (n <= 0)
		return n;
	log_chain(link, name);
	nft_remove_chain(b, t, name);
	return 0;
}

/* Everything of a link but the gate. */
static int put_removals(struct nft_batch *b, const char *link, struct err *e)
{
	const struct nft_element x = element_of(link);
	struct nft_element flows = x;
	/* Removing makes sure first that the element is there. One that gets its statement from the set then, as it
	 * brings none, makes the kernel let go of connection tracking once too often, until nothing is tracked any
	 * more. */
	flows.flows_over = 1;
	nft_remove(b, &inet_table, "flow_limit", &flows);
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		if (sets[i].whole_key) {
			nft_remove(b, sets[i].table, sets[i].set, &x);
			continue;
		}
		int r = nft_remove_prefixed(b, sets[i].table, sets[i].set, &x.key, e);
		if (r < 0)
			return r;
	}
	remove_counters(b, &inet_table, link);
	remove_counters(b, &gate_table, link);
	int r = remove_log(b, &gate_table, link, e);
	return r < 0 ? r : remove_log(b, &inet_table, link, e);
}

/* A transaction waits for packets that are under way, so there is one only where one is enough: everything with the
 * gate, which is there unless the link was never up or took it along; and the log's chains where there are some. */
static int remove_all(struct nft_batch *b, const char *link, struct err *e)
{
	int r = put_removals(b, link, e);
	if (r < 0)
		return r;
	nft_remove_chain(b, &gate_table, link);
	r = nft_commit(b, e);
	if (r != -ENOENT)
		return r;
	r = put_removals(b, link, e);
	return r < 0 ? r : nft_commit(b, e);
}

int members_remove(int netns, const char *link, struct err *e)
{
	struct nft_batch *b = NULL;
	int r = nft_open(netns, &b, e);
	if (r < 0)
		return r;
	r = remove_all(b, link, e);
	nft_close(b);
	return r < 0 ? err_ctx(e, r, "remove %s from the gateway's rules", link) : 0;
}

/* --- reading ------------------------------------------------------------------------------------------------- */

struct each_link {
	members_fn *fn;
	void *data;
};

static int take_link(void *data, const uint8_t *key, size_t n)
{
	const struct each_link *each = data;
	char name[IFNAMSIZ] = {0};
	memcpy(name, key, n < IFNAMSIZ ? n : IFNAMSIZ - 1);
	return each->fn(each->data, name);
}

int members_each(int netns, members_fn *fn, void *data, struct err *e)
{
	struct nft_batch *b = NULL;
	struct each_link each = {.fn = fn, .data = data};
	int r = nft_open(netns, &b, e);
	if (r == 0)
		r = nft_each(b, &inet_table, "links", take_link, &each, e);
	nft_close(b);
	return r;
}

static int add_refused(struct nft_batch *b, const struct nft_table *t, const char *link,
		       struct member_counts *counts, struct err *e)
{
	for (uint32_t kind = REFUSAL_NONE + 1; kind < REFUSALS; kind++) {
		uint64_t packets = 0;
		struct nft_element x = element_of(link);
		nft_key_number(&x.key, kind);
		int r = nft_counter(b, t, "refused", &x.key, &packets, e);
		if (r < 0)
			return r;
		counts->refused[kind] += packets;
	}
	return 0;
}

int members_counts(int netns, const char *link, struct member_counts *ret, struct err *e)
{
	struct nft_batch *b = NULL;
	struct member_counts counts = {0};
	const struct nft_element x = element_of(link);
	int r = nft_open(netns, &b, e);
	if (r == 0)
		r = nft_counter(b, &inet_table, "opened", &x.key, &counts.flows, e);
	if (r == 0)
		r = add_refused(b, &inet_table, link, &counts, e);
	if (r == 0)
		r = add_refused(b, &gate_table, link, &counts, e);
	nft_close(b);
	if (r == 0)
		*ret = counts;
	return r;
}
