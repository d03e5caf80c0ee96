#include "net/gateway.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/netfilter.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "net/nftext.h"
#include "net/ruleset.h"
#include "sys/link.h"
#include "sys/netlink.h"
#include "sys/nft.h"

#define GATEWAY_NAME "gateway"
#define CONF_NAME    "gateway.conf"
#define CONF_NEW     "." CONF_NAME ".new" /* what file_replace() leaves when it is killed */
#define LOCK_NAME    "gateway.lock"

/* Next hops between the two ends of the pair. They are names for a link-layer address, never in a packet. */
#define HOP_UP   0xa9fe0a01u /* 169.254.10.1 */
#define HOP_ERUP 0xa9fe0a02u

enum {
	TABLE_SANDBOXES = 77,  /* what sandboxes' packets are routed by */
	TABLE_EXCEPTIONS = 78, /* and those that go to an exception */
	MTU_DEFAULT = 1500,
	MTU_LEAST = 576,
	CONF_MAX = 128,
	RULES_MAX = 32768,
	HOST_ADDRESSES_MAX = 512,
};

static const uint8_t up_mac[LINK_MAC_BYTES] = {0x02, 0x65, 0x72, 0, 0, 1};
static const uint8_t erup_mac[LINK_MAC_BYTES] = {0x02, 0x65, 0x72, 0, 0, 2};

static const struct nft_table inet_table = {.family = NFPROTO_INET, .name = RULESET_TABLE};

/* --- the lock, the name and the note that it is whole -------------------------------------------------------- */

int gateway_lock(const struct host *h, int *ret_fd, struct err *e)
{
	scoped_fd int fd = openat(h->run, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, "open " HOST_RUN_DIR "/" LOCK_NAME);
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR)
			return err_sys(e, "lock " HOST_RUN_DIR "/" LOCK_NAME);
	*ret_fd = fd_steal(&fd);
	return 0;
}

