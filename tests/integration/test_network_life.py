"""The network comes with the first sandbox and goes with the last; limits, the log, and what the helpers may do."""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import signal
import socket
import time

import pytest

import frames
from conftest import is_sanitized, wait_for
from netlab import LAN_BOX, METADATA, NAME, SERVER, lab  # noqa: F401
from test_posture import NAMESPACES, NONE, limits_of, posture_of, uids_in_use
from world import HttpServer

ROUNDS = 500 if os.environ.get("ERMITE_FULL") else 12
UID_BASE = 700000000  # apart from what else may run on this host
FORGE = ("--guest-forge", "1", "--url", "http://forge.example.test:3000", "--insecure-http", "1")


@pytest.fixture(autouse=True)
def nothing_left(lab):  # noqa: F811
    yield
    lab.end_guests()
    left = lab.runner.ps()
    assert not left, left


def tables_of(net):
    return {line for line in net.call("nft", "list", "tables").splitlines() if "ermite_runner" in line}


def assert_no_network(lab):  # noqa: F811
    wait_for(lambda: not lab.gateway_path.exists(), "the end of the gateway", 10)
    assert "erup" not in lab.host.links()
    assert tables_of(lab.host) == set()
    assert "10.200." not in lab.host.call("ip", "route", "show", "table", "all")


def assert_network_of(lab, guests):  # noqa: F811
    """The gateway holds what belongs to these sandboxes and nothing else. A link goes with the namespace of its other
    end, which the kernel clears away in its own time."""
    gateway = lab.gateway()
    links = {"lo", "up", *(g.link for g in guests)}
    wait_for(lambda: set(gateway.links()) == links, f"just the links {links}", 10)
    ruleset = gateway.call("nft", "list", "ruleset")
    assert set(re.findall(r"erveth\d+", ruleset)) == {g.link for g in guests}
    assert "erup" in lab.host.links()
    assert tables_of(lab.host) == {"table inet ermite_runner"}
    gateway.close()


def test_comes_with_the_first_and_goes_with_the_last(lab):  # noqa: F811
    assert lab.runner.run("--", "true").status == 0
    assert_no_network(lab)
    before = lab.leaks()
    assert not lab.gateway_path.exists()
    one = lab.guest()
    assert_network_of(lab, [one])
    two = lab.guest()
    assert_network_of(lab, [one, two])
    one.end()
    wait_for(lambda: not lab.runner.ps() or len(lab.runner.ps()) == 1, "the end of a sandbox")
    assert_network_of(lab, [two])
    assert two.echo()
    again = lab.guest()
    assert again.slot == one.slot
    assert again.echo() and two.echo()
    again.end()
    two.end()
    assert_no_network(lab)
    assert lab.leaks() == before
    assert lab.host.call("cat", "/proc/sys/net/ipv4/ip_forward") == "1\n"


def test_sandboxes_without_network_make_none(lab):  # noqa: F811
    running = lab.runner.start("--network-mode", "none", "--stdin", "--", "cat")
    running.wait_state("running")
    assert_no_network(lab)
    running.close_stdin()
    assert running.wait().status == 0


def test_keeper_is_killed_and_the_next_run_cleans_up(lab):  # noqa: F811
    before = lab.leaks()
    running = lab.runner.start("--stdin", "--", "cat")
    running.wait_state("running")
    os.kill(running.helper("keeper"), signal.SIGKILL)
    assert running.wait().status == 125
    job = lab.runner.run("--user", "root", "--", "sh", "-c", f"curl -sS -m 9 http://{SERVER}:1/ ; [ $? = 7 ]")
    assert (job.status, job.result["slot"]) == (0, 0), job
    assert lab.runner.ps() == []
    assert_no_network(lab)
    assert lab.leaks() == before


def test_keeper_is_killed_beside_another_sandbox(lab):  # noqa: F811
    one = lab.guest()
    running = lab.runner.start("--stdin", "--", "cat")
    running.wait_state("running")
    os.kill(running.helper("keeper"), signal.SIGKILL)
    assert running.wait().status == 125
    assert one.echo()
    two = lab.guest()
    assert_network_of(lab, [one, two])
    assert one.echo() and two.echo()
    assert one.ask(NAME).addresses == two.ask(NAME).addresses == [SERVER]


