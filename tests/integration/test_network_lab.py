"""The lab itself: in it a host that filters nothing lets hostile frames through, so a test that sees none means it."""

import socket
import time

import pytest

import frames
from conftest import wait_for
from netlab import CLOSED, HOST_PUBLIC, LAN_BOX, METADATA, NAME, SERVER, Lab, StandIn
from world import A


@pytest.fixture(scope="module")
def open_lab():
    """H forwards and masquerades everything of two plain namespaces."""
    lab = Lab()
    lab.host.call("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    rules = 'table ip open { chain c { type nat hook postrouting priority 100; oifname "uplink0" masquerade; }; }'
    lab.host.call("nft", "-f", "-", input=rules)
    lab.one, lab.two = StandIn(lab, 0), StandIn(lab, 1)
    yield lab
    lab.one.end()
    lab.two.end()
    lab.close()


def test_servers_answer(open_lab):
    assert open_lab.one.echo()
    assert open_lab.one.ask(NAME, server="9.9.9.9").addresses == [SERVER]
    assert open_lab.one.ask(NAME, server="8.8.8.8", tcp=True).addresses == [SERVER]
    assert open_lab.one.ask("tc.test", server="9.9.9.9").truncated
    assert open_lab.one.ask("silent.test", server="9.9.9.9", timeout=0.1) is None
    assert {q.kind for q in open_lab.resolver.asked(NAME)} == {A}


def test_what_must_stay_shut_is_open_here(open_lab):
    for address in (LAN_BOX, METADATA, HOST_PUBLIC, open_lab.one.gateway):
        assert open_lab.one.can_connect(address, CLOSED, 2), address
    wait_for(lambda: len(open_lab.closed.came) == 2, "connections to the host")
    assert len(open_lab.lan.came) == len(open_lab.metadata.came) == 1


def test_hostile_frames_get_through_here(open_lab):
    """At least one frame of most kinds is seen somewhere: they are well-formed, and the sniffers work."""
    one, two = open_lab.one, open_lab.two
    sniffers = [
        open_lab.sniff(open_lab.world, "eth0"),
        open_lab.sniff(open_lab.host, "stand1"),
        open_lab.sniff(open_lab.host, "lo"),
    ]
    kinds = frames.hostile(one.place(two))
    seen = set()
    for kind in kinds:
        came = len(open_lab.arrived())
        one.send_frames(kind.frames)
        assert one.echo()
        time.sleep(0.002)
        if [f for s in sniffers for f in s.frames()] or len(open_lab.arrived()) != came:
            seen.add(kind.name)
    assert len(seen) >= 50, sorted(seen)
    assert {"VLAN 0, spoofed", "VLAN 0 twice", "source the other sandbox", "to metadata, UDP"} <= seen
    assert {"to the other sandbox, SYN", "protocol ESP", "IPv6 to a public address", "fragments to the LAN"} <= seen


def test_intruder_gets_in_here(open_lab):
    sniffer = open_lab.sniff(open_lab.one.net, "eth0")
    sniffer.frames()
    with open_lab.world.socket(socket.SOCK_DGRAM) as intruder:
        intruder.sendto(b"knock", (open_lab.one.address, 9))
    wait_for(lambda: any(b"knock" in f for f in sniffer.frames()), "a datagram of the intruder")
