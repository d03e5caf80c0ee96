"""Somebody else changes the host's firewall: what is denied stays denied, and what is allowed comes back."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time

import pytest

import frames
from conftest import wait_for
from netlab import SERVER, Watch, lab  # noqa: F401

pytestmark = pytest.mark.only("system", why="the gateway and the host's firewall are the same for each isolation")

BACK_S = 10
LOOP_S = 4


@pytest.fixture(scope="module")
def pair(lab):  # noqa: F811
    return lab.guest(), lab.guest()


@pytest.fixture
def watch(lab, pair):  # noqa: F811
    one, two = pair
    assert one.echo(BACK_S) and two.echo(BACK_S)
    return Watch(lab, one, two)


def try_everything(watch, pair):
    """Sends every hostile frame; what is allowed may or may not work meanwhile."""
    one, two = pair
    leaks = {}
    for kind in frames.hostile(one.place(two)):
        one.send_frames(kind.frames)
        seen = watch.look(is_open=False)
        if seen:
            leaks[kind.name] = seen
            for listener in (watch.lab.closed, watch.lab.lan, watch.lab.metadata):
                listener.came.clear()
    assert leaks == {}


def assert_back(pair):
    for guest in pair:
        assert guest.echo(BACK_S), "what is allowed did not come back"


def connects(guest, limit_s):
    """Whether a new flow gets through within the time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with guest.net.socket(socket.SOCK_DGRAM) as one:
            one.connect((SERVER, 7))
            one.settimeout(0.2)
            with contextlib.suppress(OSError):
                one.send(b"echo new")
                if one.recv(10) == b"echo new":
                    return True
    return False


class Flusher:
    """Flushes H's ruleset again and again."""

    def __init__(self, lab):  # noqa: F811
        self.lab, self.stop, self.n = lab, threading.Event(), 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop.wait(0.02):
            self.lab.host.call("nft", "flush", "ruleset")
            self.n += 1

    def end(self):
        self.stop.set()
        self.thread.join()


def test_flush_once(lab, watch, pair):  # noqa: F811
    lab.host.call("nft", "flush", "ruleset")
    try_everything(watch, pair)
    assert_back(pair)
    assert connects(pair[0], BACK_S)
    assert watch.look() == []
    try_everything(watch, pair)
    assert "ermite_runner" in lab.host.call("nft", "list", "tables")


def test_table_is_mended_within_a_second_and_it_is_told(lab, pair):  # noqa: F811
    lab.host.call("nft", "delete", "table", "inet", "ermite_runner")
    began = time.monotonic()
    wait_for(lambda: "ermite_runner" in lab.host.call("nft", "list", "tables"), "the table", 5)
    assert time.monotonic() - began < 1.5
    assert connects(pair[0], BACK_S)
    said = b"".join(bytes(guest.running.stderr.bytes) for guest in pair)
    assert b"ermite_runner" in said or b"firewall" in said, said


def test_flush_in_a_loop(lab, watch, pair):  # noqa: F811
    flusher = Flusher(lab)
    try:
        deadline = time.monotonic() + LOOP_S
        while time.monotonic() < deadline:
            try_everything(watch, pair)
    finally:
        flusher.end()
    assert flusher.n > 20
    assert_back(pair)
    assert connects(pair[0], BACK_S)
    try_everything(watch, pair)


def test_flows_that_begin_while_rules_are_flushed(lab, pair):  # noqa: F811
    """They wait; none leaves without having been masqueraded, and none is stuck afterwards."""
    sniffer = lab.sniff(lab.world, "eth0")
    sniffer.frames()
    flusher = Flusher(lab)
    flows = []
    try:
        for number in range(100):
            flow = pair[0].net.socket(socket.SOCK_DGRAM)
            flow.connect((SERVER, 7))
            flow.send(b"echo %d" % number)
            flow.settimeout(0.3)
            flows.append(flow)
            time.sleep(0.02)
    finally:
        flusher.end()
    assert connects(pair[0], BACK_S)
    assert sniffer.frames() == []
    deadline = time.monotonic() + BACK_S
    for flow in flows:
        assert answers(flow, deadline)
        flow.close()


def answers(flow, deadline):
    """Whether a flow that goes on trying gets an answer."""
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            flow.send(b"echo again")
            while flow.recv(100) != b"echo again":
                pass
            return True
    return False


def test_sandbox_that_starts_while_rules_are_flushed(lab, pair):  # noqa: F811
    flusher = Flusher(lab)
    try:
        guest = lab.guest()
        try_everything(Watch(lab, guest, pair[0]), (guest, pair[0])) if guest.echo(1) else None
    finally:
        flusher.end()
    assert guest.echo(BACK_S)
    guest.end()
    assert_back(pair)


def test_rules_of_others_are_left_alone(lab, pair):  # noqa: F811
    rules = "table inet of_others { chain c { type filter hook forward priority 0; policy accept; counter; }; }"
    lab.host.call("nft", "-f", "-", input=rules)
    guest = lab.guest()
    guest.end()
    tables = lab.host.call("nft", "list", "tables").split("\n")
    assert {"table inet of_others", "table inet ermite_runner"} <= set(tables)
    lab.host.call("nft", "delete", "table", "inet", "of_others")
    assert_back(pair)


