"""What a sandbox must not do, tried with real frames: nothing of it arrives anywhere, and it is counted."""

import collections
import concurrent.futures
import ipaddress
import pathlib
import socket
import struct
import time

import pytest

import frames
from conftest import THREAT_TESTS, wait_for
from netlab import (  # noqa: F401
    CLOSED, FORGE, HOST_PUBLIC, LAN_BOX, LAN_HOST, NOWHERE, SERVER, Watch, lab,
)  # fmt: skip
from world import Listener

FLOOD = 200_000
FLOWS = 4096  # ERMITE_RUNNER_JOB_FLOWS
FORGOTTEN = 3  # the kernel forgets to count a flow whose packet it holds for some milliseconds


@pytest.fixture(scope="module")
def pair(lab):  # noqa: F811
    return lab.guest(), lab.guest()


def refused_of(outcome):
    return collections.Counter({k: n for k, n in outcome.result["network"]["refused"].items() if n})


def assert_counted(refused, kinds):
    """Every count is one of a kind that was sent, and no frame is missing."""
    least, most = sum(k.least for k in kinds), sum(k.most for k in kinds)
    assert least <= sum(refused.values()) <= most, refused
    # Kinds that can only be counted in one way.
    exactly, possibly = collections.Counter(), collections.Counter()
    for kind in kinds:
        if len(kind.kinds) == 1:
            exactly[kind.kinds[0]] += kind.least
        for name in kind.kinds:
            possibly[name] += kind.most
    for name in exactly.keys() | refused.keys():
        assert exactly[name] <= refused[name] <= possibly[name], (name, refused)


def test_every_hostile_frame_goes_nowhere_and_is_counted(lab):  # noqa: F811
    other, guest = lab.guest(), lab.guest()
    watch = Watch(lab, guest, other)
    kinds = frames.hostile(guest.place(other))
    assert len(kinds) > 100
    leaks = {}
    for kind in kinds:
        guest.send_frames(kind.frames)
        seen = watch.look()
        if seen:
            leaks[kind.name] = seen
            lab.closed.came.clear(), lab.lan.came.clear(), lab.metadata.came.clear()
    assert leaks == {}
    watch.assert_tables_unchanged()
    assert refused_of(other.end()) == {}
    assert_counted(refused_of(guest.end()), kinds)


def test_the_same_from_inside(lab, pair):  # noqa: F811
    """Root inside has raw sockets of its own."""
    one, two = pair
    watch = Watch(lab, one, two)
    plan = one.place(two).to_json()
    sent = one.output(f"echo '{plan}' | python3 -B frames.py eth0")
    assert int(sent) > 100
    assert watch.look() == []
    watch.assert_tables_unchanged()


# As threats.md lists them, for the tool that it describes.
RAW = """udp {ip} 192.168.50.5 9999;udp {ip} 169.254.169.254 80;udp {other} 1.2.3.4 9999;vlan0udp {other} 1.2.3.4 9999
vlan0udp {ip} 192.168.50.5 9999;vlan0udp {ip} 1.2.3.4 9999 2;vidudp {ip} 1.2.3.4 9999 5;snapudp {ip} 1.2.3.4 9999
frag {ip} 192.168.50.5 9999;lsrr {ip} 1.2.3.4 192.168.50.5 9999;icmp6ra;arp {other} {gw};udp {ip} {othergw} 53
udp {ip} 5.6.7.8 22;udp {ip} 255.255.255.255 9999;udp {ip} 224.0.0.251 5353;udp {ip} 240.0.0.1 9;udp {ip} 0.0.0.1 9
udp {ip} 127.0.0.1 9;proto 47 {ip} 1.2.3.4;proto 4 {ip} 1.2.3.4;proto 41 {ip} 1.2.3.4;proto 50 {ip} 1.2.3.4
proto 132 {ip} 1.2.3.4;proto 2 {ip} 1.2.3.4""".replace("\n", ";").split(";")

if (THREAT_TESTS / "rawsend.py").exists():

    def test_the_senders_of_the_threat_list(lab, pair):  # noqa: F811
        one, two = pair
        watch = Watch(lab, one, two)
        command = ["env", f"GW={one.gateway}", "/usr/bin/python3", "-B", THREAT_TESTS / "rawsend.py", "eth0"]
        leaks = {}
        for line in RAW:
            words = line.format(ip=one.address, other=two.address, gw=one.gateway, othergw=two.gateway).split()
            one.net.call(*command, *words)
            seen = watch.look()
            if seen:
                leaks[line] = seen
        assert leaks == {}
        watch.assert_tables_unchanged()


def destinations(sniffer):
    """The addresses to which packets were seen."""
    found = set()
    for frame in sniffer.frames():
        if frame[12:14] == b"\x08\0" and frame[6:12] != b"":
            found.add(socket.inet_ntoa(frame[30:34]))
    return found


