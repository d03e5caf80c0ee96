#include "net/ruleset.h"

#include "spec/refusal.h"

/* What stands in both tables of the gateway: how a packet is refused. The packet has the kind as its mark. */
static const char refuse_chain[] = "	set refused { type ifname . mark; counter; }\n"
				   "	map loggers { type ifname : verdict; }\n"
				   "	chain refuse {\n"
				   "		iifname . meta mark @refused\n"
				   "		iifname vmap @loggers\n"
				   "		drop\n"
				   "	}\n";

static void refuse(struct buf *out, const char *match, enum refusal kind)
{
	buf_fmt(out, "		%s meta mark set %d goto refuse\n", match, (int)kind);
}

/* The first look at a frame, before any other code of the kernel sees it: here a tag is still a tag, and ARP
 * passes. */
static void put_gate(struct buf *out)
{
	buf_str(out, "table netdev " RULESET_TABLE " {\n"
		     "	set owners { type ifname . ether_addr . ipv4_addr; }\n"
		     "	set claims { type ifname . ether_addr . ether_addr . ipv4_addr; }\n"
		     "	set rate { type ifname; limit rate over 1 mbytes/second; }\n");
	buf_str(out, refuse_chain);
	buf_str(out, "	chain gate_arp {\n"
		     "		arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp operation { request, "
		     "reply } "
		     "iifname . ether saddr . arp saddr ether . arp saddr ip @claims accept\n");
	buf_fmt(out, "		meta mark set %d goto refuse\n	}\n", REFUSAL_SPOOF);
	buf_str(out, "	chain " RULESET_GATE " {\n"
		     "		ether type arp goto gate_arp\n");
	refuse(out, "ether type != ip", REFUSAL_LINK);
	refuse(out, "ip hdrlength != 5", REFUSAL_LINK);
	refuse(out, "iifname . ether saddr . ip saddr != @owners", REFUSAL_SPOOF);
	refuse(out, "iifname @rate", REFUSAL_RATE);
	buf_str(out, "		accept\n	}\n}\n");
}

static void put_sets(const struct cidr *network, struct buf *out)
{
	char text[NETWORK_ADDRESS_TEXT];
	size_t n = 0;
	const struct cidr *denied = network_denied(&n);
	buf_str(out, "	set links { type ifname; }\n"
		     "	set services { type ifname . ipv4_addr . inet_proto . inet_service; }\n"
		     "	set exceptions { type ifname . ipv4_addr; flags interval; }\n"
		     "	set exceptions_port { type ifname . ipv4_addr . inet_service; }\n"
		     "	set opened { type ifname; counter; }\n"
		     "	set flow_limit { type ifname; ct count over 65536; }\n"
		     "	set rate { type ifname; limit rate over 1 mbytes/second; }\n"
		     "	set host { type ipv4_addr; }\n"
		     "	set denied { type ipv4_addr; flags interval; auto-merge; elements = {");
	for (size_t i = 0; i < n; i++) {
		network_address_text(denied[i].address, text);
		buf_fmt(out, " %s/%u,", text, denied[i].bits);
	}
	network_address_text(network->address, text);
	buf_fmt(out, " %s/%u } }\n", text, network->bits);
}

/* Everything that a packet's own bytes tell is checked before the kernel looks for the flow it belongs to: no
 * established flow carries a packet past this, and what is refused takes no entry. All of the gateway's own addresses,
 * every broadcast and every multicast address lie in denied ranges, so a packet to anywhere else passes three rules. */
static void put_from_sandbox(struct buf *out)
{
	buf_str(out, "	chain to_denied {\n"
		     "		iifname . ip daddr . meta l4proto . th dport @services notrack accept\n");
	refuse(out, "fib daddr type local", REFUSAL_HOST);
	refuse(out, "ip daddr @host", REFUSAL_HOST);
	refuse(out, "fib daddr type { broadcast, anycast, multicast }", REFUSAL_CAST);
	refuse(out, "meta l4proto != { tcp, udp, icmp }", REFUSAL_PROTOCOL);
	buf_fmt(out,
		"		iifname . ip daddr @exceptions meta mark set %#x accept\n"
		"		meta l4proto { tcp, udp } iifname . ip daddr . th dport @exceptions_port "
		"meta mark set %#x accept\n",
		RULESET_EXCEPTION, RULESET_EXCEPTION);
	buf_fmt(out, "		meta mark set %d goto refuse\n	}\n", REFUSAL_PRIVATE);
	buf_str(out, "	chain from_sandbox {\n"
		     "		ip daddr @denied goto to_denied\n");
	refuse(out, "ip daddr @host", REFUSAL_HOST);
	refuse(out, "meta l4proto != { tcp, udp, icmp }", REFUSAL_PROTOCOL);
	buf_str(out, "		accept\n"
		     "	}\n"
		     "	chain prerouting {\n"
		     "		type filter hook prerouting priority raw; policy drop;\n"
		     "		iifname \"" RULESET_UP "\" accept\n"
		     "		iifname @links goto from_sandbox\n"
		     "		iifname \"lo\" accept\n"
		     "	}\n");
}

