"""The DNS forwarder of a sandbox: its numbers, hostile clients, hostile resolvers."""

import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

from conftest import THREAT_TESTS, wait_for
from netlab import NAME, RESOLVER, RESOLVER_2, SERVER, lab  # noqa: F401
from world import (
    ANY, SERVFAIL, Answer, DnsServer, encode_name, encode_question, receive_message, send_message,
)  # fmt: skip

pytestmark = pytest.mark.only("system", why="the forwarder is the same process for each isolation")

IN_FLIGHT = 32
CONNECTIONS = 16
CONNECTION_S = 30
TORTURE = THREAT_TESTS / "dnstorture.py"


@pytest.fixture(scope="module")
def guest(lab):  # noqa: F811
    return lab.guest()


@pytest.fixture(scope="module", autouse=True)
def idle(lab):  # noqa: F811
    """Connections for test_a_connection_is_closed_after_its_time, which comes last."""
    guest = lab.guest()
    connections = [guest.net.connect(guest.gateway, 53) for _ in range(2)]
    for each in connections:
        each.settimeout(5)
        send_message(each, encode_question("idle.test"))
        assert Answer(receive_message(each)).addresses == [SERVER]
    return connections, time.monotonic()


@pytest.fixture(autouse=True)
def resolvers(lab):  # noqa: F811
    yield
    for server in (lab.resolver, lab.resolver_2):
        server.silent = False
        server.release.set()
        server.release = threading.Event()


def client(guest, timeout=3):
    one = guest.net.socket(socket.SOCK_DGRAM)
    one.connect((guest.gateway, 53))
    one.settimeout(timeout)
    return one


def test_over_udp_and_tcp(lab, guest):  # noqa: F811
    for over_tcp in (False, True):
        answer = guest.ask(NAME, tcp=over_tcp)
        assert (answer.code, answer.addresses, answer.name) == (0, [SERVER], NAME)
    assert [q.via for q in lab.resolver.asked(NAME)][0] == "udp"


def test_nothing_is_kept(lab, guest):  # noqa: F811
    for number in range(3):
        assert guest.ask("again.test").addresses == [SERVER]
        assert len(lab.resolver.asked("again.test")) == number + 1


def test_errors_of_a_resolver_are_passed_on_or_avoided(guest):
    answer = guest.ask("servfail.test")
    assert answer.code == SERVFAIL


def test_a_resolver_that_does_not_answer_over_udp_is_asked_over_tcp_after_a_second(lab, guest):  # noqa: F811
    began = time.monotonic()
    assert guest.ask("udpsilent.test").addresses == [SERVER]
    assert 0.9 < time.monotonic() - began < 2
    first, second = lab.resolver.asked("udpsilent.test")
    assert (first.via, second.via) == ("udp", "tcp")
    assert 0.9 < second.time - first.time < 1.3
    assert not lab.resolver_2.asked("udpsilent.test")


def test_a_truncated_answer_is_asked_for_over_tcp(lab, guest):  # noqa: F811
    answer = guest.ask("tc.test")
    assert (answer.addresses, answer.truncated) == ([SERVER], False)
    assert [q.via for q in lab.resolver.asked("tc.test")] == ["udp", "tcp"]


def test_an_answer_that_the_client_cannot_take(guest):
    answer = guest.ask("big.test")
    assert answer.truncated and answer.records == [] and answer.size <= 512
    assert (answer.name, answer.code) == ("big.test", 0)
    assert len(guest.ask("big.test", edns=1232).records) == 60
    assert guest.ask("big.test", edns=600).truncated
    assert guest.ask("big.test", edns=100).truncated  # less than 512 counts as 512
    assert len(guest.ask("big.test", tcp=True).records) == 60


def test_the_first_resolver_is_dead(lab, guest):  # noqa: F811
    lab.resolver.silent = True
    began = time.monotonic()
    assert guest.ask("first-is-dead.test").addresses == [SERVER]
    assert time.monotonic() - began < 6
    assert lab.resolver.asked("first-is-dead.test") and lab.resolver_2.asked("first-is-dead.test")


def test_no_resolver_answers(lab, guest):  # noqa: F811
    lab.resolver.silent = lab.resolver_2.silent = True
    began = time.monotonic()
    answer = guest.ask("nobody.test", timeout=10)
    assert answer.code == SERVFAIL
    assert time.monotonic() - began < 6.5
    assert lab.resolver_2.asked("nobody.test")


@pytest.mark.parametrize("wrong", ["wrongid", "wrongname", "wrongkind", "wrongport", "wrongsource", "notanswer"])
def test_a_wrong_answer_is_ignored(guest, wrong):
    answer = guest.ask(f"{wrong}.test")
    assert answer.addresses == [SERVER]