def probe(guest, address):
    return [
        guest.place(guest).frame(frames.udp(guest.address, address, 9999)),
        guest.place(guest).frame(frames.tcp(guest.address, address, 80, frames.SYN)),
        guest.place(guest).frame(frames.icmp(guest.address, address, 8)),
    ]


def sweep(lab, guest, addresses):  # noqa: F811
    """Which of the addresses were seen on the uplink."""
    sniffer = lab.sniff(lab.world, "eth0")
    sniffer.frames()
    for address in addresses:
        guest.send_frames(probe(guest, address))
    assert guest.echo()
    time.sleep(0.05)
    return destinations(sniffer) & set(addresses)


def test_every_denied_range(lab, pair):  # noqa: F811
    one, two = pair
    watch = Watch(lab, one, two)
    denied = list(frames.denied_addresses())
    assert sweep(lab, one, denied) == set()
    assert watch.look() == []
    reachable = set(frames.neighbours_of_denied())
    assert len(reachable) > 20
    assert sweep(lab, one, reachable) == reachable


def test_every_eighth_of_the_internet(lab, pair):  # noqa: F811
    """First, middle and last address of each /8: what is seen on the uplink is what is in no denied range."""
    one, _ = pair
    ranges = [ipaddress.ip_network(p) for p in frames.DENIED]
    ours = {LAN_HOST, HOST_PUBLIC}
    addresses = {str(ipaddress.ip_address(a << 24 | b)) for a in range(256) for b in (0, 1 << 23, (1 << 24) - 1)} - ours
    expected = {a for a in addresses if not any(ipaddress.ip_address(a) in r for r in ranges)}
    assert sweep(lab, one, addresses) == expected


def knock(net, address, port=CLOSED):
    """Everything that could reach a listener: a datagram, a connection."""
    with net.socket(socket.SOCK_DGRAM) as datagram:
        try:
            datagram.sendto(b"knock", (address, port))
        except OSError:
            pass
    try:
        net.connect(address, port, 0.3).close()
    except OSError:
        return False
    return True


def test_sandboxes_do_not_reach_each_other(lab, pair):  # noqa: F811
    one, two = pair
    for from_here, to_there in ((one, two), (two, one)):
        came = Listener(to_there.net, "0.0.0.0", CLOSED)
        sniffer = lab.sniff(to_there.net, "eth0")
        sniffer.frames()
        for address in (to_there.address, to_there.gateway):
            assert not knock(from_here.net, address)
            assert not knock(from_here.net, address, 53)
            from_here.send_frames(probe(from_here, address))
        assert from_here.echo()
        assert sniffer.frames() == []
        assert came.came == []
        came.close()


def test_nobody_on_the_lan_gets_in(lab, pair):  # noqa: F811
    one, _ = pair
    came = Listener(one.net, "0.0.0.0", CLOSED)
    sniffer = lab.sniff(one.net, "eth0")
    sniffer.frames()
    for address in (one.address, one.gateway):
        assert not knock(lab.world, address)
        assert not knock(lab.world, address, 53)
    uplink = lab.world.packets("eth0")
    router, host = frames.mac(lab.router_mac), frames.mac(lab.uplink_mac)
    for source in (LAN_BOX, SERVER, "10.200.0.6", LAN_HOST):
        for packet in (
            frames.udp(source, one.address, CLOSED),
            frames.tcp(source, one.address, CLOSED, frames.SYN),
            frames.tcp(source, one.address, CLOSED, frames.SYN | frames.ACK),
            frames.tcp(source, one.address, CLOSED, frames.ACK, data=b"x"),
            frames.tcp(source, one.address, CLOSED, frames.RST),
            frames.icmp(source, one.address, 8),
            frames.icmp(source, one.address, 0),
            frames.ipv4(source, one.address, frames.GRE, bytes(20)),
        ):
            uplink.send(frames.ether(host, router, frames.IPV4, packet))
    assert one.echo()
    assert sniffer.frames() == []
    assert came.came == []
    came.close()
    uplink.close()