def test_keeper_is_killed_while_it_starts(lab):  # noqa: F811
    """At a random instant; whoever comes next finds no obstacle and leaves nothing."""
    chance = random.Random(3)
    before = lab.leaks()
    for _ in range(ROUNDS):
        running = lab.runner.start("--stdin", "--", "cat")
        time.sleep(chance.uniform(0, 0.5))
        for process in children_of(running.pid):
            os.kill(process, signal.SIGKILL)
        running.signal(signal.SIGKILL)
        running.wait()
    job = lab.runner.run("--", "true")
    assert job.status == 0, job
    left = lab.runner.ps()
    assert not left, left
    assert_no_network(lab)
    assert lab.leaks() == before


def children_of(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def run_many(lab, rounds):  # noqa: F811
    """Two keepers that add and remove at the same time; each tries its network."""

    def run(number):
        script = f"curl -sS -m 9 http://{SERVER}/ | cut -d ' ' -f 1"
        job = lab.runner.run("--job-memory", "256M", "--", "sh", "-c", script)
        return number, job.status, job.stdout, str(job)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, status, stdout, told in pool.map(run, range(2 * rounds)):
            assert (status, stdout) == (0, b"hello\n"), (number, told)


def test_two_keepers_add_and_remove_at_once(lab):  # noqa: F811
    lab.serve(HttpServer(lab.world, SERVER, 80))
    before = lab.leaks()
    run_many(lab, ROUNDS)
    assert_no_network(lab)
    assert lab.leaks() == before
    stays = lab.guest()
    run_many(lab, ROUNDS)
    assert_network_of(lab, [stays])
    assert stays.echo()
    assert lab.runner.ps()[0]["id"] == stays.entry["id"] and len(lab.runner.ps()) == 1


def took(guest, script):
    began = time.monotonic()
    guest.output(script)
    return time.monotonic() - began


def test_rate_limit_in_both_directions(lab):  # noqa: F811
    server = HttpServer(lab.world, SERVER, 8088)
    size = 20 << 20  # of which the first second's worth may come at once
    download = f"curl --silent --fail --max-time 60 --output /dev/null http://{SERVER}:8088/bulk/{size}"
    upload = f"truncate -s {size} /tmp/bulk; curl --silent --upload-file /tmp/bulk http://{SERVER}:8088/up"
    limited, free = lab.guest("--job-net-bandwidth", "4M"), lab.guest()
    for script in (download, upload):
        assert 3.5 < took(limited, script) < 7
        assert took(free, script) < 1.5
    server.close()
    refused = limited.end().result["network"]["refused"]
    assert {kind for kind, n in refused.items() if n} <= {"rate"}


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_log_of_the_network(lab, tmp_path):  # noqa: F811
    log = tmp_path / "network.log"
    guest = lab.guest("--network-log", log)
    before = time.time()
    guest.ask("logged.test")
    guest.ask("logged-too.test", 28)
    place = guest.place(guest)
    for _ in range(20):
        guest.send_frames([place.frame(frames.udp(guest.address, LAN_BOX, 9999))])
    guest.send_frames([place.frame(frames.tcp(guest.address, METADATA, 80, frames.SYN))])
    guest.send_frames([place.frame(frames.ipv4(guest.address, SERVER, frames.GRE, bytes(20)))])
    guest.send_frames([place.frame(frames.udp(guest.gateway, SERVER, 5))])
    assert guest.echo()
    wait_for(lambda: len(lines_of(log)) >= 6, "the lines of the log", 10)
    guest.end()
    lines = lines_of(log)
    questions = [line for line in lines if line["kind"] == "dns"]
    assert [(q["name"], q["type"]) for q in questions] == [("logged.test", "A"), ("logged-too.test", "AAAA")]
    flows = [line for line in lines if line["kind"] == "flow"]
    seen = {(f.get("protocol"), f["address"], f.get("port"), f["rule"]) for f in flows}
    expected = {
        ("udp", LAN_BOX, 9999, "private"),
        ("tcp", METADATA, 80, "private"),
        ("udp", SERVER, 5, "spoof"),
    }
    assert expected <= seen, flows
    assert len([f for f in flows if f["address"] == LAN_BOX]) == 1, flows
    assert any(f["rule"] == "protocol" for f in flows)
    for line in lines:
        assert {"time", "kind", "verdict"} <= line.keys(), line
    assert {f["verdict"] for f in flows} == {"refused"}, flows
    years = {line["time"][:4] if isinstance(line["time"], str) else time.gmtime(line["time"]).tm_year for line in lines}
    assert {int(year) for year in years} == {time.gmtime(before).tm_year}


def test_log_that_cannot_be_written(lab):  # noqa: F811
    job = lab.runner.run("--network-log", "/nonexistent/log", "--", "echo", "ran")
    assert (job.status, job.stdout) == (125, b""), job
    assert b"/nonexistent/log" in job.stderr


def test_log_is_bounded_by_its_flows(lab, tmp_path):  # noqa: F811
    """A sandbox that floods neither fills the log nor stops."""
    log = tmp_path / "network.log"
    guest = lab.guest("--network-log", log)
    frame = guest.place(guest).frame(frames.udp(guest.address, LAN_BOX, 9999))
    for _ in range(20000):
        guest.packets.send(frame)
    assert guest.echo()
    refused = guest.end().result["network"]["refused"]
    assert refused["private"] == 20000
    assert len(lines_of(log)) < 1000


def expected_helper(uid, limits):
    ids = " ".join([str(uid)] * 4)
    return {
        **dict(Uid=ids, Gid=ids, Groups="", CapInh=NONE, CapPrm=NONE, CapEff=NONE, CapBnd=NONE, CapAmb=NONE),
        **dict(NoNewPrivs="1", Seccomp="2", Seccomp_filters="1"),
        "threads": 1,
        "namespaces": NAMESPACES - {"user", "time", "time_for_children"},
        "environment": [],
        "directory": "/",
        "files of its root": 0,
        "mounts": 1,
        "owner of its /proc": 0,
        "leads a session": True,
        "limits": {
            **limits,
            **{name: ("0", "0") for name in ("Max file size", "Max core file size", "Max processes")},
            **{name: ("0", "0") for name in ("Max locked memory", "Max msgqueue size")},
        },
    }


CHOSEN_BY_THE_HELPER = ("Max open files", "Max address space")


@pytest.mark.sanitized
def test_posture_of_the_helpers(lab):  # noqa: F811
    guest = lab.guest(*FORGE, "--guest-forge-target", "127.0.0.1:4999", "--uid-base", UID_BASE)
    for number in range(20):  # after work was done
        guest.ask(f"{number}.test")
        guest.can_connect(guest.gateway, 3000)
    uids, _ = uids_in_use()
    conduit = os.stat(f"/proc/{guest.running.helper('conduit')}").st_uid
    seen = set()
    for name in ("dns", "relay"):
        pid = guest.helper(name)
        found = posture_of(pid)
        uid = int(found["Uid"].split()[0])
        assert uid not in (0, conduit, 65534) and uid not in seen
        assert uids[uid] == [f"ermite-{name}"]
        seen.add(uid)
        expected = expected_helper(uid, limits_of("self"))
        for limit in CHOSEN_BY_THE_HELPER:
            soft, hard = found["limits"].pop(limit)
            expected["limits"].pop(limit)
            assert soft == hard and (is_sanitized() or soft != "unlimited"), (limit, soft)
        assert {key: found[key] for key in expected} == expected, name
        assert_alone(guest, pid)


def assert_alone(guest, pid):
    """Its network namespace is its own and empty; what it holds is none of the host's files."""
    networks = {os.readlink(f"/proc/{p}/ns/net") for p in ("self", guest.init, guest.running.helper("keeper"))}
    assert os.readlink(f"/proc/{pid}/ns/net") not in networks
    lines = pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert pathlib.Path(f"/proc/{pid}/net/route").read_text().count("\n") <= 1
    targets = [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]
    kinds = {re.sub(r":\[\d+\]$| \(deleted\)$", "", target) for target in targets}
    allowed = {"/null", "/dev/null", "socket", "pipe", "anon_inode:[eventpoll]", "anon_inode:[timerfd]"}
    assert kinds <= allowed | {"anon_inode:[signalfd]"} | {k for k in kinds if k.startswith("/memfd:")}, kinds


def test_flows_of_a_sandbox_that_is_gone(lab):  # noqa: F811
    """Whoever gets its slot next does not get its packets."""
    one = lab.guest()
    with one.net.socket(socket.SOCK_DGRAM) as flow:
        flow.bind((one.address, 5555))
        flow.connect((SERVER, 7))
        flow.send(b"echo of the first")
        flow.settimeout(5)
        assert flow.recv(100)
    (source,) = {came[1] for came in lab.echo.came if came[2] == b"echo of the first"}
    stays = lab.guest()  # so that the gateway stays
    one.end()
    two = lab.guest()
    assert two.slot == 0
    sniffer = lab.sniff(two.net, "eth0")
    sniffer.frames()
    lab.echo.udp.sendto(b"late", source)
    assert stays.echo() and two.echo()
    assert not [f for f in sniffer.frames() if b"late" in f]


def test_nothing_arrived_that_should_not(lab):  # noqa: F811
    assert lab.arrived() == []
