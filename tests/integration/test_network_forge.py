"""Guest forge access: one name, one port, and nothing else of the server behind it."""

import subprocess

import pytest

from conftest import wait_for
from netlab import FORGE, HOST_PUBLIC, LAN_HOST, SERVER, lab  # noqa: F401
from world import A, AAAA, TXT, HttpServer

FORGE_NAME = "forge.example.test"
PORT = 3000
TARGET_PORT = 4000
ORIGIN = f"http://{FORGE_NAME}:{PORT}"
ON = ("--guest-forge", "1", "--url", ORIGIN, "--insecure-http", "1")
CURL = "curl --silent --show-error --fail --max-time 10"


@pytest.fixture(scope="module")
def repositories(lab):  # noqa: F811
    folder = lab.directory / "repositories"
    make = f"""
    git init --quiet --initial-branch main {folder}/work
    cd {folder}/work
    head -c 2000000 /dev/urandom >random
    git add random
    git -c user.name=lab -c user.email=lab@example.test commit --quiet --message first
    git clone --quiet --bare . {folder}/project.git
    git -C {folder}/project.git config http.receivepack true
    git rev-parse HEAD
    """
    lab.commit = subprocess.run(["sh", "-euc", make], check=True, capture_output=True, text=True).stdout.strip()
    return folder


@pytest.fixture(scope="module")
def relayed(lab, repositories):  # noqa: F811
    """With a target: a server on the host's loopback, where no sandbox could get by itself."""
    lab.forge = lab.serve(HttpServer(lab.host, "127.0.0.1", TARGET_PORT, "forge", repositories))
    return lab.guest(*ON, "--guest-forge-target", f"127.0.0.1:{TARGET_PORT}")


@pytest.fixture(scope="module")
def direct(lab, repositories):  # noqa: F811
    """Without: a service that listens on the gateway's address itself."""
    guest = lab.guest(*ON)
    gateway = lab.gateway()
    lab.serve(HttpServer(gateway, guest.gateway, PORT, "service", repositories))
    gateway.close()
    return guest


@pytest.fixture(params=["relayed", "direct"])
def guest(lab, request):  # noqa: F811
    del lab
    return request.getfixturevalue(request.param)


def test_name_of_the_forge(lab, guest):  # noqa: F811
    asked = len(lab.resolver.asked(FORGE_NAME))
    for over_tcp in (False, True):
        answer = guest.ask(FORGE_NAME, A, tcp=over_tcp)
        assert (answer.code, answer.addresses) == (0, [guest.gateway])
    assert guest.ask(FORGE_NAME.upper()).addresses == [guest.gateway]
    for kind in (AAAA, TXT, 15, 65, 255):
        answer = guest.ask(FORGE_NAME, kind)
        assert (answer.code, answer.records) == (0, [])
    assert guest.ask("www.example.test").addresses == [SERVER]
    assert guest.ask(f"other.{FORGE_NAME}").addresses == [SERVER]
    assert len(lab.resolver.asked(FORGE_NAME)) == asked


def test_http_and_git(lab, guest):  # noqa: F811
    answer = guest.output(f"{CURL} {ORIGIN}/").split()
    assert answer[0] in ("forge", "service") and answer[2] == f"{FORGE_NAME}:{PORT}"
    script = f"""
    cd $(mktemp -d)
    git clone --quiet {ORIGIN}/git/project.git p
    cd p
    git rev-parse HEAD
    git -c user.name=a -c user.email=b commit --quiet --allow-empty --message $$
    git push --quiet origin HEAD:refs/heads/of-$(date +%s%N)
    git ls-remote --heads origin | wc -l
    """
    commit, heads = guest.output(script).split()
    assert commit == lab.commit
    assert int(heads) >= 2


def test_big_transfers(guest):
    size = 32 << 20
    form = "--output /dev/null --write-out '%{size_download}\\n'"
    assert guest.output(f"{CURL} {form} {ORIGIN}/bulk/{size}") == f"{size}\n"
    upload = f"truncate -s {size} /tmp/bulk; {CURL} --upload-file /tmp/bulk"
    assert guest.output(f"{upload} {ORIGIN}/upload") == f"{size}\n"