def test_answers_of_somebody_else_do_not_get_in(lab, pair):  # noqa: F811
    """A flow that the sandbox has opened is open to its other end alone."""
    one, _ = pair
    sniffer = lab.sniff(lab.world, "eth0")
    sniffer.frames()
    inside = lab.sniff(one.net, "eth0")
    with one.net.socket(socket.SOCK_DGRAM) as flow:
        flow.connect((NOWHERE, 9))
        flow.send(b"a flow of its own")

        def outward():
            return [f for f in sniffer.frames() if b"a flow of its own" in f and f[23] == frames.UDP]

        (out,) = wait_for(outward, "the flow on the uplink")
        (port,) = struct.unpack("!H", out[34:36])
        inside.frames()
        uplink = lab.world.packets("eth0")
        router, host = frames.mac(lab.router_mac), frames.mac(lab.uplink_mac)
        for source, source_port in ((FORGE, 9), (NOWHERE, 10), (LAN_BOX, 9)):
            packet = frames.udp(source, LAN_HOST, port, b"forged", source_port=source_port)
            uplink.send(frames.ether(host, router, frames.IPV4, packet))
        assert one.echo()
        assert not [f for f in inside.frames() if b"forged" in f]
        packet = frames.udp(NOWHERE, LAN_HOST, port, b"genuine", source_port=9)
        uplink.send(frames.ether(host, router, frames.IPV4, packet))
        flow.settimeout(5)
        assert flow.recv(100) == b"genuine"
        uplink.close()


def flows_in(net):
    return int(net.call("cat", "/proc/sys/net/netfilter/nf_conntrack_count"))


def syns(guest, count):
    """Frames with SYNs of as many flows; the checksum stays right as one number replaces another."""
    place = guest.place(guest)
    frame = bytearray(place.frame(frames.tcp(guest.address, NOWHERE, 0, frames.SYN, source_port=0, sequence=0xFFFF)))
    for number in range(count):
        port = 1024 + number % 60000
        struct.pack_into("!HH", frame, 34, port, 1000 + number // 60000)
        struct.pack_into("!I", frame, 38, (0xFFFF - port - (1000 + number // 60000)) % 0xFFFF)
        yield frame


def test_a_flood_of_flows_stops_at_the_limit(lab):  # noqa: F811
    """Meanwhile another sandbox opens a thousand connections, and none of them fails."""
    quiet, flooder = lab.guest(), lab.guest()
    lab.serve(Listener(lab.world, SERVER, 8000))

    def connect_a_thousand():
        for _ in range(1000):
            quiet.net.connect(SERVER, 8000, 10).close()
        return 1000

    def flood():
        sent = 0
        for frame in syns(flooder, FLOOD):
            try:
                flooder.packets.send(frame)
            except BlockingIOError:
                time.sleep(0.001)
                flooder.packets.send(frame)
            sent += 1
        return sent

    gateway = lab.gateway()
    before, before_at_host = flows_in(gateway), flows_in(lab.host)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        connecting, flooding = pool.submit(connect_a_thousand), pool.submit(flood)
        most = 0
        while not flooding.done():
            most = max(most, flows_in(gateway))
            time.sleep(0.05)
        assert flooding.result() == FLOOD
        assert connecting.result() == 1000
    assert before + FLOWS - 16 <= most <= before + FLOWS + 1100, most
    assert flows_in(lab.host) <= before_at_host + FLOWS + 1100
    gateway.close()
    assert refused_of(quiet.end()) == {}
    refused = refused_of(flooder.end())
    # Nobody answers, so each flow that there is stays.
    assert FLOOD - FLOWS - FORGOTTEN <= refused["flows"] <= FLOOD - FLOWS + 16, refused


def test_a_smaller_limit_of_flows(lab):  # noqa: F811
    guest = lab.guest("--job-flows", 16)
    lab.serve(Listener(lab.world, SERVER, 8002))
    sockets = []
    for number in range(40):
        one = guest.net.socket(socket.SOCK_DGRAM)
        one.connect((SERVER, 8002))
        one.send(b"%d" % number)
        sockets.append(one)
    time.sleep(0.2)
    answered = 0
    for one in sockets:
        one.settimeout(0)
        try:
            one.recv(10)
            answered += 1
        except OSError:
            pass
        one.close()
    assert 16 <= answered <= 16 + FORGOTTEN
    assert refused_of(guest.end()) == {"flows": 40 - answered}


def test_nothing_arrived_at_the_host(lab):  # noqa: F811
    assert lab.arrived() == []


def test_settings_of_the_gateway(lab, pair):  # noqa: F811
    """A second layer below the rules."""
    del pair
    gateway = lab.gateway()
    one = "/proc/sys/net/ipv4/conf"
    for link in ("all", "erveth0"):
        for name, value in (("accept_redirects", "0"), ("accept_source_route", "0"), ("route_localnet", "0")):
            assert gateway.call("cat", f"{one}/{link}/{name}").strip() == value, (link, name)
    assert gateway.call("cat", "/proc/sys/net/ipv6/conf/erveth0/disable_ipv6") == "1\n"
    assert gateway.call("cat", "/proc/sys/net/ipv6/conf/up/disable_ipv6") == "1\n"
    assert gateway.call("ip", "-6", "address", "show", "scope", "link") == ""
    gateway.close()
    assert pathlib.Path(f"/proc/{lab.h.pid}/net/dev").exists()
