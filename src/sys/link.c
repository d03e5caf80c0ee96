#include "sys/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/fib_rules.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <string.h>

enum { REQUEST_BYTES = 1024 };

/* A request under construction. */
struct request {
	_Alignas(struct nlmsghdr) char bytes[REQUEST_BYTES];
};

static struct nlmsghdr *begin(struct request *r, uint16_t type, unsigned flags)
{
	struct nlmsghdr *m = mnl_nlmsg_put_header(r->bytes);
	m->nlmsg_type = type;
	m->nlmsg_flags = (uint16_t)flags;
	return m;
}

static struct nlmsghdr *begin_link(struct request *r, uint16_t type, unsigned flags, const char *name)
{
	struct nlmsghdr *m = begin(r, type, flags);
	struct ifinfomsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->ifi_family = AF_UNSPEC;
	if (name)
		mnl_attr_put_strz(m, IFLA_IFNAME, name);
	return m;
}

static void put_end(struct nlmsghdr *m, const struct link_end *end, uint32_t mtu)
{
	mnl_attr_put_strz(m, IFLA_IFNAME, end->name);
	mnl_attr_put(m, IFLA_ADDRESS, LINK_MAC_BYTES, end->mac);
	mnl_attr_put_u32(m, IFLA_MTU, mtu);
}

int link_add_pair(struct netlink *n, const struct link_end *near, const struct link_end *far, int far_netns,
		  uint32_t mtu, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin_link(&r, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, NULL);
	put_end(m, near, mtu);
	struct nlattr *info = mnl_attr_nest_start(m, IFLA_LINKINFO);
	mnl_attr_put_str(m, IFLA_INFO_KIND, "veth");
	struct nlattr *data = mnl_attr_nest_start(m, IFLA_INFO_DATA);
	struct nlattr *peer = mnl_attr_nest_start(m, VETH_INFO_PEER);
	struct ifinfomsg *peer_info = mnl_nlmsg_put_extra_header(m, sizeof(*peer_info));
	peer_info->ifi_family = AF_UNSPEC;
	put_end(m, far, mtu);
	mnl_attr_put_u32(m, IFLA_NET_NS_FD, (uint32_t)far_netns);
	mnl_attr_nest_end(m, peer);
	mnl_attr_nest_end(m, data);
	mnl_attr_nest_end(m, info);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "make the pair %s and %s", near->name, far->name) : 0;
}

/* --- reading links ------------------------------------------------------------------------------------------- */

struct link_facts {
	uint32_t index, mtu;
	uint64_t in_bytes, out_bytes;
	link_name_fn *fn;
	void *data;
	int error; /* fn's */
};

static int take_link_attribute(const struct nlattr *a, void *data)
{
	struct link_facts *f = data;
	struct rtnl_link_stats64 stats;
	uint16_t type = mnl_attr_get_type(a);
	if (type == IFLA_MTU)
		f->mtu = mnl_attr_get_u32(a);
	if (type == IFLA_STATS64 && mnl_attr_get_payload_len(a) >= sizeof(stats)) {
		memcpy(&stats, mnl_attr_get_payload(a), sizeof(stats));
		f->in_bytes = stats.rx_bytes;
		f->out_bytes = stats.tx_bytes;
	}
	if (type == IFLA_IFNAME && f->fn)
		f->error = f->fn(f->data, mnl_attr_get_str(a));
	return f->error < 0 ? MNL_CB_ERROR : MNL_CB_OK;
}

static int take_link(void *data, const struct nlmsghdr *m)
{
	struct link_facts *f = data;
	const struct ifinfomsg *info = mnl_nlmsg_get_payload(m);
	f->index = (uint32_t)info->ifi_index;
	(void)mnl_attr_parse(m, sizeof(*info), take_link_attribute, f);
	return f->error;
}

static int get_link(struct netlink *n, const char *name, struct link_facts *ret, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin_link(&r, RTM_GETLINK, 0, name);
	*ret = (struct link_facts){0};
	int result = netlink_ask(n, m, take_link, ret, e);
	return result < 0 ? err_ctx(e, result, "link %s", name) : 0;
}

int link_index(struct netlink *n, const char *name, uint32_t *ret, struct err *e)
{
	struct link_facts facts;
	int r = get_link(n, name, &facts, e);
	if (r == 0)
		*ret = facts.index;
	return r;
}

int link_read(struct netlink *n, const char *name, uint32_t *ret_mtu, uint64_t *ret_in, uint64_t *ret_out,
	      struct err *e)
{
	struct link_facts facts;
	int r = get_link(n, name, &facts, e);
	if (r < 0)
		return r;
	if (ret_mtu)
		*ret_mtu = facts.mtu;
	if (ret_in)
		*ret_in = facts.in_bytes;
	if (ret_out)
		*ret_out = facts.out_bytes;
	return 0;
}

