#include "wire/flow.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_PACKET (NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET)

/* Numbers of a packet, and of attributes, are big-endian; those of netlink's own heads as the machine has them. */
static uint32_t read_big(struct rd *r, size_t n_bytes)
{
	const uint8_t *at = rd_bytes(r, n_bytes);
	uint32_t value = 0;
	for (size_t i = 0; at && i < n_bytes; i++)
		value = value << 8 | at[i];
	return value;
}

/* Copies the next n bytes; zeros where there are fewer. */
static void copy(struct rd *r, void *to, size_t n)
{
	const uint8_t *at = rd_bytes(r, n);
	memset(to, 0, n);
	if (at)
		memcpy(to, at, n);
}

static struct rd part(struct rd *r, size_t n)
{
	const uint8_t *at = rd_bytes(r, n);
	struct rd whole = rd_over(at, at ? n : 0);
	whole.bad = !at;
	return whole;
}

/* After n bytes: netlink aligns to four, but the last part may stand without its padding. */
static void skip_padding(struct rd *r, size_t n)
{
	size_t padding = (4 - n % 4) % 4;
	(void)rd_bytes(r, padding < rd_left(r) ? padding : rd_left(r));
}

static void read_ports(struct rd *r, struct flow *f)
{
	if (f->protocol != IPPROTO_TCP && f->protocol != IPPROTO_UDP)
		return;
	uint16_t source = (uint16_t)read_big(r, 2);
	uint16_t port = (uint16_t)read_big(r, 2);
	if (r->bad)
		return;
	f->source_port = source;
	f->port = port;
	f->has_ports = 1;
}

static void read_ipv4(struct rd *r, struct flow *f)
{
	uint32_t length = (read_big(r, 1) & 15) * 4;
	(void)rd_bytes(r, 5);
	uint32_t fragment = read_big(r, 2) & 0x1fff;
	(void)rd_bytes(r, 1);
	uint8_t protocol = (uint8_t)read_big(r, 1);
	(void)rd_bytes(r, 2);
	copy(r, f->source, 4);
	copy(r, f->address, 4);
	if (r->bad)
		return;
	f->address_n = 4;
	f->protocol = protocol;
	if (length < 20 || !rd_bytes(r, length - 20) || fragment > 0)
		return;
	read_ports(r, f);
}

static void read_ipv6(struct rd *r, struct flow *f)
{
	(void)rd_bytes(r, 6);
	uint8_t protocol = (uint8_t)read_big(r, 1);
	(void)rd_bytes(r, 1);
	copy(r, f->source, 16);
	copy(r, f->address, 16);
	if (r->bad)
		return;
	f->address_n = 16;
	f->protocol = protocol;
	read_ports(r, f);
}

/* Who claims to be asking, and for what; Ethernet and IPv4 only. */
static void read_arp(struct rd *r, struct flow *f)
{
	bool usual = read_big(r, 4) == 0x00010800 && read_big(r, 2) == 0x0604;
	(void)rd_bytes(r, 2 + 6);
	copy(r, f->source, 4);
	(void)rd_bytes(r, 6);
	copy(r, f->address, 4);
	f->address_n = usual && !r->bad ? 4 : 0;
}

static void read_packet(struct rd r, struct flow *f)
{
	static const struct {
		uint16_t ether_type;
		void (*read)(struct rd *r, struct flow *f);
	} forms[] = {{ETH_P_IP, read_ipv4}, {ETH_P_IPV6, read_ipv6}, {ETH_P_ARP, read_arp}};
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
		if (forms[i].ether_type == f->ether_type)
			forms[i].read(&r, f);
	if (f->address_n == 0) {
		memset(f->source, 0, sizeof(f->source));
		memset(f->address, 0, sizeof(f->address));
	}
}

/* Reads the attributes of one message. */
static void read_attributes(struct rd *r, struct flow *f)
{
	struct rd packet = rd_over(NULL, 0);
	while (rd_left(r) >= sizeof(struct nlattr)) {
		struct nlattr head;
		copy(r, &head, sizeof(head));
		if (head.nla_len < sizeof(head))
			return;
		struct rd value = part(r, head.nla_len - sizeof(head));
		if (r->bad)
			break;
		/* The two upper bits are flags. */
		switch (head.nla_type & 0x3fffu) {
		case NFULA_PACKET_HDR:
			f->ether_type = (uint16_t)read_big(&value, 2);
			break;
		case NFULA_MARK:
			f->mark = read_big(&value, 4);
			break;
		case NFULA_PAYLOAD:
			packet = value;
			break;
		default:
			break;
		}
		skip_padding(r, head.nla_len);
	}
	read_packet(packet, f);
}

bool flow_next(struct rd *r, struct flow *ret)
{
	while (!r->bad && rd_left(r) >= sizeof(struct nlmsghdr)) {
		struct nlmsghdr head;
		copy(r, &head, sizeof(head));
		if (head.nlmsg_len < sizeof(head))
			return false;
		struct rd message = part(r, head.nlmsg_len - sizeof(head));
		if (r->bad)
			return false;
		skip_padding(r, head.nlmsg_len);
		if (head.nlmsg_type != MESSAGE_PACKET || !rd_bytes(&message, sizeof(struct nfgenmsg)))
			continue;
		struct flow f;
		memset(&f, 0, sizeof(f));
		read_attributes(&message, &f);
		*ret = f;
		return true;
	}
	return false;
}

void flow_address_text(const struct flow *f, const uint8_t *address, char ret[static FLOW_ADDRESS_TEXT])
{
	ret[0] = '\0';
	if (f->address_n > 0)
		(void)inet_ntop(f->address_n == 4 ? AF_INET : AF_INET6, address, ret, FLOW_ADDRESS_TEXT);
}

void flow_protocol_text(const struct flow *f, char ret[static FLOW_PROTOCOL_MAX])
{
	static const struct {
		uint8_t number;
		const char *name;
	} names[] = {{IPPROTO_ICMP, "icmp"}, {IPPROTO_TCP, "tcp"}, {IPPROTO_UDP, "udp"}};
	const char *name = f->ether_type == ETH_P_ARP ? "arp" : f->ether_type == ETH_P_IPV6 ? "ipv6" : NULL;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !name; i++)
		if (f->ether_type == ETH_P_IP && f->protocol == names[i].number)
			name = names[i].name;
	if (name)
		(void)snprintf(ret, FLOW_PROTOCOL_MAX, "%s", name);
	else if (f->ether_type == ETH_P_IP)
		(void)snprintf(ret, FLOW_PROTOCOL_MAX, "ip-%u", (unsigned)f->protocol);
	else
		(void)snprintf(ret, FLOW_PROTOCOL_MAX, "ether-0x%04x", (unsigned)f->ether_type);
}
