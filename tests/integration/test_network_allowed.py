"""What a sandbox may do: reach the internet, through an uplink of 1400 bytes, from nested containers as well."""

import json
import socket
import subprocess

import pytest

from netlab import CLOSED, LAN_BOX, LAN_HOST, METADATA, MTU, NAME, SERVER, Lab, lab  # noqa: F401
from test_nested import MAKE_ROOT
from world import AAAA, TXT, HttpServer, Listener

BULK = 128 << 20
TLS = f"--cacert certificate.pem https://{NAME}"
CURL = "curl --silent --show-error --fail --max-time 60"


@pytest.fixture(scope="module")
def servers(lab):  # noqa: F811
    repositories = lab.directory / "repositories"
    make = f"""
    git init --quiet --initial-branch main {repositories}/work
    cd {repositories}/work
    head -c 3000000 /dev/urandom >random
    git add random
    git -c user.name=lab -c user.email=lab@example.test commit --quiet --message first
    git clone --quiet --bare . {repositories}/project.git
    git rev-parse HEAD
    """
    lab.commit = subprocess.run(["sh", "-euc", make], check=True, capture_output=True, text=True).stdout.strip()
    lab.http = lab.serve(HttpServer(lab.world, SERVER, 80, repositories=repositories))
    lab.https = lab.serve(HttpServer(lab.world, SERVER, 443, certificate=lab.certificate))
    return lab


@pytest.fixture(scope="module")
def guest(servers):
    return servers.guest()


def test_addresses_inside(guest):
    assert guest.slot == 0
    links = json.loads(guest.output("ip -json -details address show"))
    assert [link["ifname"] for link in links if link["operstate"] == "UP"] == ["eth0"]
    eth0 = next(link for link in links if link["ifname"] == "eth0")
    assert (eth0["mtu"], eth0["address"]) == (MTU, guest.mac)
    addresses = [(a["local"], a["prefixlen"]) for a in eth0["addr_info"]]
    assert addresses == [(guest.address, 30)]  # and none of IPv6
    routes = json.loads(guest.output("ip -json route show"))
    assert [(r["dst"], r.get("gateway")) for r in routes] == [
        ("default", guest.gateway),
        (f"{guest.gateway[:-1]}0/30", None),
    ]
    assert f"nameserver {guest.gateway}\n" in guest.output("cat /etc/resolv.conf")
    assert guest.output("ip -6 address show dev eth0; ip -6 route show") == ""
    assert guest.output("cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6") == "1\n"


def test_mac_of_the_gateway(lab, guest):  # noqa: F811
    gateway = lab.gateway()
    links = gateway.links()
    assert links[guest.link]["address"] == guest.gateway_mac
    assert links[guest.link]["mtu"] == MTU
    assert set(links) == {"lo", "up", guest.link}
    assert "erup" in lab.host.links()
    gateway.close()


def test_http(servers, guest):
    assert guest.output(f"{CURL} http://{NAME}/") == f"hello {LAN_HOST} {NAME}\n"
    assert guest.output(f"{CURL} http://{SERVER}/") == f"hello {LAN_HOST} {SERVER}\n"


def test_https(servers, guest):
    assert guest.output(f"{CURL} {TLS}/") == f"hello {LAN_HOST} {NAME}\n"


def test_dns(lab, guest):  # noqa: F811
    for over_tcp in (False, True):
        assert guest.ask(NAME, tcp=over_tcp).addresses == [SERVER]
        assert guest.ask(NAME, TXT, tcp=over_tcp).records == []
    assert guest.ask(NAME, AAAA).addresses == []
    assert guest.output(f"getent ahostsv4 {NAME} | head -n 1 | cut -d ' ' -f 1") == f"{SERVER}\n"
    assert lab.resolver.asked(NAME)
    assert not lab.resolver_2.asked(NAME)


