#!/usr/bin/python3
"""Ethernet frames made by hand, and the table of those that a sandbox must not get out.

    frames.py LINK <plan.json     sends every hostile frame from here; plan.json as Place.to_json() writes it

Runs inside a sandbox as well as in a test; needs only the standard library."""

import dataclasses
import ipaddress
import json
import socket
import struct
import sys

IPV4, ARP, RARP, IPV6, VLAN, QINQ = 0x0800, 0x0806, 0x8035, 0x86DD, 0x8100, 0x88A8
ICMP, IGMP, IPIP, TCP, UDP, SIX_IN_4, GRE, ESP, SCTP = 1, 2, 4, 6, 17, 41, 47, 50, 132
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
BROADCAST = b"\xff" * 6
PAYLOAD = b"a frame of the lab"


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ether(destination, source, kind, payload):
    return destination + source + struct.pack("!H", kind) + payload


def ipv4(source, destination, protocol, payload, options=b"", fragment=0, ttl=64, ident=7, wrong_by=0):
    """A packet; fragment is the field of flags and offset, wrong_by is added to the checksum."""
    words = 5 + len(options) // 4
    head = struct.pack("!BBHHHBBH", 0x40 | words, 0, words * 4 + len(payload), ident, fragment, ttl, protocol, 0)
    head += socket.inet_aton(source) + socket.inet_aton(destination) + options
    return head[:10] + struct.pack("!H", (checksum(head) + wrong_by) & 0xFFFF) + head[12:] + payload


def pseudo(source, destination, protocol, segment):
    return struct.pack("!4s4sBBH", socket.inet_aton(source), socket.inet_aton(destination), 0, protocol, len(segment))


def udp(source, destination, port, data=PAYLOAD, source_port=40000, **fields):
    segment = struct.pack("!HHHH", source_port, port, 8 + len(data), 0) + data
    total = checksum(pseudo(source, destination, UDP, segment) + segment) or 0xFFFF
    return ipv4(source, destination, UDP, segment[:6] + struct.pack("!H", total) + segment[8:], **fields)


def tcp(source, destination, port, flags, source_port=40000, sequence=1, acknowledged=0, data=b"", **fields):
    segment = struct.pack("!HHIIBBHHH", source_port, port, sequence, acknowledged, 0x50, flags, 1024, 0, 0) + data
    total = checksum(pseudo(source, destination, TCP, segment) + segment)
    return ipv4(source, destination, TCP, segment[:16] + struct.pack("!H", total) + segment[18:], **fields)


def icmp(source, destination, kind, code=0, rest=b"\0\1\0\1", data=PAYLOAD, **fields):
    message = struct.pack("!BBH", kind, code, 0) + rest + data
    return ipv4(source, destination, ICMP, message[:2] + struct.pack("!H", checksum(message)) + message[4:], **fields)


def arp(operation, sender_mac, sender, target_mac, target):
    head = struct.pack("!HHBBH", 1, IPV4, 6, 4, operation)
    return head + sender_mac + socket.inet_aton(sender) + target_mac + socket.inet_aton(target)


def ipv6(source, destination, following, payload, hops=255):
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    return struct.pack("!IHBB", 0x60000000, len(payload), following, hops) + addresses + payload


def icmp6(source, destination, kind, body):
    message = struct.pack("!BBH", kind, 0, 0) + body
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    total = checksum(addresses + struct.pack("!II", len(message), 58) + message)
    return ipv6(source, destination, 58, message[:2] + struct.pack("!H", total) + message[4:])


def udp6(source, destination, port):
    segment = struct.pack("!HHHH", 40000, port, 8 + len(PAYLOAD), 0) + PAYLOAD
    addresses = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination)
    total = checksum(addresses + struct.pack("!II", len(segment), UDP) + segment) or 0xFFFF
    return ipv6(source, destination, UDP, segment[:6] + struct.pack("!H", total) + segment[8:])


@dataclasses.dataclass
class Place:
    """Where a sandbox stands: its own addresses and what is around it."""

    link: str
    mac: str
    address: str
    gateway_mac: str
    gateway: str
    other: str  # another sandbox
    other_mac: str
    other_gateway: str
    server: str  # public, may be reached
    lan: str
    metadata: str
    host: str  # the host's address on the LAN
    host_public: str
    host_broadcast: str  # of its public subnet

    def to_json(self):
        return json.dumps(dataclasses.asdict(self))

    def frame(self, packet, kind=IPV4):
        return ether(mac(self.gateway_mac), mac(self.mac), kind, packet)


