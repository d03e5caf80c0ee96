"""A lab of network namespaces with no way out, and the runner inside it.

    H  the runner's host: uplink0 192.168.50.2/24 and 5.6.7.8/24, a mount namespace with an empty /run and an /etc of
       its own, a program that listens everywhere on port 2222
    W  the world behind uplink0: the LAN (.1 the router, .5 another host), public addresses, the metadata service

A module's tests share the fixture `lab` and make sandboxes in it:

    guest = lab.guest()                        lives until the module's end or guest.end()
    guest.run("curl", "http://1.2.3.4/")       a command inside, as root
    guest.net.socket(socket.SOCK_DGRAM)        a socket of the test in the sandbox's network namespace

Servers and sniffers are threads and sockets of the test on sockets made inside the namespaces (tests/lab/world.py)."""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import frames
import world
from conftest import IMAGE, LAB, LIMIT_S, PROGRAM, Runner, assert_can_run, wait_for


MTU = 1400
LAN_HOST, LAN_ROUTER, LAN_BOX = "192.168.50.2", "192.168.50.1", "192.168.50.5"
HOST_PUBLIC, HOST_BROADCAST, PUBLIC_ROUTER = "5.6.7.8", "5.6.7.255", "5.6.7.1"
SERVER, RESOLVER, RESOLVER_2 = "1.2.3.4", "9.9.9.9", "8.8.8.8"
FORGE = "93.184.216.34"
METADATA = "169.254.169.254"
NOWHERE = "7.7.7.7"  # public, and nobody answers there
PUBLIC = (SERVER, RESOLVER, RESOLVER_2, FORGE, "8.8.4.4", "6.6.6.6")
NETWORK = "10.200.0.0/16"
ECHO = 7
CLOSED = 2222  # of the host: nothing of a sandbox may arrive there
NAME = "www.example.test"  # SERVER, by the lab's resolvers

LEAK_SECTIONS = {"links", "addresses", "routes", "neighbours", "rules", "named networks", "mounts"}

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
LIBC = ctypes.CDLL(None, use_errno=True)


class Net:
    """A network namespace."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextlib.contextmanager
    def entered(self):
        """Inside it, for this thread only."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            assert LIBC.setns(self.fd, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            yield
        finally:
            assert LIBC.setns(own, CLONE_NEWNET) == 0
            os.close(own)

    def socket(self, kind=socket.SOCK_STREAM, family=socket.AF_INET, protocol=0):
        with self.entered():
            return socket.socket(family, kind, protocol)

    def listen(self, address, port, backlog=128):
        listener = self.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(backlog)
        return listener

    def connect(self, address, port, timeout=5):
        connection = self.socket()
        connection.settimeout(timeout)
        try:
            connection.connect((address, port))
        except OSError:
            connection.close()
            raise
        return connection

    def packets(self, link):
        """A socket that sends and receives whole frames on a link."""
        packets = self.socket(socket.SOCK_RAW, socket.AF_PACKET, socket.htons(ETH_P_ALL))
        packets.setsockopt(socket.SOL_SOCKET, world.SO_RCVBUFFORCE, 64 << 20)
        packets.bind((link, ETH_P_ALL))
        return packets

    def call(self, *words, check=True, **options):
        """Runs a program of the host in it, and returns what it writes."""
        command = ["nsenter", f"--net={self.path}", "--", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **options)
        assert not check or done.returncode == 0, done
        return done.stdout

    def links(self):
        return {link["ifname"]: link for link in json.loads(self.call("ip", "-json", "link", "show") or "[]")}

    def close(self):
        os.close(self.fd)


