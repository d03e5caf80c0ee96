#include "sys/conntrack.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <stdlib.h>
#include <string.h>

#include "sys/netlink.h"

enum {
	REQUEST_BYTES = 512,
	TUPLE_BYTES_MAX = 128,
	ROUND_MAX = 256, /* connections that are forgotten between two looks */
};

/* Bits of CTA_FILTER_ORIG_FLAGS; the kernel's header for programs does not name them. */
#define FILTER_IP_SRC 1u

/* One connection, as it is to be named again: the attributes of its original direction. */
struct tuple {
	uint16_t n;
	_Alignas(struct nlattr) uint8_t bytes[TUPLE_BYTES_MAX];
};

struct round {
	uint32_t address;
	unsigned n;
	struct tuple tuples[ROUND_MAX];
};

struct request {
	_Alignas(struct nlmsghdr) char bytes[REQUEST_BYTES];
};

static struct nlmsghdr *begin(struct request *r, uint16_t type, uint16_t flags)
{
	struct nlmsghdr *m = mnl_nlmsg_put_header(r->bytes);
	m->nlmsg_type = (uint16_t)(NFNL_SUBSYS_CTNETLINK << 8 | type);
	m->nlmsg_flags = flags;
	struct nfgenmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->nfgen_family = AF_INET;
	info->version = NFNETLINK_V0;
	return m;
}

static int take_source(const struct nlattr *a, void *data)
{
	uint32_t *source = data;
	if (mnl_attr_get_type(a) == CTA_IP_V4_SRC && mnl_attr_get_payload_len(a) == sizeof(*source))
		*source = ntohl(mnl_attr_get_u32(a));
	return MNL_CB_OK;
}

static int take_ip(const struct nlattr *a, void *data)
{
	if (mnl_attr_get_type(a) == CTA_TUPLE_IP)
		(void)mnl_attr_parse_nested(a, take_source, data);
	return MNL_CB_OK;
}

static int take_tuple(const struct nlattr *a, void *data)
{
	struct round *round = data;
	uint32_t source = 0;
	uint16_t n = mnl_attr_get_payload_len(a);
	if (mnl_attr_get_type(a) != CTA_TUPLE_ORIG || n > TUPLE_BYTES_MAX || round->n == ROUND_MAX)
		return MNL_CB_OK;
	(void)mnl_attr_parse_nested(a, take_ip, &source);
	/* The kernel was asked for these alone; one that does not know how tells all. */
	if (source != round->address)
		return MNL_CB_OK;
	struct tuple *t = &round->tuples[round->n++];
	t->n = n;
	memcpy(t->bytes, mnl_attr_get_payload(a), n);
	return MNL_CB_OK;
}

static int take_connection(void *data, const struct nlmsghdr *m)
{
	if (m->nlmsg_type >> 8 == NFNL_SUBSYS_CTNETLINK)
		(void)mnl_attr_parse(m, sizeof(struct nfgenmsg), take_tuple, data);
	return 0;
}

static int look(struct netlink *n, struct round *round, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin(&r, IPCTNL_MSG_CT_GET, NLM_F_DUMP);
	struct nlattr *tuple = mnl_attr_nest_start(m, CTA_TUPLE_ORIG);
	struct nlattr *ip = mnl_attr_nest_start(m, CTA_TUPLE_IP);
	mnl_attr_put_u32(m, CTA_IP_V4_SRC, htonl(round->address));
	mnl_attr_nest_end(m, ip);
	mnl_attr_nest_end(m, tuple);
	struct nlattr *filter = mnl_attr_nest_start(m, CTA_FILTER);
	mnl_attr_put_u32(m, CTA_FILTER_ORIG_FLAGS, FILTER_IP_SRC);
	mnl_attr_nest_end(m, filter);
	round->n = 0;
	return netlink_ask(n, m, take_connection, round, e);
}

/* One that ended by itself meanwhile is as good as forgotten. */
static int forget(struct netlink *n, const struct tuple *t, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin(&r, IPCTNL_MSG_CT_DELETE, 0);
	mnl_attr_put(m, CTA_TUPLE_ORIG | NLA_F_NESTED, t->n, t->bytes);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result == -ENOENT ? 0 : result;
}

static int forget_all(struct netlink *n, struct round *round, struct err *e)
{
	int total = 0;
	do {
		int r = look(n, round, e);
		for (unsigned i = 0; i < round->n && r == 0; i++)
			r = forget(n, &round->tuples[i], e);
		if (r < 0)
			return r;
		total += (int)round->n;
	} while (round->n == ROUND_MAX);
	return total;
}

int conntrack_forget(int netns, uint32_t address, struct err *e)
{
	struct netlink *n = NULL;
	struct round *round = calloc(1, sizeof(*round));
	if (!round)
		return err_set(e, -ENOMEM, "out of memory");
	round->address = address;
	int r = netlink_open(NETLINK_NETFILTER, netns, &n, e);
	if (r == 0)
		r = forget_all(n, round, e);
	netlink_close(n);
	free(round);
	return r < 0 ? err_ctx(e, r, "forget tracked connections") : r;
}