@dataclasses.dataclass
class Hostile:
    """Frames that must go nowhere, and the kinds under which the refusal may be counted. Frames that the kernel itself
    throws away before any rule sees them are not counted."""

    name: str
    frames: list
    kinds: tuple
    least: int  # of the counts
    most: int


def router_advertisement():
    prefix = socket.inet_pton(socket.AF_INET6, "2001:db8:bad::")
    option = struct.pack("!BBBBIII16s", 3, 4, 64, 0xC0, 3600, 3600, 0, prefix)
    return icmp6("fe80::bad", "ff02::1", 134, struct.pack("!BBHII", 64, 0, 1800, 0, 0) + option)


def hostile_link(p):
    """What is wrong below IP, or is no IPv4."""
    good = udp(p.address, p.server, 9999)
    spoofed = udp(p.other, p.server, 9999)
    tag = struct.pack("!HH", 0, VLAN)
    last = struct.pack("!HH", 0, IPV4)
    snap = b"\xaa\xaa\x03\0\0\0" + struct.pack("!H", IPV4) + good
    ours, gateway = mac(p.mac), mac(p.gateway_mac)
    v6 = b"\x33\x33\0\0\0\1"
    yield "VLAN 0", [p.frame(last + good, VLAN)], "link"
    yield "VLAN 0, spoofed", [p.frame(last + spoofed, VLAN)], "link"
    yield "VLAN 0 twice", [p.frame(tag + last + good, VLAN)], "link"
    yield "VLAN 0 three times", [p.frame(tag + tag + last + good, VLAN)], "link"
    yield "VLAN 5", [p.frame(struct.pack("!HH", 5, IPV4) + good, VLAN)], "link"
    yield "802.1ad", [p.frame(last + good, QINQ)], "link"
    yield "802.1ad around VLAN 0", [p.frame(tag + last + good, QINQ)], "link"
    yield "802.3 with SNAP", [ether(gateway, ours, len(snap), snap)], "link"
    yield "another source MAC", [ether(gateway, mac(p.other_mac), IPV4, good)], "link spoof"
    yield "the gateway's MAC as source", [ether(gateway, gateway, IPV4, good)], "link spoof"
    yield "router advertisement", [ether(v6, ours, IPV6, router_advertisement())], "link"
    yield "IPv6 to a public address", [p.frame(udp6("2001:db8:1::2", "2001:db8:2::1", 9999), IPV6)], "link"
    yield "IPv6 to the host", [p.frame(udp6("fe80::2", "2001:db8:1::2", 2222), IPV6)], "link"
    yield "neighbour solicitation", [ether(v6, ours, IPV6, icmp6("fe80::2", "ff02::1", 135, bytes(20)))], "link"
    yield "IPv4 in a frame that says IPv6", [p.frame(good, IPV6)], "link"
    yield "RARP", [ether(BROADCAST, ours, RARP, arp(3, ours, p.address, ours, p.address))], "link"
    yield "unknown ether type", [p.frame(good, 0x88B5)], "link"
    yield "PPPoE", [ether(BROADCAST, ours, 0x8863, bytes(20))], "link"


def hostile_arp(p):
    ours, other, none = mac(p.mac), mac(p.other_mac), bytes(6)
    for name, claim in (
        ("the other sandbox is here", arp(2, ours, p.other, none, p.gateway)),
        ("the gateway is here", arp(2, ours, p.gateway, none, p.gateway)),
        ("the host is here", arp(1, ours, p.host, none, p.host)),
        ("this address has another MAC", arp(2, other, p.address, none, p.gateway)),
        ("question from 0.0.0.0", arp(1, ours, "0.0.0.0", none, p.gateway)),
    ):
        yield f"ARP: {name}", [ether(BROADCAST, ours, ARP, claim)], "spoof"