int link_each(struct netlink *n, link_name_fn *fn, void *data, struct err *e)
{
	struct request r;
	struct link_facts facts = {.fn = fn, .data = data};
	struct nlmsghdr *m = begin_link(&r, RTM_GETLINK, NLM_F_DUMP, NULL);
	int result = netlink_ask(n, m, take_link, &facts, e);
	return result < 0 ? err_ctx(e, result, "list the links") : 0;
}

/* --- changing links ------------------------------------------------------------------------------------------ */

int link_delete(struct netlink *n, const char *name, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin_link(&r, RTM_DELLINK, 0, name);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 && result != -ENODEV ? err_ctx(e, result, "remove link %s", name) : 0;
}

int link_up(struct netlink *n, const char *name, uint32_t mtu, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin_link(&r, RTM_NEWLINK, 0, name);
	struct ifinfomsg *info = mnl_nlmsg_get_payload(m);
	info->ifi_flags = IFF_UP;
	info->ifi_change = IFF_UP;
	if (mtu > 0)
		mnl_attr_put_u32(m, IFLA_MTU, mtu);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "set link %s up", name) : 0;
}

/* --- addresses and neighbours -------------------------------------------------------------------------------- */

int address_add(struct netlink *n, uint32_t link, uint32_t address, uint32_t bits, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin(&r, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE);
	struct ifaddrmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->ifa_family = AF_INET;
	info->ifa_prefixlen = (uint8_t)bits;
	info->ifa_index = link;
	mnl_attr_put_u32(m, IFA_LOCAL, htonl(address));
	mnl_attr_put_u32(m, IFA_ADDRESS, htonl(address));
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "add an address") : 0;
}

/* A prefix of 31 or 32 bits has no address to which everybody listens. */
enum { BITS_WITHOUT_BROADCAST = 31 };

struct address_facts {
	uint32_t *list;
	size_t max;
	size_t n;
	uint32_t local, address; /* of the message */
};

static int take_address_attribute(const struct nlattr *a, void *data)
{
	struct address_facts *f = data;
	uint16_t type = mnl_attr_get_type(a);
	if (type == IFA_LOCAL)
		f->local = ntohl(mnl_attr_get_u32(a));
	if (type == IFA_ADDRESS)
		f->address = ntohl(mnl_attr_get_u32(a));
	return MNL_CB_OK;
}

static void put_address(struct address_facts *f, uint32_t address)
{
	if (f->n < f->max)
		f->list[f->n] = address;
	f->n++;
}

static int take_address(void *data, const struct nlmsghdr *m)
{
	struct address_facts *f = data;
	f->local = f->address = 0;
	(void)mnl_attr_parse(m, sizeof(struct ifaddrmsg), take_address_attribute, f);
	/* Of a point-to-point link IFA_ADDRESS is the other end. */
	uint32_t address = f->local ? f->local : f->address;
	if (address == 0 || address >> 24 == 127)
		return 0;
	put_address(f, address);
	const struct ifaddrmsg *info = mnl_nlmsg_get_payload(m);
	if (info->ifa_prefixlen >= BITS_WITHOUT_BROADCAST)
		return 0;
	uint32_t hosts = UINT32_MAX >> info->ifa_prefixlen;
	put_address(f, address & ~hosts);
	put_address(f, address | hosts);
	return 0;
}

int address_list(struct netlink *n, uint32_t *ret, size_t max, struct err *e)
{
	struct request r;
	struct address_facts facts = {.list = ret, .max = max};
	struct nlmsghdr *m = begin(&r, RTM_GETADDR, NLM_F_DUMP);
	struct ifaddrmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->ifa_family = AF_INET;
	int result = netlink_ask(n, m, take_address, &facts, e);
	return result < 0 ? err_ctx(e, result, "list the addresses") : (int)facts.n;
}

int neighbour_add(struct netlink *n, uint32_t link, uint32_t address,
		  const uint8_t mac[static LINK_MAC_BYTES], struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin(&r, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE);
	struct ndmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->ndm_family = AF_INET;
	info->ndm_ifindex = (int)link;
	info->ndm_state = NUD_PERMANENT;
	mnl_attr_put_u32(m, NDA_DST, htonl(address));
	mnl_attr_put(m, NDA_LLADDR, LINK_MAC_BYTES, mac);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "add a neighbour") : 0;
}

/* --- routes -------------------------------------------------------------------------------------------------- */

int route_add(struct netlink *n, const struct route *route, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = begin(&r, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE);
	struct rtmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->rtm_family = AF_INET;
	info->rtm_dst_len = (uint8_t)route->bits;
	info->rtm_protocol = RTPROT_STATIC;
	info->rtm_type = route->link ? RTN_UNICAST : RTN_PROHIBIT;
	info->rtm_scope = route->link && !route->via ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE;
	mnl_attr_put_u32(m, RTA_TABLE, route->table);
	if (route->bits > 0)
		mnl_attr_put_u32(m, RTA_DST, htonl(route->to));
	if (route->link)
		mnl_attr_put_u32(m, RTA_OIF, route->link);
	if (route->source)
		mnl_attr_put_u32(m, RTA_PREFSRC, htonl(route->source));
	if (route->via) {
		info->rtm_flags = RTNH_F_ONLINK;
		mnl_attr_put_u32(m, RTA_GATEWAY, htonl(route->via));
	}
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "add a route") : 0;
}