def said_since(guest, position):
    return bytes(guest.running.stderr.bytes)[position:].decode()


def assert_back_or_told(lab, pair, position, allow):  # noqa: F811
    """Traffic returns by itself, or the run says what stands in the way and how to allow it, and that helps."""
    one = pair[0]
    if connects(one, 3):
        return
    wait_for(lambda: "FORWARD" in said_since(one, position), "a line that says what blocks", BACK_S)
    said = said_since(one, position)
    assert "iptables" in said or "nft " in said, said
    lab.call("iptables", "-I", *allow, "1", "-i", "erup", "-j", "ACCEPT")
    lab.call("iptables", "-I", *allow, "1", "-o", "erup", "-j", "ACCEPT")
    assert connects(one, BACK_S), said


def test_policy_of_forward(lab, watch, pair):  # noqa: F811
    position = len(pair[0].running.stderr.bytes)
    lab.call("iptables", "-P", "FORWARD", "DROP")
    try:
        try_everything(watch, pair)
        assert_back_or_told(lab, pair, position, ["FORWARD"])
        try_everything(watch, pair)
        # Who starts now is told at the start, or is not stopped.
        guest = lab.guest()
        assert connects(guest, 3) or "FORWARD" in said_since(guest, 0)
        guest.end()
    finally:
        lab.call("iptables", "-P", "FORWARD", "ACCEPT")
        lab.call("iptables", "-F", "FORWARD")
    assert connects(pair[0], BACK_S)
    assert_back(pair)


class Dockerd:
    """A Docker daemon of H's own."""

    def __init__(self, lab):  # noqa: F811
        self.lab = lab
        # H's own /run, a tmpfs that goes with the lab.
        place = "/run/docker-of-the-lab"
        self.command = [
            *lab.enter,
            *("dockerd", "--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "--storage-driver", "vfs"),
            *("--host", f"unix://{place}.sock", "--pidfile", f"{place}.pid", "--bip", "172.30.0.1/24"),
        ]
        self.log = (lab.directory / "dockerd.log").open("ab")
        self.socket = lab.root / f"{place}.sock".lstrip("/")
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        wait_for(lambda: self.is_up() or self.process.poll() is not None, "dockerd", 60)
        assert self.process.poll() is None, (self.lab.directory / "dockerd.log").read_text()[-3000:]

    def is_up(self):
        words = ("docker", "-H", "unix:///run/docker-of-the-lab.sock", "info")
        return self.socket.exists() and subprocess.run([*self.lab.enter, *words], capture_output=True).returncode == 0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def test_docker_starts_and_restarts(lab, watch, pair):  # noqa: F811
    position = len(pair[0].running.stderr.bytes)
    stop = threading.Event()
    leaks = []

    def keep_trying():
        while not stop.is_set():
            try:
                try_everything(watch, pair)
            except AssertionError as error:
                leaks.append(error)
                return

    trying = threading.Thread(target=keep_trying)
    trying.start()
    docker = Dockerd(lab)
    try:
        assert "docker0" in lab.host.links()
        assert_back_or_told(lab, pair, position, ["DOCKER-USER"])
        docker.end()
        docker.start()
        assert_back_or_told(lab, pair, position, ["DOCKER-USER"])
        lab.host.call("nft", "flush", "ruleset")
        assert connects(pair[0], BACK_S)
    finally:
        docker.end()
        stop.set()
        trying.join()
        lab.call("iptables", "-P", "FORWARD", "ACCEPT")
        lab.call("iptables", "-F", "FORWARD")
    assert leaks == []
    assert_back(pair)
    try_everything(watch, pair)


def test_forwarding_is_turned_off(lab, watch, pair):  # noqa: F811
    """Nothing opens; and who starts next turns it on again."""
    lab.host.call("sysctl", "-qw", "net.ipv4.ip_forward=0")
    try_everything(watch, pair)
    guest = lab.guest()
    assert guest.echo(BACK_S)
    assert lab.host.call("cat", "/proc/sys/net/ipv4/ip_forward") == "1\n"
    guest.end()
    assert_back(pair)


def test_addresses_of_the_host_that_come_later(lab, watch, pair):  # noqa: F811
    """A public address that the host gets while sandboxes run is closed, too, also after a flush."""
    one, _ = pair
    lab.host.call("ip", "address", "add", "5.6.9.9/32", "dev", "lo")
    time.sleep(1)
    try:
        for _ in range(2):
            assert not one.can_connect("5.6.9.9", 2222)
            one.send_frames([one.place(one).frame(frames.udp(one.address, "5.6.9.9", 2222))])
            assert watch.look(is_open=False) == []
            lab.host.call("nft", "flush", "ruleset")
        assert lab.closed.came == []
    finally:
        lab.host.call("ip", "address", "delete", "5.6.9.9/32", "dev", "lo")
    assert_back(pair)


def test_sandboxes_lived_through_it(pair):
    for guest in pair:
        assert guest.output("echo alive") == "alive\n"
        assert os.path.exists(f"/proc/{guest.running.pid}")