def hostile_source(p):
    for name, source in (
        ("the other sandbox", p.other),
        ("a public address", "8.8.4.4"),
        ("the server itself", p.server),
        ("the gateway", p.gateway),
        ("the host", p.host),
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("broadcast", "255.255.255.255"),
        ("multicast", "224.0.0.1"),
    ):
        yield f"source {name}", [p.frame(udp(source, p.server, 9999))], "spoof"
    yield "source the other sandbox, to it", [p.frame(udp(p.other, p.other, 9999))], "spoof"
    yield "source the other sandbox, a SYN", [p.frame(tcp(p.other, p.server, 80, SYN))], "spoof"
    yield "source the other sandbox, an echo", [p.frame(icmp(p.other, p.server, 8))], "spoof"
    yield "source the other sandbox, for its resolver", [p.frame(udp(p.other, p.other_gateway, 53))], "spoof"
    yield "DHCP", [ether(BROADCAST, mac(p.mac), IPV4, udp("0.0.0.0", "255.255.255.255", 67))], "spoof"


def hostile_destination(p):
    multicast, ours = b"\x01\x00\x5e\0\0\xfb", mac(p.mac)
    for name, address, kinds in (
        ("LAN", p.lan, "private"),
        ("metadata", p.metadata, "private"),
        ("the other sandbox", p.other, "private host"),
        ("itself", p.address, "private host"),
        ("0.0.0.0", "0.0.0.0", "private host cast"),
        ("0.0.0.1", "0.0.0.1", "private cast"),
        ("127.0.0.1", "127.0.0.1", "private host cast"),
        ("240.0.0.1", "240.0.0.1", "private cast"),
        ("multicast", "224.0.0.251", "private cast"),
        ("broadcast", "255.255.255.255", "private cast host"),
        ("the LAN's broadcast", "192.168.50.255", "private cast host"),
        ("the host's public broadcast", p.host_broadcast, "cast host"),
        ("its own link's broadcast", ".".join(p.gateway.split(".")[:3]) + "." + str(int(p.gateway.split(".")[3]) + 2),
         "private cast host"),
        ("the host on the LAN", p.host, "host private"),
        ("the host's public address", p.host_public, "host"),
        ("the other gateway", p.other_gateway, "host private"),
        ("its own gateway", p.gateway, "host private"),
    ):  # fmt: skip
        yield f"to {name}, UDP", [p.frame(udp(p.address, address, 2222))], kinds
        yield f"to {name}, SYN", [p.frame(tcp(p.address, address, 2222, SYN))], kinds
        yield f"to {name}, ACK", [p.frame(tcp(p.address, address, 2222, ACK, sequence=9, acknowledged=9))], kinds
        yield f"to {name}, echo", [p.frame(icmp(p.address, address, 8))], kinds
    yield "to the other's resolver", [p.frame(udp(p.address, p.other_gateway, 53))], "host private"
    yield "to the host's resolver", [p.frame(udp(p.address, p.host, 53))], "host private"
    mdns = ether(multicast, ours, IPV4, udp(p.address, "224.0.0.251", 5353))
    yield "multicast in a multicast frame", [mdns], "private cast link"
    yield "LAN in a broadcast frame", [ether(BROADCAST, ours, IPV4, udp(p.address, p.lan, 9999))], "private cast link"
    yield "SYN with FIN to the LAN", [p.frame(tcp(p.address, p.lan, 80, SYN | FIN))], "private"
    yield "TTL 1 to the LAN", [p.frame(udp(p.address, p.lan, 9999, ttl=1))], "private"