struct default_route {
	uint32_t table, link, mtu, metric;
	bool found;
};

static int take_metric(const struct nlattr *a, void *data)
{
	struct default_route *route = data;
	if (mnl_attr_get_type(a) == RTAX_MTU)
		route->mtu = mnl_attr_get_u32(a);
	return MNL_CB_OK;
}

static int take_route_attribute(const struct nlattr *a, void *data)
{
	struct default_route *route = data;
	switch (mnl_attr_get_type(a)) {
	case RTA_TABLE:
		route->table = mnl_attr_get_u32(a);
		break;
	case RTA_OIF:
		route->link = mnl_attr_get_u32(a);
		break;
	case RTA_PRIORITY:
		route->metric = mnl_attr_get_u32(a);
		break;
	case RTA_METRICS:
		(void)mnl_attr_parse_nested(a, take_metric, route);
		break;
	default:
		break;
	}
	return MNL_CB_OK;
}

static int take_route(void *data, const struct nlmsghdr *m)
{
	struct default_route *best = data;
	const struct rtmsg *info = mnl_nlmsg_get_payload(m);
	struct default_route own = {.found = true, .table = info->rtm_table};
	if (info->rtm_dst_len > 0 || info->rtm_type != RTN_UNICAST)
		return 0;
	(void)mnl_attr_parse(m, sizeof(*info), take_route_attribute, &own);
	if (own.table == RT_TABLE_MAIN && (!best->found || own.metric < best->metric))
		*best = own;
	return 0;
}

int route_default_mtu(struct netlink *n, uint32_t *ret, struct err *e)
{
	struct request r;
	struct default_route best = {0};
	struct nlmsghdr *m = begin(&r, RTM_GETROUTE, NLM_F_DUMP);
	struct rtmsg *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->rtm_family = AF_INET;
	int result = netlink_ask(n, m, take_route, &best, e);
	if (result < 0)
		return err_ctx(e, result, "list the routes");
	if (!best.found)
		return err_set(e, -ENETUNREACH, "there is no default route");
	if (best.mtu == 0) {
		struct request link;
		struct link_facts facts = {0};
		m = begin_link(&link, RTM_GETLINK, 0, NULL);
		((struct ifinfomsg *)mnl_nlmsg_get_payload(m))->ifi_index = (int)best.link;
		result = netlink_ask(n, m, take_link, &facts, e);
		if (result < 0)
			return err_ctx(e, result, "the link of the default route");
		best.mtu = facts.mtu;
	}
	*ret = best.mtu;
	return 0;
}

static struct nlmsghdr *put_rule(struct request *r, uint16_t type, unsigned flags,
				 const struct route_rule *rule)
{
	static const uint8_t actions[] = {
		[ROUTE_TABLE] = FR_ACT_TO_TBL,
		[ROUTE_GOTO] = FR_ACT_GOTO,
		[ROUTE_NOP] = FR_ACT_NOP,
		[ROUTE_BLACKHOLE] = FR_ACT_BLACKHOLE,
	};
	struct nlmsghdr *m = begin(r, type, flags);
	struct fib_rule_hdr *info = mnl_nlmsg_put_extra_header(m, sizeof(*info));
	info->family = AF_INET;
	info->action = actions[rule->action];
	mnl_attr_put_u32(m, FRA_PRIORITY, rule->priority);
	if (rule->action == ROUTE_TABLE)
		mnl_attr_put_u32(m, FRA_TABLE, rule->table);
	if (rule->action == ROUTE_GOTO)
		mnl_attr_put_u32(m, FRA_GOTO, rule->to);
	if (rule->in_link)
		mnl_attr_put_strz(m, FRA_IFNAME, rule->in_link);
	if (rule->mask) {
		mnl_attr_put_u32(m, FRA_FWMARK, rule->mark);
		mnl_attr_put_u32(m, FRA_FWMASK, rule->mask);
	}
	return m;
}

int route_rule_add(struct netlink *n, const struct route_rule *rule, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = put_rule(&r, RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, rule);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "add a routing rule") : 0;
}

int route_rule_delete(struct netlink *n, const struct route_rule *rule, struct err *e)
{
	struct request r;
	struct nlmsghdr *m = put_rule(&r, RTM_DELRULE, 0, rule);
	int result = netlink_ask(n, m, NULL, NULL, e);
	return result < 0 ? err_ctx(e, result, "remove a routing rule") : 0;
}