def test_many_connections_at_once(guest):
    script = f"""
    for i in $(seq 20); do {CURL} {ORIGIN}/bulk/1000000 | wc -c & done
    wait
    """
    assert guest.output(script).split() == ["1000000"] * 20


def test_nothing_else_of_the_same_host(lab, guest):  # noqa: F811
    listeners = [lab.host.listen("0.0.0.0", port) for port in (PORT, TARGET_PORT + 2)]
    ports = (22, 53, 80, 443, PORT - 1, PORT, PORT + 1, TARGET_PORT, TARGET_PORT + 2)
    places = [(address, port) for port in ports for address in (guest.gateway, LAN_HOST, HOST_PUBLIC)]
    assert guest.reached(places) == {(guest.gateway, 53), (guest.gateway, PORT)}
    for listener in listeners:
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.close()


def test_another_sandbox_is_not_let_in(lab, guest):  # noqa: F811
    without = lab.guest()
    try:
        for address in (guest.gateway, without.gateway):
            assert not without.can_connect(address, PORT)
        assert without.ask(FORGE_NAME).addresses == [FORGE]
    finally:
        without.end()
    assert not lab_world_connects(lab, guest.gateway)


def lab_world_connects(lab, address):  # noqa: F811
    try:
        lab.world.connect(address, PORT, 0.3).close()
    except OSError:
        return False
    return True


def test_it_is_told(guest):
    line = f"guest forge access: sandboxes may reach {ORIGIN}".encode()
    assert guest.running.stderr.bytes.count(line) == 1, bytes(guest.running.stderr.bytes)


def test_variables_of_the_job(lab):  # noqa: F811
    """Those that hold the URL of the server are rewritten to the origin that sandboxes reach."""
    names = ("GITHUB_SERVER_URL", "GITHUB_API_URL", "GITHUB_GRAPHQL_URL")
    values = (f"{ORIGIN}", f"{ORIGIN}/api/v1", f"{ORIGIN}/api/graphql")
    words = [word for name, value in zip(names, values) for word in ("--env", f"{name}={value}")]
    job = lab.runner.run(*ON, "--guest-forge-target", f"127.0.0.1:{TARGET_PORT}", *words, "--", "env")
    assert job.status == 0, job
    for name, value in zip(names, values):
        assert f"{name}={value}\n".encode() in job.stdout


def test_target_that_does_not_answer(lab):  # noqa: F811
    guest = lab.guest(*ON, "--guest-forge-target", "127.0.0.1:4999")
    try:
        assert guest.run("curl", "--silent", "--max-time", "5", f"{ORIGIN}/").status in (7, 52, 56)
        server = HttpServer(lab.host, "127.0.0.1", 4999, "late")
        wait_for(lambda: guest.sh(f"{CURL} {ORIGIN}/").output.startswith("late"), "an answer of the target", 10)
        server.close()
    finally:
        guest.end()


REFUSED = {
    "an address": ("http://93.184.216.34:3000", "1", ("93.184.216.34",)),
    "an IPv6 address": ("http://[2001:db8::1]:3000", "1", ("2001:db8::1",)),
    "a path": (f"{ORIGIN}/path", "1", ("path",)),
    "a name that does not resolve": ("http://nowhere.invalid:3000", "1", ("nowhere.invalid",)),
    "no encryption": (ORIGIN, "0", ("INSECURE_HTTP",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_at_start(lab, name):  # noqa: F811
    url, insecure, words = REFUSED[name]
    job = lab.runner.run("--guest-forge", "1", "--url", url, "--insecure-http", insecure, "--", "echo", "ran")
    assert (job.status, job.stdout) == (125, b""), job
    for word in words:
        assert word.encode() in job.stderr, job


def test_off_is_off(lab):  # noqa: F811
    guest = lab.guest("--url", ORIGIN, "--insecure-http", "1")
    try:
        assert not guest.can_connect(guest.gateway, PORT)
        assert guest.ask(FORGE_NAME).addresses == [FORGE]
        assert b"guest forge access" not in guest.running.stderr.bytes
    finally:
        guest.end()