def hostile_kind(p):
    """Protocols, options, and what belongs to no flow."""
    for number, name in ((GRE, "GRE"), (IPIP, "IPIP"), (SIX_IN_4, "6in4"), (ESP, "ESP"), (SCTP, "SCTP"), (IGMP, "IGMP"),
                         (136, "UDP-Lite"), (0, "hop by hop"), (255, "raw")):  # fmt: skip
        yield f"protocol {name}", [p.frame(ipv4(p.address, p.server, number, bytes(24)))], "protocol"
    inner = udp(p.address, p.lan, 9999)
    yield "IPIP with the LAN inside", [p.frame(ipv4(p.address, p.server, IPIP, inner))], "protocol"
    via = socket.inet_aton(p.lan)
    for name, options in (
        ("loose source route by the LAN", b"\x83\x07\x04" + via + b"\1"),
        ("strict source route by the LAN", b"\x89\x07\x04" + via + b"\1"),
        ("record route", b"\x07\x07\x04\0\0\0\0\1"),
    ):
        yield name, [p.frame(udp(p.address, p.server, 9999, options=options))], "link"
    yield "ACK of no flow", [p.frame(tcp(p.address, p.server, 80, ACK, 40001, 9, 9, b"x"))], "invalid"
    yield "SYN and ACK of no flow", [p.frame(tcp(p.address, p.server, 80, SYN | ACK, 40002, 9, 9))], "invalid"
    yield "RST of no flow", [p.frame(tcp(p.address, p.server, 80, RST, 40003, 9, 9))], "invalid"
    yield "FIN of no flow", [p.frame(tcp(p.address, p.server, 80, FIN | ACK, 40004, 9, 9))], "invalid"
    yield "no flags", [p.frame(tcp(p.address, p.server, 80, 0, 40005))], "invalid"
    yield "echo reply to nobody", [p.frame(icmp(p.address, p.server, 0))], "invalid"
    flow = udp(p.server, p.other, 40000, source_port=9999)[:28]
    unreachable = icmp(p.address, p.server, 3, 3, bytes(4), flow)
    yield "port unreachable for another's flow", [p.frame(unreachable)], "invalid"
    redirect = icmp(p.address, p.server, 5, 1, socket.inet_aton(p.address), flow)
    yield "redirect", [p.frame(redirect)], "invalid"


def uncounted(p):
    """What the kernel may drop by itself, or count once for two frames."""
    whole = udp(p.address, p.lan, 9999, b"A" * 24)[20:]
    first = ipv4(p.address, p.lan, UDP, whole[:8], fragment=0x2000, ident=99)
    second = ipv4(p.address, p.lan, UDP, whole[8:], fragment=1, ident=99)
    yield "fragments to the LAN", [p.frame(first), p.frame(second)], "private"
    lone = ipv4(p.address, p.server, UDP, whole[8:], fragment=1, ident=100)
    yield "a fragment without its first", [p.frame(lone)], "private invalid"
    tiny = ipv4(p.address, p.server, TCP, tcp(p.address, p.server, 80, SYN)[20:28], fragment=0x2000, ident=101)
    yield "a tiny first fragment", [p.frame(tiny)], "private invalid"
    yield "a wrong IP checksum", [p.frame(udp(p.address, p.server, 9999, wrong_by=1))], "invalid link"
    yield "a header cut off", [p.frame(udp(p.address, p.server, 9999)[:16])], "invalid link spoof"
    yield "IP version 5", [p.frame(b"\x55" + udp(p.address, p.server, 9999)[1:])], "invalid link spoof protocol"
    yield "to another's MAC", [ether(mac(p.other_mac), mac(p.mac), IPV4, udp(p.address, p.server, 9999))], "link"
    yield "TCP cut off", [p.frame(ipv4(p.address, p.server, TCP, b"\x9c\x40\0\x50"))], "invalid"


def hostile(p):
    """Every kind, as Hostile."""
    found = []
    for table in (hostile_link, hostile_arp, hostile_source, hostile_destination, hostile_kind):
        found += [Hostile(name, sent, tuple(kinds.split()), len(sent), len(sent)) for name, sent, kinds in table(p)]
    found += [Hostile(name, sent, tuple(kinds.split()), 0, len(sent)) for name, sent, kinds in uncounted(p)]
    return found


DENIED = """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4""".split()


def denied_addresses():
    """First, middle and last address of every range that no sandbox may reach."""
    for prefix in map(ipaddress.ip_network, DENIED):
        yield from (str(prefix[i]) for i in (0, 1, prefix.num_addresses // 2, -2, -1))


def neighbours_of_denied():
    """Addresses just outside the ranges, which may be reached."""
    ranges = [ipaddress.ip_network(p) for p in DENIED]
    for prefix in ranges:
        for number in (int(prefix[0]) - 1, int(prefix[-1]) + 1):
            if 0 <= number < 1 << 32 and not any(ipaddress.ip_address(number) in r for r in ranges):
                yield str(ipaddress.ip_address(number))


def main():
    place = Place(**json.load(sys.stdin))
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    link.bind((sys.argv[1], 0))
    for kind in hostile(place):
        for frame in kind.frames:
            link.send(frame)
    print(len(hostile(place)))


if __name__ == "__main__":
    main()