/* Opens the namespace by its name. Returns 0; -ENOENT without the name, -EBADF when nothing hangs there. */
static int open_name(const struct host *h, int *ret_netns)
{
	struct statfs fs;
	scoped_fd int fd = openat(h->run, GATEWAY_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ENOENT : -EBADF;
	if (fstatfs(fd, &fs) < 0 || fs.f_type != NSFS_MAGIC)
		return -EBADF;
	*ret_netns = fd_steal(&fd);
	return 0;
}

/* Which directory's sandboxes a gateway serves, as its note says it. */
static int directory_text(int store_fd, char text[static CONF_MAX], struct err *e)
{
	struct stat st;
	if (fstat(store_fd, &st) < 0)
		return err_sys(e, "look at the sandboxes' directory");
	(void)snprintf(text, CONF_MAX, "directory %llu:%llu", (unsigned long long)st.st_dev,
		       (unsigned long long)st.st_ino);
	return 0;
}

static int conf_text(const struct gateway_plan *plan, char text[static CONF_MAX], struct err *e)
{
	char address[NETWORK_ADDRESS_TEXT];
	char directory[CONF_MAX];
	int r = directory_text(plan->store_fd, directory, e);
	if (r < 0)
		return r;
	network_address_text(plan->network.address, address);
	(void)snprintf(text, CONF_MAX, "network %s/%u, %.64s", address, plan->network.bits, directory);
	return 0;
}

enum gateway_state gateway_look(const struct host *h, int store_fd, int *ret_netns)
{
	char directory[CONF_MAX];
	char conf[CONF_MAX];
	scoped_fd int netns = -1;
	int r = open_name(h, &netns);
	bool noted = file_read_text(h->run, CONF_NAME, conf, sizeof(conf), NULL) >= 0;
	if (r < 0 || !noted)
		return r == -ENOENT && !noted ? GATEWAY_NONE : GATEWAY_TORN;
	if (directory_text(store_fd, directory, NULL) < 0 || !strstr(conf, directory))
		return GATEWAY_NONE;
	*ret_netns = fd_steal(&netns);
	return GATEWAY_OURS;
}

int gateway_network(const struct host *h, struct cidr *ret, struct err *e)
{
	static const char head[] = "network ";
	char conf[CONF_MAX];
	struct network_allow network;
	ssize_t n = file_read_text(h->run, CONF_NAME, conf, sizeof(conf), e);
	if (n < 0)
		return (int)n;
	if (strncmp(conf, head, strlen(head)) != 0)
		return err_set(e, -EINVAL, HOST_RUN_DIR "/" CONF_NAME " is not ours");
	conf[strcspn(conf, ",")] = '\0';
	int r = network_allow_parse(conf + strlen(head), &network, e);
	if (r < 0 || network.n != 1)
		return err_set(e, -EINVAL, HOST_RUN_DIR "/" CONF_NAME " is not ours");
	*ret = network.items[0].to;
	return 0;
}

/* --- making what is inside ----------------------------------------------------------------------------------- */

/* Settings of the namespace: links that come later take over those of "default". */
static const struct {
	const char *path, *value;
	bool may_miss; /* a kernel without IPv6 has nothing to switch off */
} settings[] = {
	{"/proc/sys/net/ipv6/conf/all/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1", true},
	{"/proc/sys/net/ipv4/ip_forward", "1", false},
	{"/proc/sys/net/ipv4/conf/all/rp_filter", "0", false},
	{"/proc/sys/net/ipv4/conf/default/rp_filter", "1", false},
	{"/proc/sys/net/ipv4/conf/all/accept_source_route", "0", false},
	{"/proc/sys/net/ipv4/conf/default/accept_source_route", "0", false},
	{"/proc/sys/net/ipv4/conf/all/accept_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/default/accept_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/all/secure_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/default/secure_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/all/send_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/default/send_redirects", "0", false},
	{"/proc/sys/net/ipv4/conf/all/route_localnet", "0", false},
	{"/proc/sys/net/ipv4/conf/default/route_localnet", "0", false},
	{"/proc/sys/net/ipv4/conf/all/arp_ignore", "2", false},
	{"/proc/sys/net/ipv4/conf/default/arp_ignore", "2", false},
	{"/proc/sys/net/ipv4/conf/all/arp_filter", "1", false},
	{"/proc/sys/net/ipv4/conf/default/arp_filter", "1", false},
	{"/proc/sys/net/ipv4/conf/all/arp_accept", "0", false},
	{"/proc/sys/net/ipv4/conf/default/arp_accept", "0", false},
	{"/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0", false},
};

static int write_settings(void *, struct err *e)
{
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		if (settings[i].may_miss && access(settings[i].path, F_OK) < 0)
			continue;
		int r = file_put(AT_FDCWD, settings[i].path, settings[i].value, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Sources of what comes in from outside are for the host to check; answers of an exception come from where the
 * sandboxes' routes do not lead. */
static int write_settings_of_up(void *, struct err *e)
{
	return file_put(AT_FDCWD, "/proc/sys/net/ipv4/conf/" RULESET_UP "/rp_filter", "0", e);
}

/* Packets of the gateway itself, and those that come in from the host, are routed by the main table: the way out and
 * the sandboxes' links. Packets of sandboxes are routed by tables of their own. */
static const struct route_rule route_rules[] = {
	{.priority = 10, .in_link = RULESET_UP, .table = RT_TABLE_MAIN},
	{.priority = 20, .in_link = "lo", .table = RT_TABLE_MAIN},
	{.priority = 30, .mark = RULESET_EXCEPTION, .mask = RULESET_EXCEPTION, .table = TABLE_EXCEPTIONS},
	{.priority = 40, .table = TABLE_SANDBOXES},
};

static int add_route_rules(struct netlink *n, struct err *e)
{
	static const struct route_rule usual[] = {{.priority = 32766, .table = RT_TABLE_MAIN},
						  {.priority = 32767, .table = RT_TABLE_DEFAULT}};
	int r = 0;
	for (size_t i = 0; i < sizeof(route_rules) / sizeof(route_rules[0]) && r == 0; i++)
		r = route_rule_add(n, &route_rules[i], e);
	for (size_t i = 0; i < sizeof(usual) / sizeof(usual[0]) && r == 0; i++)
		r = route_rule_delete(n, &usual[i], e);
	return r;
}

static int prohibit(struct netlink *n, const struct cidr *network, struct err *e)
{
	size_t count = 0;
	const struct cidr *denied = network_denied(&count);
	struct route route = {.table = TABLE_SANDBOXES, .to = network->address, .bits = network->bits};
	int r = route_add(n, &route, e);
	for (size_t i = 0; i < count && r == 0; i++) {
		route.to = denied[i].address;
		route.bits = denied[i].bits;
		r = route_add(n, &route, e);
	}
	return r;
}

static int route_inside(int netns, const struct cidr *network, struct err *e)
{
	struct netlink *n = NULL;
	int r = netlink_open(NETLINK_ROUTE, netns, &n, e);
	if (r == 0)
		r = link_up(n, "lo", 0, e);
	if (r == 0)
		r = add_route_rules(n, e);
	if (r == 0)
		r = prohibit(n, network, e);
	netlink_close(n);
	return r;
}

/* --- what is in the host's namespace ------------------------------------------------------------------------- */

/* Sets the gateway's end of the pair up and routes over it. */
static int set_up_inner(struct netlink *n, uint32_t mtu, struct err *e)
{
	static const uint32_t tables[] = {RT_TABLE_MAIN, TABLE_SANDBOXES, TABLE_EXCEPTIONS};
	struct route way_out = {.via = HOP_ERUP};
	int r = link_up(n, RULESET_UP, mtu, e);
	if (r == 0)
		r = link_index(n, RULESET_UP, &way_out.link, e);
	if (r == 0)
		r = neighbour_add(n, way_out.link, HOP_ERUP, erup_mac, e);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && r == 0; i++) {
		way_out.table = tables[i];
		r = route_add(n, &way_out, e);
	}
	return r;
}

static int set_up_outer(struct netlink *n, const struct cidr *network, uint32_t mtu, struct err *e)
{
	struct route route = {
		.table = RT_TABLE_MAIN, .to = network->address, .bits = network->bits, .via = HOP_UP};
	static const char ipv6[] = "/proc/sys/net/ipv6/conf/" RULESET_ERUP "/disable_ipv6";
	int r = access(ipv6, F_OK) == 0 ? file_put(AT_FDCWD, ipv6, "1", e) : 0;
	if (r == 0)
		r = file_put(AT_FDCWD, "/proc/sys/net/ipv4/conf/" RULESET_ERUP "/send_redirects", "0", e);
	if (r == 0)
		r = link_up(n, RULESET_ERUP, mtu, e);
	if (r == 0)
		r = link_index(n, RULESET_ERUP, &route.link, e);
	if (r == 0)
		r = neighbour_add(n, route.link, HOP_UP, up_mac, e);
	return r < 0 ? r : route_add(n, &route, e);
}

static int add_pair(struct netlink *inside, uint32_t mtu, struct err *e)
{
	const struct link_end up = {.name = RULESET_UP, .mac = up_mac};
	const struct link_end erup = {.name = RULESET_ERUP, .mac = erup_mac};
	scoped_fd int host = -1;
	int r = netns_open(&host, e);
	return r < 0 ? r : link_add_pair(inside, &up, &erup, host, mtu, e);
}

/* The pair is there, and both ends carry what they should. Everything but the pair is set again each time: that costs
 * little, and what is right stays as it is. */
static int mend_pair(struct netlink *outside, int netns, const struct cidr *network, struct buf *mended,
		     struct err *e)
{
	struct netlink *inside = NULL;
	uint32_t index = 0;
	uint32_t mtu = 0;
	if (route_default_mtu(outside, &mtu, NULL) < 0)
		mtu = MTU_DEFAULT;
	mtu = mtu < MTU_LEAST ? MTU_LEAST : mtu;
	int r = netlink_open(NETLINK_ROUTE, netns, &inside, e);
	if (r == 0 && link_index(outside, RULESET_ERUP, &index, NULL) < 0) {
		buf_str(mended, "the link " RULESET_ERUP " was made\n");
		r = add_pair(inside, mtu, e);
		if (r == 0)
			r = netns_with(netns, write_settings_of_up, NULL, e);
	}
	if (r == 0)
		r = set_up_inner(inside, mtu, e);
	if (r == 0)
		r = set_up_outer(outside, network, mtu, e);
	netlink_close(inside);
	return r;
}

static int mend_rules(const struct cidr *network, struct buf *mended, struct err *e)
{
	scoped_buf struct buf rules = BUF_INIT(RULES_MAX);
	struct nft_batch *b = NULL;
	int r = nft_open(-1, &b, e);
	int n = r == 0 ? nft_count_rules(b, &inet_table, e) : r;
	nft_close(b);
	if (n < 0 || n == RULESET_HOST_RULES)
		return n < 0 ? n : 0;
	buf_str(mended, "the table inet " RULESET_TABLE " of the host was loaded\n");
	ruleset_host(network, &rules);
	return nftext_load(-1, &rules, e);
}

struct addresses {
	size_t n;
	uint32_t items[HOST_ADDRESSES_MAX];
};

static int compare(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a;
	uint32_t right = *(const uint32_t *)b;
	return left < right ? -1 : left > right;
}

/* Sorts them, each once. */
static void sort(struct addresses *a)
{
	size_t n = 0;
	qsort(a->items, a->n, sizeof(a->items[0]), compare);
	for (size_t i = 0; i < a->n; i++)
		if (n == 0 || a->items[n - 1] != a->items[i])
			a->items[n++] = a->items[i];
	a->n = n;
}

static int take_address(void *data, const uint8_t *key, size_t n)
{
	struct addresses *a = data;
	uint32_t address = 0;
	if (a->n == HOST_ADDRESSES_MAX || n != sizeof(address))
		return 0;
	memcpy(&address, key, sizeof(address));
	a->items[a->n++] = ntohl(address);
	return 0;
}

static int replace_addresses(struct nft_batch *b, const struct addresses *wanted, struct err *e)
{
	nft_flush_set(b, &inet_table, "host");
	for (size_t i = 0; i < wanted->n; i++) {
		struct nft_element x = {0};
		nft_key_address(&x.key, wanted->items[i]);
		nft_add(b, &inet_table, "host", &x);
	}
	return nft_commit(b, e);
}

/* The addresses of the host's namespace, in the set that denies them. A transaction waits for packets that are under
 * way, so there is one only when something has changed. */
static int mend_addresses(struct netlink *outside, int netns, struct err *e)
{
	struct addresses wanted = {0};
	struct addresses there = {0};
	struct nft_batch *b = NULL;
	int n = address_list(outside, wanted.items, HOST_ADDRESSES_MAX, e);
	if (n < 0)
		return n;
	if (n > HOST_ADDRESSES_MAX)
		return err_set(e, -E2BIG, "the host has more than %d addresses", HOST_ADDRESSES_MAX);
	wanted.n = (size_t)n;
	sort(&wanted);
	int r = nft_open(netns, &b, e);
	if (r < 0)
		return r;
	r = nft_each(b, &inet_table, "host", take_address, &there, e);
	sort(&there);
	if (r == 0 && (there.n != wanted.n ||
		       memcmp(there.items, wanted.items, wanted.n * sizeof(wanted.items[0])) != 0))
		r = replace_addresses(b, &wanted, e);
	nft_close(b);
	return r;
}

/* The host routes what comes from the gateway only when its table has marked it: else, while somebody's flush has
 * taken the table away, packets would go out with the sandboxes' own addresses. The last comes first, for the jump
 * to it. */
static const struct route_rule host_rules[] = {
	{.priority = 102, .action = ROUTE_NOP},
	{.priority = 100,
	 .in_link = RULESET_ERUP,
	 .mark = RULESET_TRANSLATED,
	 .mask = RULESET_TRANSLATED_MASK,
	 .action = ROUTE_GOTO,
	 .to = 102},
	{.priority = 101, .in_link = RULESET_ERUP, .action = ROUTE_BLACKHOLE},
};

enum { N_HOST_RULES = sizeof(host_rules) / sizeof(host_rules[0]) };

static int mend_routing(struct netlink *outside, struct buf *mended, struct err *e)
{
	bool was_missing = false;
	for (size_t i = 0; i < N_HOST_RULES; i++) {
		int r = route_rule_add(outside, &host_rules[i], e);
		if (r < 0 && r != -EEXIST)
			return r;
		was_missing = was_missing || r == 0;
	}
	if (was_missing)
		buf_str(mended, "the routing rules for " RULESET_ERUP " were added\n");
	return 0;
}

static int remove_routing(struct netlink *outside, struct err *e)
{
	for (size_t i = N_HOST_RULES; i-- > 0;) {
		int r = route_rule_delete(outside, &host_rules[i], e);
		if (r < 0 && r != -ENOENT)
			return r;
	}
	return 0;
}

static int mend_forwarding(struct buf *mended, struct err *e)
{
	static const char path[] = "/proc/sys/net/ipv4/ip_forward";
	uint64_t on = 0;
	int r = file_read_u64(AT_FDCWD, path, &on, e);
	if (r < 0 || on == 1)
		return r;
	r = file_put(AT_FDCWD, path, "1", e);
	if (r < 0)
		return err_ctx(e, r, "turn forwarding on (do it yourself: sysctl -w net.ipv4.ip_forward=1)");
	buf_str(mended, "net.ipv4.ip_forward was turned on; it stays on\n");
	return 0;
}

int gateway_mend(int netns, const struct cidr *network, struct buf *mended, struct err *e)
{
	struct netlink *outside = NULL;
	int r = netlink_open(NETLINK_ROUTE, -1, &outside, e);
	/* The rules stand before the way that they watch. */
	if (r == 0)
		r = mend_addresses(outside, netns, e);
	if (r == 0)
		r = mend_rules(network, mended, e);
	if (r == 0)
		r = mend_routing(outside, mended, e);
	if (r == 0)
		r = mend_pair(outside, netns, network, mended, e);
	if (r == 0)
		r = mend_forwarding(mended, e);
	netlink_close(outside);
	return r;
}

/* --- the whole ----------------------------------------------------------------------------------------------- */

static int bind_name(void *data, struct err *e)
{
	char source[32];
	(void)snprintf(source, sizeof(source), "/proc/self/fd/%d", *(const int *)data);
	scoped_fd int fd =
		open(HOST_RUN_DIR "/" GATEWAY_NAME, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 || mount(source, HOST_RUN_DIR "/" GATEWAY_NAME, NULL, MS_BIND, NULL) < 0)
		return err_sys(e, "bind " HOST_RUN_DIR "/" GATEWAY_NAME);
	return 0;
}

static int unbind_name(void *data, struct err *e)
{
	(void)data;
	while (umount2(HOST_RUN_DIR "/" GATEWAY_NAME, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		;
	if (unlink(HOST_RUN_DIR "/" GATEWAY_NAME) < 0 && errno != ENOENT)
		return err_sys(e, "remove " HOST_RUN_DIR "/" GATEWAY_NAME);
	return 0;
}

/* Loads the rules of both namespaces, and meanwhile routes. */
static int load_and_route(int netns, const struct cidr *network, struct err *e)
{
	scoped_buf struct buf inner_rules = BUF_INIT(RULES_MAX);
	scoped_buf struct buf outer_rules = BUF_INIT(RULES_MAX);
	struct nftext inner;
	struct nftext outer;
	ruleset_gateway(network, &inner_rules);
	ruleset_host(network, &outer_rules);
	int r = nftext_begin(netns, &inner_rules, &inner, e);
	int r_outer = nftext_begin(-1, &outer_rules, &outer, r < 0 ? NULL : e);
	r = r < 0 ? r : r_outer;
	if (r == 0)
		r = route_inside(netns, network, e);
	int r_end = nftext_end(&inner, r < 0 ? NULL : e);
	r = r < 0 ? r : r_end;
	r_end = nftext_end(&outer, r < 0 ? NULL : e);
	return r < 0 ? r : r_end;
}

static int make(const struct host *h, const struct gateway_plan *plan, int *ret_netns, struct buf *notes,
		struct err *e)
{
	char conf[CONF_MAX];
	scoped_fd int netns = -1;
	scoped_buf struct buf mended = BUF_INIT(4096);
	int r = conf_text(plan, conf, e);
	if (r == 0)
		r = netns_make(&netns, e);
	if (r == 0)
		r = host_with_mounts(h, bind_name, &netns, e);
	if (r == 0)
		r = load_and_route(netns, &plan->network, e);
	if (r == 0)
		r = netns_with(netns, write_settings, NULL, e);
	if (r == 0)
		r = gateway_mend(netns, &plan->network, &mended, e);
	if (r == 0)
		r = file_replace(h->run, CONF_NAME, 0600, conf, strlen(conf), e);
	if (r < 0)
		return err_ctx(e, r, "the gateway");
	/* Of what was just made only the setting that stays is worth a word. */
	const char *forwarding = strstr(buf_text(&mended), "net.ipv4");
	if (forwarding)
		buf_str(notes, forwarding);
	gateway_foreign(notes);
	*ret_netns = fd_steal(&netns);
	return 0;
}

/* Removes the pair and meanwhile the table. Both wait for the packets that are under way. Where no table is to be
 * seen one may be about to come, of an nft whose caller was killed: the kernel does one transaction after the
 * other. */
static int remove_outer(struct netlink *outside, struct err *e)
{
	static const char text[] = "table inet " RULESET_TABLE "\ndelete table inet " RULESET_TABLE "\n";
	scoped_buf struct buf rules = BUF_INIT(sizeof(text));
	struct nftext run;
	/* Without nft there is nothing that it loaded. */
	if (!nftext_program())
		return link_delete(outside, RULESET_ERUP, e);
	buf_str(&rules, text);
	int r = nftext_begin(-1, &rules, &run, e);
	int r_link = link_delete(outside, RULESET_ERUP, r < 0 ? NULL : e);
	int r_end = nftext_end(&run, r < 0 || r_link < 0 ? NULL : e);
	return r < 0 ? r : r_link < 0 ? r_link : r_end;
}

/* keep_table: it is about to be replaced. */
static int remove_all(const struct host *h, bool keep_table, struct err *e)
{
	struct netlink *outside = NULL;
	static const char *const names[] = {CONF_NAME, CONF_NEW};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (unlinkat(h->run, names[i], 0) < 0 && errno != ENOENT)
			return err_sys(e, "remove " HOST_RUN_DIR "/%s", names[i]);
	int r = netlink_open(NETLINK_ROUTE, -1, &outside, e);
	if (r == 0)
		r = keep_table ? link_delete(outside, RULESET_ERUP, e) : remove_outer(outside, e);
	if (r == 0)
		r = remove_routing(outside, e);
	netlink_close(outside);
	return r < 0 ? r : host_with_mounts(h, unbind_name, NULL, e);
}

int gateway_remove(const struct host *h, struct err *e)
{
	return remove_all(h, false, e);
}

static int count_key(void *data, const uint8_t *, size_t)
{
	++*(int *)data;
	return 0;
}

static int has_members(int netns, struct err *e)
{
	struct nft_batch *b = NULL;
	int n = 0;
	int r = nft_open(netns, &b, e);
	if (r == 0)
		r = nft_each(b, &inet_table, "links", count_key, &n, e);
	nft_close(b);
	return r == -ENOENT ? 0 : r < 0 ? r : n;
}

int gateway_ensure(const struct host *h, const struct gateway_plan *plan, int *ret_netns, struct buf *notes,
		   struct err *e)
{
	char wanted[CONF_MAX];
	char conf[CONF_MAX];
	scoped_fd int netns = -1;
	int r = conf_text(plan, wanted, e);
	if (r < 0)
		return r;
	bool whole =
		open_name(h, &netns) == 0 && file_read_text(h->run, CONF_NAME, conf, sizeof(conf), NULL) >= 0;
	if (whole && strcmp(conf, wanted) == 0) {
		r = gateway_mend(netns, &plan->network, notes, e);
		if (r < 0)
			return err_ctx(e, r, "the gateway");
		*ret_netns = fd_steal(&netns);
		return 0;
	}
	if (whole) {
		r = has_members(netns, e);
		if (r < 0)
			return r;
		if (r > 0)
			return err_set(e, -EBUSY,
				       "the gateway serves other sandboxes (%s) until they have ended, "
				       "not these (%s)",
				       conf, wanted);
	}
	fd_close(&netns);
	r = remove_all(h, true, e);
	return r < 0 ? r : make(h, plan, ret_netns, notes, e);
}

/* --- foreign tables ------------------------------------------------------------------------------------------ */

static int look_at_chain(void *data, const char *table, const char *chain, bool drops)
{
	struct buf *notes = data;
	scoped_buf struct buf text = BUF_INIT(1 << 20);
	if (!drops || strcmp(table, RULESET_TABLE) == 0)
		return 0;
	/* Docker, ufw and iptables have theirs in family ip, firewalld in inet. */
	const char *family = nftext_list("ip", table, &text, NULL) == 0 ? "ip" : "inet";
	if (text.n == 0)
		(void)nftext_list("inet", table, &text, NULL);
	if (strstr(buf_text(&text), RULESET_ERUP))
		return 0;
	const char *into = strstr(buf_text(&text), "DOCKER-USER") ? "DOCKER-USER" : chain;
	buf_fmt(notes,
		"the host's chain %s of table %s %s drops forwarded packets: sandboxes reach nothing until ",
		chain, family, table);
	if (strcmp(family, "ip") == 0)
		buf_fmt(notes,
			"it is allowed: iptables -I %s -i " RULESET_ERUP
			" -j ACCEPT; iptables -I %s -o " RULESET_ERUP
			" -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n",
			into, into);
	else
		buf_fmt(notes,
			"it is allowed: nft insert rule %s %s %s iifname " RULESET_ERUP
			" accept; nft insert rule "
			"%s %s %s oifname " RULESET_ERUP " ct state established,related accept\n",
			family, table, chain, family, table, chain);
	return 0;
}

void gateway_foreign(struct buf *notes)
{
	struct nft_batch *b = NULL;
	if (nft_open(-1, &b, NULL) == 0)
		(void)!nft_each_base_chain(b, NF_INET_FORWARD, look_at_chain, notes, NULL);
	nft_close(b);
}