class Holder:
    """A process that keeps namespaces until the test ends."""

    def __init__(self, script, *namespaces):
        words = ["unshare", "--net", *namespaces, "sh", "-euc", f"{script}\necho ready; exec cat"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"ready\n"
        self.pid = self.process.pid
        self.net = Net(f"/proc/{self.pid}/ns/net")

    def close(self):
        self.net.close()
        self.process.communicate()


HOST_SCRIPT = """
mount -t tmpfs -o mode=755 none /run
mkdir /run/etc /run/etc-work
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work none /etc
ip link set lo up
"""


class Sniffer:
    """Every frame on a link, in both directions, since the last look."""

    def __init__(self, net, link, harmless=lambda frame: False):
        self.name = link
        self.packets = net.packets(link)
        self.packets.setblocking(False)
        self.harmless = harmless

    def frames(self):
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = self.packets.recv(1 << 16)
                if not self.harmless(frame):
                    found.append(frame)
        return found

    def close(self):
        self.packets.close()


def speaks_of_neighbours(frame):
    """IPv6 multicast groups and neighbours, of which the kernels of the lab talk by themselves."""
    if frame[12:14] != b"\x86\xdd":
        return False
    return frame[20] == 0 or frame[20] == 58 and frame[54] in (130, 131, 132, 133, 135, 136, 143)


def is_harmless(frame):
    """What a test itself sends through, to see that what is allowed works."""
    return b"echo " in frame or speaks_of_neighbours(frame)


def is_harmless_outside(frame):
    """On the uplink, where nothing may have the address of a sandbox."""
    return is_harmless(frame) and not (frame[12:14] == b"\x08\0" and frame[26:28] == bytes((10, 200)))


class NetRunner(Runner):
    """The program, run in H."""

    def __init__(self, lab, state, isolation, daemon):
        super().__init__(state, isolation, daemon)
        self.lab = lab
        place = ("--isolation", isolation, "--state-dir", str(state), "--image", str(IMAGE))
        self.base = (*place, "--network-mode", "nat", "--capacity", "8")

    def command(self, result_file, words):
        return [*self.lab.enter, *super().command(result_file, words)]

    def call(self, *words, **options):
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": LIMIT_S, "check": False}
        return subprocess.run([*self.lab.enter, PROGRAM, *map(str, words)], **{**streams, **options})


class Place:
    """The addresses of a slot."""

    def __init__(self, slot):
        first = 4 * slot
        self.slot = slot
        self.gateway, self.address = (f"10.200.{first >> 8}.{(first & 255) + i}" for i in (1, 2))
        self.gateway_mac, self.mac = (f"02:65:72:0{end}:{slot >> 8:02x}:{slot & 255:02x}" for end in (1, 2))


class Answered:
    """How a command inside ended."""

    def __init__(self, status, output, errors):
        self.status, self.output, self.errors = status, output, errors

    def __repr__(self):
        return f"status {self.status}\n{self.output[-2000:]}\n{self.errors[-2000:]}"


def is_connected(one):
    try:
        one.getpeername()
    except OSError:
        return False
    return True


class InNet:
    """What a sandbox and the stand-in for one have in common: frames and sockets in its network namespace."""

    def __init__(self, lab, net, place):
        self.lab, self.net = lab, net
        self.slot, self.address, self.gateway = place.slot, place.address, place.gateway
        self.mac, self.gateway_mac = place.mac, place.gateway_mac
        self.packets = net.packets("eth0")
        self.packets.setblocking(False)
        self.echo_socket = None
        self.n_echos = 0

    def place(self, other):
        return frames.Place(
            **dict(link="eth0", mac=self.mac, address=self.address, gateway_mac=self.gateway_mac, gateway=self.gateway),
            **dict(other=other.address, other_mac=other.mac, other_gateway=other.gateway),
            **dict(server=SERVER, lan=LAN_BOX, metadata=METADATA),
            **dict(host=LAN_HOST, host_public=HOST_PUBLIC, host_broadcast=HOST_BROADCAST),
        )

    def send_frames(self, several):
        for frame in several:
            self.packets.send(frame)

    def echo(self, timeout=5):
        """Sends a datagram to the server and waits for it to come back: what was sent before has arrived by then."""
        if self.echo_socket is None:
            self.echo_socket = self.net.socket(socket.SOCK_DGRAM)
            self.echo_socket.connect((SERVER, ECHO))
        self.n_echos += 1
        token = b"echo %d" % self.n_echos
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.echo_socket.settimeout(0.5)
                self.echo_socket.send(token)
                while self.echo_socket.recv(100) != token:
                    pass
                return True
        return False

    def can_connect(self, address, port, timeout=0.3):
        try:
            self.net.connect(address, port, timeout).close()
        except OSError:
            return False
        return True

    def reached(self, places, timeout=0.4):
        """Which of these pairs of address and port take a connection."""
        tries = {place: self.net.socket() for place in places}
        poll = select.poll()
        for place, one in tries.items():
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.connect(place)
            poll.register(one, select.POLLOUT)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for number, _ in poll.poll(100):
                poll.unregister(number)
        found = {place for place, one in tries.items() if is_connected(one)}
        for one in tries.values():
            one.close()
        return found

    def ask(self, name, kind=world.A, server=None, timeout=8, tcp=False, edns=None, port=53):
        """One DNS question to its gateway, or None when there is no answer."""
        message = world.encode_question(name, kind, edns=edns)
        try:
            with self.net.socket(socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM) as client:
                client.settimeout(timeout)
                client.connect((server or self.gateway, port))
                if tcp:
                    world.send_message(client, message)
                    answer = world.Answer(world.receive_message(client))
                else:
                    client.send(message)
                    answer = world.Answer(client.recv(65535))
        except (OSError, EOFError):
            return None
        assert answer.response and answer.identity == struct.unpack("!H", message[:2])[0]
        return answer

    def close_net(self):
        self.packets.close()
        if self.echo_socket:
            self.echo_socket.close()
        self.net.close()


class Guest(InNet):
    """A sandbox that does what it is told."""

    def __init__(self, lab, *options, env=None):
        agent = ("--", "python3", "-B", "agent.py")
        words = ("--user", "root", "--workspace", lab.tools, "--stdin", *options, *agent)
        self.running = lab.runner.start(*words, env=env)
        self.read = 0
        self.lock = threading.Lock()
        self.running.send(b'["true"]\n')
        self.line()
        self.entry = self.running.sandbox()
        self.init = self.running.helper("init")
        super().__init__(lab, Net(f"/proc/{self.init}/ns/net"), Place(self.entry["slot"]))
        self.link = f"erveth{self.slot}"

    def line(self, limit_s=LIMIT_S):
        """The next line that the agent writes."""
        output = self.running.stdout
        with output.changed:
            output.changed.wait_for(lambda: b"\n" in output.bytes[self.read :] or output.ended, limit_s)
            end = output.bytes.find(b"\n", self.read)
            assert end >= 0, bytes(self.running.stderr.bytes)
            line, self.read = bytes(output.bytes[self.read : end]), end + 1
        return line

    def run(self, *words, limit_s=LIMIT_S):
        """Runs a program inside."""
        with self.lock:
            self.running.send(json.dumps([str(word) for word in words]).encode() + b"\n")
            return Answered(*json.loads(self.line(limit_s)))

    def sh(self, script, limit_s=LIMIT_S):
        return self.run("sh", "-euc", script, limit_s=limit_s)

    def output(self, script, limit_s=LIMIT_S):
        """What a script that succeeds writes."""
        answered = self.sh(script, limit_s)
        assert answered.status == 0, answered
        return answered.output

    def helper(self, name):
        """The pid of a helper of its network: dns or relay."""
        keeper = self.running.helper("keeper")

        def pid():
            threads = pathlib.Path(f"/proc/{keeper}/task").glob("*/children")
            children = [int(p) for t in threads for p in t.read_text().split()]
            return next((p for p in children if command_of(p) == f"ermite-{name}"), None)

        return wait_for(pid, f"ermite-{name} of a sandbox")

    def end(self):
        """Ends it and returns how it ended."""
        self.close_net()
        self.lab.guests.remove(self)
        self.running.close_stdin()
        outcome = self.running.wait()
        assert outcome.status == 0, outcome
        return outcome


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


class StandIn(InNet):
    """A plain namespace in the place of a sandbox, on a host that masquerades and filters nothing."""

    def __init__(self, lab, slot):
        place = Place(slot)
        self.holder = Holder("ip link set lo up")
        link = f"stand{slot}"
        lab.host.call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.holder.pid)
        lab.host.call("ip", "link", "set", link, "address", place.gateway_mac, "up")
        lab.host.call("ip", "address", "add", f"{place.gateway}/30", "dev", link)
        net = self.holder.net
        net.call("ip", "link", "set", "eth0", "address", place.mac, "up")
        net.call("ip", "address", "add", f"{place.address}/30", "dev", "eth0")
        net.call("ip", "route", "add", "default", "via", place.gateway)
        super().__init__(lab, net, place)

    def end(self):
        self.packets.close()
        self.holder.close()