def test_echo_requests_and_an_answer_from_the_way(guest):
    assert "3 packets received" in guest.output(f"busybox ping -c 3 -W 2 {SERVER}")
    # One byte more than fits is told by the kernel inside; what fits goes through whole.
    assert "1 packets received" in guest.output(f"busybox ping -c 1 -W 2 -s {MTU - 28} {SERVER}")


def test_fragments_are_passed_on(guest):
    assert "1 packets received" in guest.output(f"busybox ping -c 1 -W 2 -s 4000 {SERVER}")


def test_git_clone(servers, guest):
    clone = f"git clone --quiet http://{NAME}/git/project.git p"
    script = f"cd $(mktemp -d); {clone}; git -C p fsck; git -C p rev-parse HEAD"
    assert guest.output(script).strip() == servers.commit


def test_big_transfers(servers, guest):
    form = "--output /dev/null --write-out '%{size_download} %{size_upload}\\n'"
    assert guest.output(f"{CURL} {form} http://{NAME}/bulk/{BULK}") == f"{BULK} 0\n"
    upload = f"truncate -s {BULK} /tmp/bulk; {CURL} --upload-file /tmp/bulk"
    assert guest.output(f"{upload} http://{NAME}/upload") == f"{BULK}\n"
    assert guest.output(f"{CURL} {form} {TLS}/bulk/{BULK // 4}") == f"{BULK // 4} 0\n"


def syn_option(frame):
    """The segment size that a SYN offers."""
    options = frame[14 + 20 + 20 : 14 + 20 + 4 * (frame[14 + 20 + 12] >> 4)]
    return int.from_bytes(options[2:4], "big") if options[:2] == b"\2\4" else None


def test_segment_size_is_clamped(lab, guest):  # noqa: F811
    """Root inside may say another MTU: TCP is kept to what goes out all the same."""
    sniffer = lab.sniff(lab.world, "eth0")
    guest.output("ip link set eth0 mtu 1500")
    try:
        sniffer.frames()
        assert guest.can_connect(SERVER, 80, 5)
        syns = [f for f in sniffer.frames() if f[12:14] == b"\x08\0" and f[23] == 6 and f[47] & 0x02]
        assert {syn_option(f) for f in syns} == {MTU - 40}
    finally:
        guest.output(f"ip link set eth0 mtu {MTU}")


def test_exceptions_that_are_allowed(lab, guest):  # noqa: F811
    other = lab.serve(Listener(lab.world, LAN_BOX, 8081))
    assert not guest.can_connect(LAN_BOX, 8081)
    with_exceptions = lab.guest("--network-allow", f"{LAN_BOX}:8081,{METADATA}")
    assert with_exceptions.can_connect(LAN_BOX, 8081, 5)
    assert with_exceptions.can_connect(METADATA, CLOSED, 5)
    assert not with_exceptions.can_connect(LAN_BOX, CLOSED)
    assert not guest.can_connect(LAN_BOX, 8081)
    assert not guest.can_connect(METADATA, CLOSED)
    with_exceptions.end()
    assert len(other.came) == 1
    # The same slot again, without exceptions.
    without = lab.guest()
    assert without.slot == with_exceptions.slot
    assert not without.can_connect(LAN_BOX, 8081)
    without.end()
    lab.metadata.came.clear()


MAKE_TINY = f"""{MAKE_ROOT}
cp /bin/busybox root/bin/busybox
tar -C root -cf root.tar .
docker import root.tar tiny >&2
"""


@pytest.fixture(scope="module")
def docker_guest(servers):
    guest = servers.guest("--ready", "system", "--job-disk", "4G", "--job-memory", "2G")
    guest.output(f"mkdir /tmp/make; cd /tmp/make; {MAKE_TINY}")
    return guest


def nested(guest, *words):
    return guest.output("docker run --rm tiny busybox " + " ".join(map(str, words)))


