#include "net/plug.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <unistd.h>

#include "base/file.h"
#include "base/scope.h"
#include "net/members.h"
#include "spec/network.h"
#include "sys/link.h"

#define GUEST_LINK "eth0"

static int switch_ipv6_off(void *, struct err *e)
{
	static const char *const paths[] = {"/proc/sys/net/ipv6/conf/all/disable_ipv6",
					    "/proc/sys/net/ipv6/conf/default/disable_ipv6"};
	int r = 0;
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]) && r == 0; i++)
		if (access(paths[i], F_OK) == 0)
			r = file_put(AT_FDCWD, paths[i], "1", e);
	return r;
}

static int set_up_near(const struct plug *p, struct netlink *n, const uint8_t *guest_mac, struct err *e)
{
	uint32_t index = 0;
	int r = link_index(n, p->link, &index, e);
	if (r == 0)
		r = members_gate(p->gateway, p->link, e);
	if (r == 0)
		r = address_add(n, index, p->gateway_address, NETWORK_SLOT_BITS, e);
	if (r == 0)
		r = link_up(n, p->link, 0, e);
	return r < 0 ? r : neighbour_add(n, index, p->guest_address, guest_mac, e);
}

static int set_up_far(const struct plug *p, struct err *e)
{
	struct netlink *n = NULL;
	struct route way_out = {.table = RT_TABLE_MAIN, .via = p->gateway_address};
	int r = netlink_open(NETLINK_ROUTE, p->sandbox, &n, e);
	if (r == 0)
		r = link_up(n, "lo", 0, e);
	if (r == 0)
		r = link_index(n, GUEST_LINK, &way_out.link, e);
	if (r == 0)
		r = address_add(n, way_out.link, p->guest_address, NETWORK_SLOT_BITS, e);
	if (r == 0)
		r = link_up(n, GUEST_LINK, 0, e);
	if (r == 0)
		r = route_add(n, &way_out, e);
	netlink_close(n);
	return r;
}

/* The link of the slot's last sandbox may be there still: the kernel takes its time over them. */
static int add_pair(const struct plug *p, struct netlink *n, const struct link_end *near,
		    const struct link_end *far, struct err *e)
{
	int r = link_add_pair(n, near, far, p->sandbox, p->mtu, e);
	if (r != -EEXIST)
		return r;
	r = link_delete(n, p->link, e);
	return r < 0 ? r : link_add_pair(n, near, far, p->sandbox, p->mtu, e);
}

int plug_in(const struct plug *p, struct err *e)
{
	uint8_t near_mac[NETWORK_MAC_BYTES];
	uint8_t far_mac[NETWORK_MAC_BYTES];
	const struct link_end near = {.name = p->link, .mac = near_mac};
	const struct link_end far = {.name = GUEST_LINK, .mac = far_mac};
	struct netlink *n = NULL;
	slot_gateway_mac(p->slot, near_mac);
	slot_guest_mac(p->slot, far_mac);
	int r = netns_with(p->sandbox, switch_ipv6_off, NULL, e);
	if (r == 0)
		r = netlink_open(NETLINK_ROUTE, p->gateway, &n, e);
	if (r == 0)
		r = add_pair(p, n, &near, &far, e);
	if (r == 0)
		r = set_up_near(p, n, far_mac, e);
	if (r == 0)
		r = set_up_far(p, e);
	/* That its other end is up, a link notes some time later, and until then it sends nothing: the answer to the
	 * sandbox's first question by ARP would be lost, and the next one comes after a second. Asking for the link
	 * makes it note that (Linux 6.8). */
	if (r == 0)
		r = link_read(n, p->link, NULL, NULL, NULL, e);
	netlink_close(n);
	return r < 0 ? err_ctx(e, r, "the sandbox's link") : 0;
}

int plug_bytes(int gateway, const char *link, uint64_t *ret_sent, uint64_t *ret_received, struct err *e)
{
	struct netlink *n = NULL;
	int r = netlink_open(NETLINK_ROUTE, gateway, &n, e);
	if (r == 0)
		r = link_read(n, link, NULL, ret_sent, ret_received, e);
	netlink_close(n);
	return r;
}