class Lab:
    """H and W, the servers in W, and the runner in H."""

    def __init__(self, isolation="system", daemon=None, mtu=MTU):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="ermite-netlab-"))
        self.state = pathlib.Path(f"/var/lib/{self.directory.name}")
        self.state.mkdir(mode=0o700)
        self.h = Holder(HOST_SCRIPT, "--mount", "--propagation", "private")
        self.w = Holder("ip link set lo up")
        self.host, self.world = self.h.net, self.w.net
        self.enter = ["nsenter", f"--target={self.h.pid}", "--net", "--mount", "--"]
        self.root = pathlib.Path(f"/proc/{self.h.pid}/root")
        self.guests, self.servers = [], []
        self.make_links(mtu)
        self.make_tools()
        self.set_resolvers(RESOLVER, RESOLVER_2)
        records = {NAME: SERVER, "forge.example.test": FORGE}
        self.resolver = self.serve(world.DnsServer(self.world, RESOLVER, records=records))
        self.resolver_2 = self.serve(world.DnsServer(self.world, RESOLVER_2, records=records))
        self.echo = self.serve(world.Listener(self.world, SERVER, ECHO))
        self.lan = self.serve(world.Listener(self.world, LAN_BOX, CLOSED))
        self.metadata = self.serve(world.Listener(self.world, METADATA, CLOSED))
        self.closed = self.serve(world.Listener(self.host, "0.0.0.0", CLOSED))
        self.sniffers = []
        self.runner = NetRunner(self, self.state, isolation, daemon)

    def make_links(self, mtu):
        h, w = self.host, self.world
        h.call("ip", "link", "add", "uplink0", "type", "veth", "peer", "name", "eth0", "netns", self.w.pid)
        h.call("ip", "link", "set", "uplink0", "mtu", mtu, "up")
        w.call("ip", "link", "set", "eth0", "mtu", mtu, "up")
        self.uplink_mac = h.links()["uplink0"]["address"]
        self.router_mac = w.links()["eth0"]["address"]
        for net, link, addresses in (
            (h, "uplink0", (f"{LAN_HOST}/24", f"{HOST_PUBLIC}/24")),
            (w, "eth0", (f"{LAN_ROUTER}/24", f"{LAN_BOX}/24", f"{PUBLIC_ROUTER}/24")),
            (w, "lo", (f"{METADATA}/32", *(f"{a}/32" for a in PUBLIC))),
        ):
            for address in addresses:
                net.call("ip", "address", "add", address, "dev", link)
        h.call("ip", "-6", "address", "add", "2001:db8:1::2/64", "dev", "uplink0", "nodad")
        w.call("ip", "-6", "address", "add", "2001:db8:1::1/64", "dev", "eth0", "nodad")
        h.call("ip", "-6", "route", "add", "default", "via", "2001:db8:1::1")
        h.call("ip", "route", "add", "default", "via", LAN_ROUTER)
        w.call("ip", "route", "add", NETWORK, "via", LAN_HOST)  # the host on the LAN that tries to get in
        for neighbour in (LAN_ROUTER, LAN_BOX, PUBLIC_ROUTER):
            h.call("ip", "neighbour", "add", neighbour, "lladdr", self.router_mac, "nud", "permanent", "dev", "uplink0")
        for neighbour in (LAN_HOST, HOST_PUBLIC):
            w.call("ip", "neighbour", "add", neighbour, "lladdr", self.uplink_mac, "nud", "permanent", "dev", "eth0")

    def make_tools(self):
        """What the sandboxes get as their workspace, and a certificate for the name of the server."""
        self.tools = self.directory / "tools"
        self.tools.mkdir()
        for name in ("agent.py", "frames.py"):
            shutil.copy(LAB / name, self.tools)
        self.certificate = self.directory / "server.pem"
        subject = ("-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}")
        kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        key = self.directory / "key.pem"
        command = ["openssl", "req", *kind, *subject, "-keyout", key, "-out", self.tools / "certificate.pem"]
        subprocess.run(command, check=True, capture_output=True)
        self.certificate.write_bytes(key.read_bytes() + (self.tools / "certificate.pem").read_bytes())

    def serve(self, server):
        self.servers.append(server)
        return server

    def set_resolvers(self, *addresses, by_renaming=True):
        """Writes H's resolv.conf."""
        text = "".join(f"nameserver {address}\n" for address in addresses)
        file = self.root / "etc" / "resolv.conf"
        if by_renaming:
            new = file.with_name("resolv.conf.new")
            new.write_text(text)
            new.rename(file)
        else:
            file.write_text(text)

    def call(self, *words, check=True, **options):
        """Runs a program in H."""
        command = [*self.enter, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, **options)
        assert not check or done.returncode == 0, done
        return done.stdout

    @property
    def gateway_path(self):
        return self.root / "run" / "ermite-runner" / "gateway"

    def gateway(self):
        """The runner's gateway namespace."""
        return Net(self.gateway_path)

    def guest(self, *options, **keywords):
        guest = Guest(self, *options, **keywords)
        self.guests.append(guest)
        return guest

    def sniff(self, net, link):
        sniffer = Sniffer(net, link, is_harmless_outside if net is self.world else is_harmless)
        self.sniffers.append(sniffer)
        return sniffer

    def routes(self):
        """Routes and neighbours of H, which no packet may change."""
        commands = "route show table all;-6 route show table all;rule show;neighbour show;-6 neighbour show".split(";")
        text = "".join(self.host.call("ip", *command.split()) for command in commands)
        return sorted(line for line in text.splitlines() if "fe80::" not in line and "ff00::" not in line)

    def arrived(self):
        """Who came to the ports of the host, the LAN and the metadata service that must stay shut."""
        return [came for listener in (self.closed, self.lan, self.metadata) for came in listener.came]

    def leaks(self):
        """What is in H that a network of sandboxes could leave behind."""
        found, section = [], ""
        for line in self.call(LAB / "leakcheck").splitlines():
            section = line[3:] if line.startswith("## ") else section
            if section in LEAK_SECTIONS and "fe80::" not in line and "ff00::" not in line:
                found.append(line)
        return found

    def end_guests(self):
        for guest in list(self.guests):
            guest.end()

    def close(self):
        try:
            self.end_guests()
            left = self.runner.ps()
            assert not left, left
        finally:
            self.runner.end_all()
            for each in (*self.servers, *self.sniffers):
                each.close()
            self.h.close()
            self.w.close()
            self.runner.remove()
            shutil.rmtree(self.directory)