def test_a_denied_address_in_an_answer(guest):
    """A courtesy: the packet filter is what denies it."""
    answer = guest.ask("private.test")
    assert answer is None or answer.addresses == []


def test_questions_in_flight(lab, guest):  # noqa: F811
    one = client(guest, 1)
    for number in range(IN_FLIGHT + 8):
        one.send(encode_question(f"held-{number}.test", identity=number))

    def held():
        return [q for q in list(lab.resolver.questions) if q.name.startswith("held-") and q.via == "udp"]

    wait_for(lambda: len(held()) >= IN_FLIGHT, "questions at the resolver", 5)
    time.sleep(0.2)
    assert len(held()) == IN_FLIGHT
    lab.resolver.release.set()
    answered = {Answer(one.recv(4096)).identity for _ in range(IN_FLIGHT)}
    assert answered == set(range(IN_FLIGHT))
    with pytest.raises(TimeoutError):
        one.recv(4096)
    assert guest.ask("after.test").addresses == [SERVER]
    one.close()


def test_equal_questions_in_flight_are_asked_once(lab, guest):  # noqa: F811
    several = [client(guest) for _ in range(20)]
    for number, one in enumerate(several):
        one.send(encode_question("held-same.test", identity=number))
    wait_for(lambda: lab.resolver.asked("held-same.test"), "a question at the resolver")
    time.sleep(0.2)
    lab.resolver.release.set()
    for number, one in enumerate(several):
        answer = Answer(one.recv(4096))
        assert (answer.identity, answer.addresses) == (number, [SERVER])
        one.close()
    assert len(lab.resolver.asked("held-same.test")) == 1


def ask_over(connection, name):
    send_message(connection, encode_question(name))
    return Answer(receive_message(connection)).addresses


def test_connections_at_once(guest):
    """Who comes after as many as there may be takes the place of the one that has been there longest."""
    held = [guest.net.connect(guest.gateway, 53) for _ in range(CONNECTIONS)]
    for each in held:
        assert ask_over(each, "connection.test") == [SERVER]
    one_more = guest.net.connect(guest.gateway, 53)
    assert ask_over(one_more, "one-more.test") == [SERVER]
    assert is_closed(held[0])
    for each in held[1:]:
        assert ask_over(each, "still-there.test") == [SERVER]
    assert guest.ask("over-udp.test").addresses == [SERVER]
    for each in (*held, one_more):
        each.close()


