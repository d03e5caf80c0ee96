#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/scope.h"
#include "net/gateway.h"
#include "net/members.h"
#include "net/ruleset.h"
#include "resource/resource.h"
#include "spec/forge.h"
#include "sys/conntrack.h"
#include "sys/link.h"
#include "sys/netlink.h"

/* What is made belongs to the gateway, which is made with the first and removed with the last; its own lock
 * serialises all of it. The link itself comes when the sandbox's namespace is there (net/plug.h). */

static int add_member(struct sandbox *s, int netns, struct err *e)
{
	const struct config *c = &s->spec->config;
	struct network_allow allow = {0};
	struct forge forge = {0};
	int r = network_allow_parse(c->network_allow, &allow, e);
	if (r == 0)
		r = forge_read(c, &forge, e);
	if (r < 0)
		return r;
	const struct member member = {.config = c,
				      .allow = &allow,
				      .link = s->network.link,
				      .slot = s->slot,
				      .forge_port = forge.on ? forge.port : 0,
				      .log = s->spec->network_log};
	return members_add(netns, &member, e);
}

static int read_mtu(int netns, uint32_t *ret, struct err *e)
{
	struct netlink *n = NULL;
	int r = netlink_open(NETLINK_ROUTE, netns, &n, e);
	if (r == 0)
		r = link_read(n, RULESET_UP, ret, NULL, NULL, e);
	netlink_close(n);
	return r;
}

static int make(struct sandbox *s, struct err *e)
{
	const struct config *c = &s->spec->config;
	if (c->network_mode == NETWORK_NONE)
		return 0;
	const struct gateway_plan plan = {
		.network = {.address = c->network_address, .bits = c->network_prefix},
		.store_fd = s->store_fd};
	scoped_buf struct buf notes = BUF_INIT(8192);
	scoped_fd int lock = -1;
	scoped_fd int netns = -1;
	s->network.gateway = slot_gateway(c, s->slot);
	s->network.guest = slot_guest(c, s->slot);
	slot_link(c->isolation, s->slot, s->network.link);
	int r = gateway_lock(s->host, &lock, e);
	if (r == 0)
		r = gateway_ensure(s->host, &plan, &netns, &notes, e);
	if (r == 0)
		r = add_member(s, netns, e);
	if (r == 0)
		r = read_mtu(netns, &s->network.mtu, e);
	if (r < 0)
		return r;
	if (s->notes)
		buf_str(s->notes, buf_text(&notes));
	s->network.netns = fd_steal(&netns);
	return 0;
}

struct others {
	const char *link;
	uint32_t n;
};

static int count_other(void *data, const char *link)
{
	struct others *others = data;
	others->n += strcmp(link, others->link) != 0;
	return 0;
}

/* The slot in a link's name, or SLOTS_MAX for one that is not ours. */
static uint32_t slot_of(const char *link)
{
	size_t letters = strcspn(link, "0123456789");
	uint64_t slot = SLOTS_MAX;
	if (num_parse(link + letters, 0, SLOTS_MAX - 1, &slot) < 0)
		return SLOTS_MAX;
	return (uint32_t)slot;
}

/* Removes a member's rules, or with the last of them the gateway. The link goes with the sandbox's namespace, in
 * which nothing runs any more: the kernel does that a little later, and waiting for it would take longer than
 * everything else. What the sandbox's connections left in the tables of the gateway and of the host must not be taken
 * for those of the next one in the slot. The lock is held. */
static int remove_member(const struct host *host, int netns, const char *link, struct err *e)
{
	struct others others = {.link = link};
	struct cidr network;
	int r = gateway_network(host, &network, e);
	if (r == 0)
		r = members_each(netns, count_other, &others, e);
	if (r < 0)
		return r;
	uint32_t address = slot_guest_in(&network, slot_of(link));
	r = others.n == 0 ? gateway_remove(host, e) : members_remove(netns, link, e);
	if (r == 0 && others.n > 0)
		r = conntrack_forget(netns, address, e);
	if (r >= 0)
		r = conntrack_forget(-1, address, e);
	return r < 0 ? r : 0;
}

static int unmake(struct sandbox *s, struct err *e)
{
	char link[NETWORK_LINK_SIZE];
	scoped_fd int lock = -1;
	scoped_fd int netns = -1;
	/* One whose slot nobody knows has made nothing, and what stands under another's is not its own. */
	if (!s->host || !record_info(s->record)->has_slot)
		return 0;
	slot_link(record_info(s->record)->isolation, s->slot, link);
	int r = gateway_lock(s->host, &lock, e);
	if (r < 0)
		return r;
	if (gateway_look(s->host, s->store_fd, &netns) != GATEWAY_OURS)
		return 0; /* a torn one is swept */
	return remove_member(s->host, netns, link, e);
}

/* --- members without a record -------------------------------------------------------------------------------- */

struct strays {
	struct slots known;
	uint32_t members;
	uint32_t n;
	char links[SLOTS_MAX][NETWORK_LINK_SIZE];
};

static int look_at_member(void *data, const char *link)
{
	struct strays *strays = data;
	uint32_t slot = slot_of(link);
	bool known = slot < SLOTS_MAX && (strays->known.taken[slot / 64] & (UINT64_C(1) << (slot % 64)));
	strays->members++;
	if (!known && strays->n < SLOTS_MAX) {
		memcpy(strays->links[strays->n], link, strnlen(link, NETWORK_LINK_SIZE - 1));
		strays->n++;
	}
	return 0;
}

static int find_strays(int store_fd, int netns, struct strays *strays, struct err *e)
{
	scoped_free struct record_info *records = NULL;
	size_t n = 0;
	int r = record_list(store_fd, &records, &n, e);
	for (size_t i = 0; i < n && r == 0; i++)
		if (records[i].has_slot)
			slots_mark(&strays->known, records[i].slot);
	return r < 0 ? r : members_each(netns, look_at_member, strays, e);
}

static void sweep_gateway(struct reap *reap)
{
	struct err e = ERR_INIT;
	int r = reap->dry_run ? 0 : gateway_remove(reap->host, &e);
	reap_tell(reap, "gateway", HOST_RUN_DIR "/gateway", r < 0 ? e.msg : NULL);
}

static void sweep_member(struct reap *reap, int netns, const char *link)
{
	struct err e = ERR_INIT;
	int r = reap->dry_run ? 0 : remove_member(reap->host, netns, link, &e);
	reap_tell(reap, "member", link, r < 0 ? e.msg : NULL);
}

/* Members are added with the lock held, to a gateway that was made under the same lock: one without any is nobody's. */
static int sweep(struct reap *reap, struct err *e)
{
	scoped_fd int lock = -1;
	scoped_fd int netns = -1;
	if (!reap->host)
		return 0;
	int r = gateway_lock(reap->host, &lock, e);
	if (r < 0)
		return r;
	enum gateway_state state = gateway_look(reap->host, reap->store_fd, &netns);
	if (state == GATEWAY_TORN)
		sweep_gateway(reap);
	if (state != GATEWAY_OURS)
		return 0;
	scoped_free struct strays *strays = calloc(1, sizeof(*strays));
	if (!strays)
		return err_set(e, -ENOMEM, "out of memory");
	r = find_strays(reap->store_fd, netns, strays, e);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < strays->n; i++)
		sweep_member(reap, netns, strays->links[i]);
	if (strays->members == 0)
		sweep_gateway(reap);
	return 0;
}

const struct resource resource_network = {.name = "network", .make = make, .unmake = unmake, .sweep = sweep};