class Watch:
    """Every place where nothing of a sandbox may be seen."""

    def __init__(self, lab, guest, other):
        self.lab = lab
        gateway = lab.gateway()
        self.sniffers = [
            lab.sniff(lab.world, "eth0"),
            lab.sniff(lab.host, "lo"),
            lab.sniff(other.net, "eth0"),
            lab.sniff(gateway, other.link),
            lab.sniff(gateway, "lo"),
            lab.sniff(gateway, "up"),
        ]
        gateway.close()
        self.guest = guest
        self.routes = lab.routes()
        self.gateway_routes = self.of_gateway()
        self.look()

    def of_gateway(self):
        gateway = self.lab.gateway()
        text = gateway.call("ip", "route", "show", "table", "all") + gateway.call("ip", "neighbour", "show")
        gateway.close()
        return sorted(" ".join(line.split()).replace("REACHABLE", "STALE").replace("DELAY", "STALE")
                      for line in text.splitlines())  # fmt: skip

    def look(self, is_open=True):
        """What was seen since the last look, by the name of the link; is_open: what is allowed must get through."""
        assert not is_open or self.guest.echo(), "what is allowed does not get through"
        time.sleep(0.002)
        seen = [(s.name, frame[:60].hex()) for s in self.sniffers for frame in s.frames() if not is_answer(frame)]
        return seen + self.lab.arrived()

    def assert_tables_unchanged(self):
        assert self.lab.routes() == self.routes
        assert [line for line in self.of_gateway() if "lladdr" not in line] == [
            line for line in self.gateway_routes if "lladdr" not in line
        ]
        for line in self.of_gateway():
            if f"{self.guest.address} dev" in line and "lladdr" in line:
                assert self.guest.mac in line


def is_answer(frame):
    """ARP between the gateway and whoever it sends something to, which is no packet of a sandbox."""
    return frame[12:14] == b"\x08\x06"


@pytest.fixture(scope="module")
def lab(isolation, daemon, one_runner):
    del one_runner  # it has fed the image to the daemon
    assert_can_run()
    lab = Lab(isolation, daemon)
    yield lab
    lab.close()