def is_closed(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_that_all_wait_for_an_answer(lab, guest):  # noqa: F811
    held = [guest.net.connect(guest.gateway, 53) for _ in range(CONNECTIONS)]
    for number, each in enumerate(held):
        send_message(each, encode_question(f"held-c{number}.test"))
    asked = {f"held-c{number}.test" for number in range(CONNECTIONS)}
    wait_for(lambda: asked <= {q.name for q in list(lab.resolver.questions)}, "questions at the resolver")
    late = guest.net.connect(guest.gateway, 53, 0.3)
    send_message(late, encode_question("late.test"))
    with pytest.raises(TimeoutError):
        late.recv(1)
    lab.resolver.release.set()
    for each in held:
        assert Answer(receive_message(each)).addresses == [SERVER]
        each.close()
    late.settimeout(5)
    assert Answer(receive_message(late)).addresses == [SERVER]
    late.close()


def test_several_questions_in_a_connection(guest):
    with guest.net.connect(guest.gateway, 53) as connection:
        questions = b"".join(
            struct.pack("!H", len(m)) + m for m in (encode_question(f"c{i}.test", identity=i) for i in range(10))
        )
        connection.sendall(questions[:30])
        connection.sendall(questions[30:])
        assert {Answer(receive_message(connection)).identity for _ in range(10)} == set(range(10))


def test_ports_and_identities_cannot_be_guessed(lab, guest):  # noqa: F811
    for number in range(500):
        assert guest.ask(f"random-{number}.test").addresses == [SERVER]
    asked = [q for q in lab.resolver.questions if q.name.startswith("random-")]
    ports, identities = [q.source[1] for q in asked], [q.identity for q in asked]
    assert len(asked) == 500
    assert len(set(ports)) >= 485 and len(set(identities)) >= 490
    assert max(ports) - min(ports) > 25000
    assert sum(b - a == 1 for a, b in zip(ports, ports[1:])) < 5
    assert sum(b - a == 1 for a, b in zip(identities, identities[1:])) < 5


HEAD = struct.pack("!HHHHHH", 1, 0x0100, 1, 0, 0, 0)
MALFORMED = {
    "empty": b"",
    "a byte": b"\0",
    "a header": HEAD,
    "an answer": encode_question("a.test", flags=0x8180),
    "another operation": encode_question("a.test", flags=0x2900),
    "a pointer to itself": HEAD + b"\xc0\x0c\0\1\0\1",
    "a pointer past the end": HEAD + b"\xff\xff\0\1\0\1",
    "a label of 64 bytes": HEAD + b"\x40" + b"a" * 64 + b"\0\0\1\0\1",
    "a name of 320 bytes": HEAD + (b"\x3f" + b"a" * 63) * 5 + b"\0\0\1\0\1",
    "no end": HEAD + b"\3abc",
    "two questions": struct.pack("!HHHHHH", 1, 0x0100, 2, 0, 0, 0) + encode_question("a.test")[12:] * 2,
    "65535 questions": struct.pack("!HHHHHH", 1, 0x0100, 65535, 0, 0, 0) + encode_question("a.test")[12:],
    "four kilobytes more": encode_question("a.test") + os.urandom(4096),
    "another class": HEAD + encode_name("version.bind") + b"\0\x10\0\3",
}


def test_malformed_questions(lab, guest):  # noqa: F811
    """They get an error or nothing; nothing of them reaches a resolver, and the next question is answered."""
    asked = len(lab.resolver.questions)
    one = client(guest, 0.15)
    for name, message in MALFORMED.items():
        one.send(message)
        try:
            answer = Answer(one.recv(65535))
        except TimeoutError:
            continue
        assert answer.code and answer.records == [] and answer.size <= len(message), (name, answer)
    one.close()
    assert len(lab.resolver.questions) == asked
    assert guest.ask("still-there.test").addresses == [SERVER]
    # ANY amplifies.
    answer = guest.ask("any.test", ANY, timeout=1)
    assert answer is None or answer.records == [] or answer.size <= 512


def test_a_connection_that_sends_a_byte_at_a_time(guest):
    message = encode_question("slow-writer.test")
    with guest.net.connect(guest.gateway, 53) as connection:
        for byte in struct.pack("!H", len(message)) + message:
            connection.send(bytes([byte]))
        assert Answer(receive_message(connection)).addresses == [SERVER]


def test_only_the_sandbox_itself_is_answered(lab, guest):  # noqa: F811
    other = lab.guest()
    try:
        for net_of in (other, None):
            net = net_of.net if net_of else lab.world
            with net.socket(socket.SOCK_DGRAM) as one:
                one.settimeout(0.3)
                one.connect((guest.gateway, 53))
                with pytest.raises(OSError):
                    one.send(encode_question("not-mine.test"))
                    one.recv(4096)
        assert not lab.resolver.asked("not-mine.test")
    finally:
        other.end()


def test_from_another_address_of_its_own(lab, guest):  # noqa: F811
    """An address that it gives itself is not the one that it was given."""
    guest.output("ip address add 10.200.0.130/32 dev eth0")
    with guest.net.socket(socket.SOCK_DGRAM) as one:
        one.bind(("10.200.0.130", 0))
        one.settimeout(0.3)
        one.sendto(encode_question("another-address.test"), (guest.gateway, 53))
        with pytest.raises(OSError):
            one.recv(4096)
    guest.output("ip address delete 10.200.0.130/32 dev eth0")
    assert not lab.resolver.asked("another-address.test")


def answers_to(guest, name):
    answer = guest.ask(name, timeout=7)
    return answer.addresses if answer else None


@pytest.mark.parametrize("by_renaming", [True, False])
def test_resolv_conf_changes(lab, guest, by_renaming):  # noqa: F811
    new = DnsServer(lab.world, "8.8.4.4", good="5.5.5.5")
    assert answers_to(guest, "before.test") == [SERVER]
    lab.set_resolvers("8.8.4.4", by_renaming=by_renaming)
    wait_for(lambda: answers_to(guest, "after.test") == ["5.5.5.5"], "an answer of the new resolver", 5)
    lab.set_resolvers(RESOLVER, RESOLVER_2, by_renaming=by_renaming)
    wait_for(lambda: answers_to(guest, "back.test") == [SERVER], "an answer of the old resolver", 5)
    new.close()


def test_a_stub_resolver_on_the_hosts_loopback(lab, guest):  # noqa: F811
    stub = DnsServer(lab.host, "127.0.0.53", good="5.5.5.6")
    lab.set_resolvers("127.0.0.53")
    wait_for(lambda: answers_to(guest, "stub.test") == ["5.5.5.6"], "an answer of the stub", 5)
    assert {q.source[0] for q in stub.questions} <= {"127.0.0.1", "127.0.0.53"}
    # The sandbox itself does not reach it.
    assert guest.ask("direct.test", server="127.0.0.53", timeout=0.3) is None
    lab.set_resolvers(RESOLVER, RESOLVER_2)
    wait_for(lambda: answers_to(guest, "back-again.test") == [SERVER], "an answer of the old resolver", 5)
    stub.close()


def test_the_forwarder_is_killed(lab, guest):  # noqa: F811
    del lab
    for number in range(2):
        pid = guest.helper("dns")
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), "the end of the forwarder")
        name = f"after-kill-{number}.test"
        wait_for(lambda: answers_to(guest, name) == [SERVER], "an answer after the forwarder was killed", 10)
        assert guest.helper("dns") != pid
    assert guest.output("echo alive") == "alive\n"
    assert guest.ask("tcp-after-kill.test", tcp=True).addresses == [SERVER]