#define CLAMP "		tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu\n"

static void put_forward(struct buf *out)
{
	buf_str(out, "	chain towards_sandbox {\n"
		     "		oifname != @links drop\n");
	buf_fmt(out, "		oifname @rate meta mark set %d goto refuse_towards\n", REFUSAL_RATE);
	buf_str(out, CLAMP "		ct state established accept\n"
			   "		ct state related meta l4proto icmp accept\n"
			   "		drop\n"
			   "	}\n"
			   "	chain forward {\n"
			   "		type filter hook forward priority filter; policy drop;\n"
			   "		iifname \"" RULESET_UP "\" goto towards_sandbox\n");
	refuse(out, "oifname != \"" RULESET_UP "\"", REFUSAL_ROUTE);
	buf_str(out, "		ct state established,related accept\n");
	refuse(out, "ct state invalid", REFUSAL_INVALID);
	buf_str(out, CLAMP);
	refuse(out, "iifname @flow_limit", REFUSAL_FLOWS);
	buf_str(out, "		ct mark 0 ct mark set 1 iifname @opened accept\n"
		     "		accept\n"
		     "	}\n");
}

static void put_local(struct buf *out)
{
	buf_str(out, "	chain input {\n"
		     "		type filter hook input priority filter; policy drop;\n"
		     "		iifname . ip daddr . meta l4proto . th dport @services accept\n");
	refuse(out, "iifname @links", REFUSAL_HOST);
	buf_str(out, "	}\n"
		     "	chain output {\n"
		     "		type filter hook output priority raw; policy drop;\n");
	buf_fmt(out, "		oifname @rate meta mark set %d goto refuse_towards\n", REFUSAL_RATE);
	buf_str(out, "		oifname . ip saddr . meta l4proto . th sport @services notrack accept\n"
		     "		icmp type { destination-unreachable, time-exceeded, parameter-problem } "
		     "notrack accept\n"
		     "	}\n");
}

void ruleset_gateway(const struct cidr *network, struct buf *out)
{
	put_gate(out);
	buf_str(out, "table inet " RULESET_TABLE " {\n");
	put_sets(network, out);
	buf_str(out, refuse_chain);
	buf_str(out, "	chain refuse_towards {\n"
		     "		oifname . meta mark @refused\n"
		     "		drop\n"
		     "	}\n");
	put_from_sandbox(out);
	put_forward(out);
	put_local(out);
	buf_str(out, "}\n");
}

/* The host's own traffic passes one rule of each chain. Its marks are kept, but for the half that is ours. */
void ruleset_host(const struct cidr *network, struct buf *out)
{
	char text[NETWORK_ADDRESS_TEXT];
	network_address_text(network->address, text);
	buf_fmt(out,
		"table inet " RULESET_TABLE "\n"
		"delete table inet " RULESET_TABLE "\n"
		"table inet " RULESET_TABLE " {\n"
		"	chain prerouting {\n"
		"		type filter hook prerouting priority mangle + 5; policy accept;\n"
		"		iifname != \"" RULESET_ERUP "\" accept\n"
		"		ct state != { established, related } "
		"fib daddr type { local, broadcast, anycast, multicast } drop\n"
		"		ip saddr != %s/%u drop\n"
		"		meta nfproto != ipv4 drop\n"
		"		meta mark set meta mark & 0x0000ffff | %#x\n"
		"	}\n",
		text, network->bits, RULESET_TRANSLATED);
	buf_fmt(out,
		"	chain forward {\n"
		"		type filter hook forward priority filter - 10; policy accept;\n"
		"		iifname \"" RULESET_ERUP "\" meta mark set meta mark & 0x0000ffff\n"
		"		oifname != \"" RULESET_ERUP "\" accept\n"
		"		iifname \"" RULESET_ERUP "\" drop\n"
		"		ct state != { established, related } drop\n"
		"	}\n"
		"	chain postrouting {\n"
		"		type nat hook postrouting priority srcnat; policy accept;\n"
		"		ip saddr %s/%u oifname != \"" RULESET_ERUP "\" masquerade fully-random\n"
		"	}\n"
		"}\n",
		text, network->bits);
}
