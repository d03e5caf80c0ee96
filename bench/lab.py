"""Network namespaces without a way out: hosts on which ermite-runner runs, a peer's, and a world with a resolver and a
server. Everything in them ends with the process that made them."""

import contextlib
import json
import subprocess
import time

RESOLVER, SERVER = "9.9.9.9", "8.8.4.4"  # public addresses, or a sandbox might not go there
PEER, PEER_GATEWAY = "172.30.0.2", "172.30.0.1"


class Namespace:
    """A network namespace, with mounts of its own, held by a process that waits for the end of its input."""

    def __init__(self, script=""):
        command = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-ec"]
        self.holder = subprocess.Popen([*command, f"ip link set lo up\n{script}\necho made\nexec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.holder.stdout.readline() != b"made\n":
            raise RuntimeError("a namespace of the lab cannot be made")
        self.pid = self.holder.pid
        self.enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--"]
        self.programs = []

    def sh(self, *commands):
        for command in commands:
            subprocess.run([*self.enter, "sh", "-ec", command], check=True)

    def start(self, *command, **streams):
        """Starts a program that ends with the namespace, and with this process whatever happens."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | streams
        with_us = ("setpriv", "--pdeathsig", "KILL", "--")
        self.programs.append(subprocess.Popen([*self.enter, *with_us, *command], **streams))
        return self.programs[-1]

    def close(self):
        for program in reversed(self.programs):
            program.kill() if program.stdin is None else program.stdin.close()
            program.wait()
        self.holder.stdin.close()
        self.holder.wait()


class Sandbox:
    """A sandbox that does nothing, until it is closed."""

    def __init__(self, command, enter):
        self.run = subprocess.Popen([*enter, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.run.stdout.read(1) != b"x":
            raise RuntimeError("a sandbox does not start")
        self.enter = ["nsenter", "--target", self.process_with_link(), "--net", "--"]
        route = subprocess.check_output([*self.enter, "ip", "-json", "route", "show", "default"])
        self.gateway = json.loads(route)[0]["gateway"]

    def process_with_link(self):
        """A process inside: of the descendants one whose network namespace has an eth0."""
        for pid in descendants(self.run.pid):
            with contextlib.suppress(OSError):
                if "eth0:" in open(f"/proc/{pid}/net/dev").read():
                    return str(pid)
        raise RuntimeError("a sandbox has no network")

    def close(self):
        self.run.stdin.close()
        self.run.wait()


class Lab:
    """The world and as many hosts beside it as are asked for, each with its own run directory and resolv.conf."""

    def __init__(self, directory):
        self.resolv_conf = f"{directory}/resolv.conf"
        with open(self.resolv_conf, "w") as f:
            f.write(f"nameserver {RESOLVER}\n")
        self.world = Namespace(f"ip address add {RESOLVER}/32 dev lo\nip address add {SERVER}/32 dev lo")
        self.opened = [self.world]

    def host(self):
        number = len(self.opened)
        host = Namespace("mkdir -p /run/ermite-runner\nmount -t tmpfs -o mode=755 tmpfs /run/ermite-runner\n"
                         f"mount --bind {self.resolv_conf} /etc/resolv.conf\n"
                         f"ip link add uplink type veth peer name to{number} netns {self.world.pid}\n"
                         f"ip address add 5.6.{number}.2/24 dev uplink\nip link set uplink up\n"
                         f"ip route add default via 5.6.{number}.1\nsysctl -qw net.ipv4.ip_forward=1")
        self.world.sh(f"ip address add 5.6.{number}.1/24 dev to{number}", f"ip link set to{number} up")
        self.opened.append(host)
        return host

    def peer(self, host):
        """What a sandbox is measured against: a namespace behind a pair of links, and masquerade."""
        peer = Namespace()
        host.sh(f"ip link add peer type veth peer name eth0 netns {peer.pid}",
                f"ip address add {PEER_GATEWAY}/30 dev peer", "ip link set peer up",
                "nft 'table ip peer { chain postrouting { type nat hook postrouting priority srcnat; "
                "oifname \"uplink\" masquerade; }; }'")
        peer.sh(f"ip address add {PEER}/30 dev eth0", "ip link set eth0 up", f"ip route add default via {PEER_GATEWAY}")
        self.opened.append(peer)
        return peer

    def close(self):
        for namespace in reversed(self.opened):
            namespace.close()


def descendants(pid):
    with contextlib.suppress(OSError):
        children = open(f"/proc/{pid}/task/{pid}/children").read().split()
        return [int(c) for c in children] + [d for c in children for d in descendants(int(c))]
    return []


def wait_for_udp(enter, port):
    """Waits until somebody listens in a namespace."""
    for _ in range(500):
        listeners = subprocess.run([*enter, "ss", "-Hlnu", f"sport = :{port}"], capture_output=True, check=True)
        if listeners.stdout:
            return
        time.sleep(0.01)
    raise RuntimeError(f"nobody listens on UDP port {port}")