def torture(guest, *words):
    command = ("/usr/bin/python3", "-B", TORTURE, *words)
    return guest.net.call(*command)


if TORTURE.exists():

    def test_torture_by_a_client(guest):
        text = torture(guest, "client", guest.gateway, 53)
        assert re.search(r"still alive: rcode 0 .*1:1\.2\.3\.4", text), text
        rates = [float(rate) for rate in re.findall(r"\(x([\d.]+)\)", text)]
        assert max(rates) <= 3, text
        assert re.search(r"^QR set \(reflection\) +silent", text, re.MULTILINE), text

    def test_torture_by_slow_connections(lab, guest):  # noqa: F811
        other = lab.guest()
        text = torture(guest, "slowloris", guest.gateway, 53, 500)
        assert re.search(r"udp: rcode 0 ", text), text
        assert other.ask("other-of-slow.test").addresses == [SERVER]
        other.end()
        dns = guest.helper("dns")
        assert len(os.listdir(f"/proc/{dns}/fd")) < 128
        wait_for(lambda: guest.ask("tcp-after-slow.test", tcp=True, timeout=1), "a connection that is served", 40)

    NASTY = """wrongq wrongid wrongcase twoq noq loop fwdptr long63 lab64 trunc rdover rdshort many hdr empty query nul
    dup self big tc priv4 meta loop0 mapped priv6 nat64 https cname mix""".split()
    NEVER = re.compile(
        r"6\.6\.6\.6|192\.168\.|169\.254\.|127\.0\.0\.|\b10\.0\.0\.|:0\.0\.0\.0|::ffff:|fd00::|fe80::|64:ff9b"
    )

    def test_torture_by_a_resolver(lab, guest):  # noqa: F811
        nasty = ["/usr/bin/python3", "-B", TORTURE, "upstream", "8.8.4.4", "53"]
        enter = ["nsenter", f"--net={lab.world.path}", "--"]
        resolver = subprocess.Popen([*map(str, enter + nasty)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            lab.set_resolvers("8.8.4.4")
            wait_for(lambda: answers_to(guest, "ok.test") == ["8.8.4.4"], "an answer of the nasty resolver", 10)
            said = {}
            threads = []

            def ask(name, kind):
                began = time.monotonic()
                text = torture(guest, "ask", guest.gateway, 53, f"{name}.test", kind)
                said[name, kind] = text, time.monotonic() - began

            for name in NASTY:
                for kind in ("A", "AAAA"):
                    threads.append(threading.Thread(target=ask, args=(name, kind)))
                    threads[-1].start()
                    if len(threads) % 8 == 0:
                        threads[-1].join()
            for thread in threads:
                thread.join()
            assert len(said) == 2 * len(NASTY)
            bad = {key: text for key, (text, _) in said.items() if NEVER.search(text)}
            assert bad == {}
            assert "rcode 0 " in said["tc", "A"][0] and "8.8.4.4" in said["tc", "A"][0], said["tc", "A"]
        finally:
            resolver.kill()
            resolver.wait()
            lab.set_resolvers(RESOLVER, RESOLVER_2)
        wait_for(lambda: answers_to(guest, "good-again.test") == [SERVER], "an answer of the good resolver", 10)


def test_no_network_has_no_forwarder(lab):  # noqa: F811
    job = lab.runner.run("--network-mode", "none", "--user", "root", "--", "sh", "-c", "ip -o link; ls /sys/class/net")
    assert job.status == 0, job
    assert re.fullmatch(rb"1: lo: .*\nlo\n", job.stdout), job
    running = lab.runner.start("--network-mode", "none", "--stdin", "--", "cat")
    keeper = running.helper("keeper")
    running.wait_state("running")
    children = pathlib.Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    names = {pathlib.Path(f"/proc/{p}/comm").read_text().strip() for p in children}
    assert "ermite-dns" not in names and "ermite-relay" not in names
    running.close_stdin()
    assert running.wait().status == 0


def test_a_connection_is_closed_after_its_time(idle):
    """They were opened when the module began."""
    connections, since = idle
    for each in connections:
        each.settimeout(max(CONNECTION_S + 2 - (time.monotonic() - since), 0.1))
        assert is_closed(each)
        each.close()