def test_nested_container(docker_guest):
    assert nested(docker_guest, "cat", "/sys/class/net/eth0/mtu") == f"{MTU}\n"
    assert docker_guest.output("cat /sys/class/net/docker0/mtu") == f"{MTU}\n"
    assert nested(docker_guest, "wget", "-q", "-O", "-", f"http://{NAME}/") == f"hello {LAN_HOST} {NAME}\n"
    assert SERVER in nested(docker_guest, "nslookup", NAME)
    assert "2 packets received" in nested(docker_guest, "ping", "-c", 2, "-W", 2, SERVER)


def test_big_transfers_of_a_nested_container(docker_guest):
    script = f"'busybox wget -q -O - http://{NAME}/bulk/{BULK} | busybox wc -c'"
    assert nested(docker_guest, "sh", "-c", script) == f"{BULK}\n"
    upload = f"busybox wget -q -O - --post-file /bulk http://{NAME}/upload"
    script = f"'busybox yes | busybox head -c {BULK} >/bulk; {upload}'"
    assert nested(docker_guest, "sh", "-c", script) == f"{BULK}\n"


def test_network_of_a_composition(docker_guest):
    """Another bridge than docker0."""
    script = f"""
    docker network create other >&2
    docker run --rm --network other tiny busybox wget -q -O - http://{NAME}/
    docker run --rm --network other tiny sh -c 'busybox wget -q -O - http://{NAME}/bulk/{BULK} | busybox wc -c'
    docker network rm other >&2
    """
    assert docker_guest.output(script) == f"hello {LAN_HOST} {NAME}\n{BULK}\n"


def test_nested_container_reaches_nothing_that_is_denied(lab, docker_guest, guest):  # noqa: F811
    listener = guest.net.listen("0.0.0.0", CLOSED)
    listener.settimeout(0)
    addresses = (LAN_BOX, METADATA, LAN_HOST, guest.address, guest.gateway, docker_guest.gateway)
    script = "; ".join(f"busybox nc -w 1 {a} {CLOSED} </dev/null && echo reached {a}" for a in addresses)
    assert nested(docker_guest, "sh", "-c", f"'{script}; echo tried'") == "tried\n"
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()
    assert lab.arrived() == []


def test_uplink_of_1500_bytes(isolation, daemon, one_runner):
    del one_runner  # it has fed the image to the daemon
    lab = Lab(isolation, daemon, mtu=1500)  # noqa: F811
    try:
        guest = lab.guest()
        assert guest.net.links()["eth0"]["mtu"] == 1500
        assert guest.echo()
    finally:
        lab.close()


def test_what_the_result_says(servers):
    """Bytes and flows are counted in both directions."""
    guest = servers.guest()
    guest.output(f"{CURL} --output /dev/null http://{SERVER}/bulk/{8 << 20}")
    guest.output(f"truncate -s 4M /tmp/bulk; {CURL} --upload-file /tmp/bulk http://{SERVER}/upload")
    assert guest.ask("one.test") and guest.ask("two.test")
    with guest.net.socket(socket.SOCK_DGRAM) as one:
        one.sendto(b"denied", (LAN_BOX, CLOSED))
    result = guest.end().result
    network = result["network"]
    assert 8 << 20 <= network["received_bytes"] <= 9 << 20, network
    assert 4 << 20 <= network["sent_bytes"] <= 5 << 20, network
    assert result["network_bytes"] == network["received_bytes"] + network["sent_bytes"]
    assert 2 <= network["flows"] <= 10, network
    assert network["dns_questions"] == 2
    assert {kind: n for kind, n in network["refused"].items() if n} == {"private": 1}


def test_idle_sandbox_is_refused_nothing(servers):
    """A whole system that starts and ends sends nothing that the rules refuse."""
    guest = servers.guest("--ready", "system")
    guest.output("systemctl is-system-running" if servers.runner.isolation == "system" else "docker info")
    refused = guest.end().result["network"]["refused"]
    assert {kind: n for kind, n in refused.items() if n} == {}
