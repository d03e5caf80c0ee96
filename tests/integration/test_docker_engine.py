"""ermite-docker against a daemon that answers as it likes: every command ends in time, with the reason in a sentence.

The daemon is a thread with a Unix socket. `answers` says what a request gets, by method and a part of its path; what it
does not name gets the answer of a daemon where all is well."""

import array
import ctypes
import dataclasses
import io
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import tarfile
import threading
import time

import pytest

from conftest import BUILD, is_sanitized

PROGRAM = BUILD / "src" / "main" / "ermite-docker"
ID = "er1a2b3c4d"
IMAGE_ID = "sha256:" + "0123456789abcdef" * 4
LABELS = {"dev.bnema.ermite-runner.job": ID, "dev.bnema.ermite-runner.store": "/store"}
SOURCE = "ab" * 32
LIMIT_S = 100
MEMORY_KIB = (2048 if is_sanitized() else 400) * 1024
ANSWER_MAX = 4 << 20
LONGEST_CHUNK = 1 << 20


def reply(status, body=b"", headers=()):
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", "Api-Version: 1.41", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def chunked(*pieces):
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


SILENCE = object()


@dataclasses.dataclass
class Drip:
    """A byte now and then, and never an end."""

    answer: bytes


@dataclasses.dataclass
class Flood:
    """Bytes without an end."""

    answer: bytes


@dataclasses.dataclass
class Cut:
    """The connection ends behind the answer."""

    answer: bytes


INFO = {
    "ServerVersion": "26.1.5",
    "OSType": "linux",
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    "Runtimes": {"runc": {}},
}
IMAGE = {"Id": IMAGE_ID, "Config": {"Labels": {"dev.bnema.ermite-runner.image": SOURCE}, "Volumes": None}}
LINE = {"status": "Downloading", "id": "aabb", "progressDetail": {"current": 50, "total": 100}}
GOOD = {
    "GET /_ping": reply(200, b"OK"),
    "GET /info": reply(200, INFO),
    "GET /images/": reply(200, IMAGE),
    "POST /images/create?fromImage": chunked(json.dumps(LINE).encode() + b"\r\n", b'{"status":"done"}\r\n'),
    "POST /images/create?fromSrc": chunked(json.dumps({"status": IMAGE_ID}).encode() + b"\r\n"),
    "GET /containers/json": reply(200, [{"Id": "c1", "Labels": LABELS}]),
    "GET /volumes": reply(200, {"Volumes": [{"Name": "v1", "Labels": LABELS}]}),
    "GET /networks": reply(200, [{"Id": "n1", "Labels": LABELS}]),
    "DELETE /": reply(204),
    "POST /containers/c1/wait": reply(200, {"StatusCode": 0}),
    "POST /containers/create": reply(201, {"Id": "c1", "Warnings": []}),
    f"POST /containers/{ID}/start": reply(204),
    f"GET /containers/{ID}/json": reply(200, {"State": {"Running": True, "ExitCode": 0, "Error": ""}}),
}


@dataclasses.dataclass
class Request:
    name: str  # "GET /info", without the version
    body: bytes
    complete: bool


class Daemon:
    """Answers on one socket, each connection in a thread of its own."""

    def __init__(self, directory):
        self.socket = directory / "docker.sock"
        self.answers = {}
        self.requests = []
        self.ended = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.socket))
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def stop(self):
        self.ended.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def answer(self, name):
        for table in (self.answers, GOOD):
            for start, answer in table.items():
                if name.startswith(start):
                    return answer.pop(0) if isinstance(answer, list) else answer
        return reply(404, {"message": f"page not found: {name}"})

    def serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            try:
                while self.one(connection, stream):
                    pass
            except OSError:
                pass  # the other side had enough

    def one(self, connection, stream):
        """Takes one request and answers it. Returns whether the connection goes on."""
        line = stream.readline().decode()
        if not line:
            return False
        method, path, _ = line.split(" ")
        headers = {}
        while (line := stream.readline().decode().strip()):
            key, _, value = line.partition(": ")
            headers[key.lower()] = value
        name = f"{method} {re.sub('^/v1[.][0-9]+', '', path)}"
        body, complete = self.body(stream, headers)
        self.requests.append(Request(name, body, complete))
        return complete and self.send(connection, self.answer(name))

    def body(self, stream, headers):
        if headers.get("transfer-encoding") != "chunked":
            length = int(headers.get("content-length", 0))
            body = stream.read(length)
            return body, len(body) == length
        pieces = []
        while (line := stream.readline().strip()):
            length = int(line, 16)
            assert length <= LONGEST_CHUNK
            pieces.append(stream.read(length))
            stream.readline()
            if length == 0:
                return b"".join(pieces), True
        return b"".join(pieces), False

    def send(self, connection, answer):
        if answer is SILENCE:
            self.ended.wait()
            return False
        if isinstance(answer, Drip):
            while not self.ended.wait(0.05):
                connection.sendall(answer.answer[:1])
                answer = Drip(answer.answer[1:] + answer.answer[:1])
            return False
        if isinstance(answer, Flood):
            while not self.ended.is_set():
                connection.sendall(answer.answer)
            return False
        connection.sendall(answer.answer if isinstance(answer, Cut) else answer)
        return not isinstance(answer, Cut)

    def names(self):
        return [r.name for r in self.requests]


@pytest.fixture
def daemon(tmp_path):
    it = Daemon(tmp_path)
    yield it
    it.stop()


class Choice(ctypes.Structure):
    _fields_ = [("socket", ctypes.c_char * 108), ("image", ctypes.c_char * 72), ("sysbox", ctypes.c_bool)]


class Plan(ctypes.Structure):
    """struct docker_plan."""

    _fields_ = [
        ("choice", Choice),
        ("id", ctypes.c_char * 11),
        ("job_id", ctypes.c_char * 256),
        ("store", ctypes.c_char * 512),
        ("guest_dir", ctypes.c_char * 512),
        ("door_dir", ctypes.c_char * 512),
        ("memory_bytes", ctypes.c_uint64),
        ("cpus", ctypes.c_uint32),
        ("pids", ctypes.c_uint32),
        ("capabilities", ctypes.c_uint64),
        ("full", ctypes.c_bool),
    ]


PLAN, KNOCKED, FAILED = 1, 2, 3
HEAD = struct.Struct("<IIQQII")


@dataclasses.dataclass
class Outcome:
    status: int
    stdout: str
    stderr: str
    memory_kib: int
    told: str = ""  # to the keeper

    @property
    def reason(self):
        """Why it failed: probe gives it as an answer."""
        trouble = [line for line in self.stdout.splitlines() if line.startswith("trouble ")]
        if trouble:
            return trouble[-1]
        return self.stderr.strip().splitlines()[-1] if self.status else ""


class Helper:
    """ermite-docker, started as the runner and the keeper start it."""

    def __init__(self, words, channel=None):
        # The most memory that the helper has is told together with what we have had when it was started.
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        fds = {"pass_fds": [channel.fileno()]} if channel else {}
        at = f"exec 3<&{channel.fileno()}; " if channel else "exec 3</dev/null; "
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", at + 'exec "$@"', "-", str(PROGRAM), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            **fds,
        )
        self.outputs = {}
        self.readers = [self.reader("stdout"), self.reader("stderr")]

    def reader(self, name):
        def read():
            self.outputs[name] = getattr(self.process, name).read().decode()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def end(self):
        """Waits for the end, which comes in time or is a fault."""
        pidfd = os.pidfd_open(self.process.pid)
        timer = threading.Timer(LIMIT_S, self.process.kill)
        timer.start()
        _, status, usage = os.wait4(self.process.pid, 0)
        timer.cancel()
        os.close(pidfd)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        for thread in self.readers:
            thread.join(LIMIT_S)
        return Outcome(self.process.returncode, self.outputs["stdout"], self.outputs["stderr"], usage.ru_maxrss)


def call(*words):
    return Helper(words).end()


class Keeper:
    """The other end of the channel of `run`. Used in a with, it is gone at the end."""

    def __init__(self, daemon, **changes):
        values = {
            "choice": Choice(str(daemon.socket).encode(), IMAGE_ID.encode(), False),
            "id": ID.encode(),
            "job_id": b"task 7",
            "store": b"/store",
            "guest_dir": b"/guest",
            "door_dir": b"/door",
            "memory_bytes": 1 << 30,
            "cpus": 2,
            "pids": 500,
            "capabilities": 0,
            "full": True,
        }
        self.channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.helper = Helper(["run"], far)
        far.close()
        self.plan = Plan(**{**values, **changes})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        if self.helper.process.returncode is None:
            self.helper.end()

    def send(self, kind, fd):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.channel.sendmsg([HEAD.pack(kind, 0, 0, 0, 0, 0)], rights)

    def send_plan(self, content=None):
        fd = os.memfd_create("plan")
        os.write(fd, bytes(self.plan) if content is None else content)
        os.lseek(fd, 0, os.SEEK_SET)
        self.send(PLAN, fd)
        os.close(fd)

    def send_knock(self):
        self.channel.send(HEAD.pack(KNOCKED, 0, 0, 0, 0, 0))

    def end(self):
        outcome = self.helper.end()
        message = self.channel.recv(4096)
        if message:
            kind, _, _, _, length, _ = HEAD.unpack(message[: HEAD.size])
            assert kind == FAILED and length == len(message) - HEAD.size
            outcome.told = message[HEAD.size :].decode()
        return outcome


def run(daemon):
    """`run` up to its end; the knock waits in the channel, as for a container that is quick."""
    with Keeper(daemon) as keeper:
        keeper.send_plan()
        keeper.send_knock()
        return keeper.end()


@pytest.fixture(scope="session")
def image(tmp_path_factory):
    """A small image with what a tar can lose."""
    directory = tmp_path_factory.mktemp("image")
    root = directory / "root"
    root.mkdir()
    (root / "hello").write_text("hello")
    os.chown(root / "hello", 1000, 70000)
    (root / "tool").write_bytes(b"x" * 3_000_000)
    (root / "tool").chmod(0o4755)
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    os.setxattr(root / "tool", "security.capability", capability)
    os.link(root / "tool", root / "same")
    os.symlink("hello", root / "link")
    (root / ("n" * 200)).write_text("long")
    make_image(directory, root)
    shutil.rmtree(root)
    return directory


def make_image(directory, root):
    words = ["mkfs.ext4", "-q", "-F", "-d", str(root), str(directory / "base.ext4"), "16M"]
    subprocess.run(words, check=True, capture_output=True)
    (directory / "image.json").write_text(json.dumps({"format": 1, "sha256": SOURCE}))


# Each command, and the requests that it makes when all is well.
COMMANDS = {
    "probe": ("GET /_ping", "GET /info", "GET /images/"),
    "pull": ("GET /_ping", "POST /images/create?fromImage", "GET /images/"),
    "import": ("GET /_ping", "POST /images/create?fromSrc"),
    "remove": ("GET /_ping", "GET /containers/json", "GET /volumes", "GET /networks", "DELETE /"),
    "list": ("GET /_ping", "GET /containers/json", "GET /volumes", "GET /networks"),
    "run": ("GET /_ping", "GET /images/", "POST /containers/create", f"POST /containers/{ID}/start"),
}


def start(command, daemon, image):
    words = {
        "probe": ["name:tag"],
        "pull": ["name:tag"],
        "import": ["name:tag", image],
        "remove": [ID],
        "list": ["/store"],
    }[command]
    return Helper([command, daemon.socket, *words])


def do(command, daemon, image):
    return run(daemon) if command == "run" else start(command, daemon, image).end()


PLACES = [(command, request) for command, requests in COMMANDS.items() for request in requests]

# What is no HTTP, or ends too soon.
BROKEN = {
    "garbage": Cut(b"220 smtp ready\r\n\r\n"),
    "no status": Cut(b"HTTP/1.1 ok\r\n\r\n"),
    "nothing": Cut(b""),
    "half a head": Cut(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "cut": Cut(b'HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: 100\r\n\r\n{"Id":'),
    "cut chunk": Cut(b'HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{"Id":'),
    "bad chunk": Cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n"),
    "endless head": Flood(b"X: " + b"y" * 5000 + b"\r\n"),
}

# What is HTTP, and no answer to the question.
WRONG = {
    "malformed": reply(200, b'{"Id": '),
    "not UTF-8": reply(200, b'{"Id": "\xff"}'),
    "twice": reply(200, b'{"Id": "a", "Id": "b"}'),
    "deep": reply(200, b"[" * 100_000),
    "text": reply(200, b"<html></html>"),
    "number": reply(200, b"7"),
    "wrong types": reply(200, {"Id": 7, "OSType": [], "ServerVersion": {}, "Volumes": 1, "status": 7, "State": 0}),
    "wrong elements": reply(200, [7]),
    "an error in words": reply(200, {"error": {"a": 1}, "message": 8, "Volumes": 7, "status": 7}),
}


@pytest.mark.parametrize("command, request_name", PLACES)
def test_broken_answers(daemon, image, command, request_name):
    for name, answer in BROKEN.items():
        daemon.answers = {request_name: answer}
        outcome = do(command, daemon, image)
        assert outcome.status == (0 if command == "probe" else 1), (name, outcome)
        assert "Docker daemon" in outcome.reason, (name, outcome)
        assert outcome.memory_kib < MEMORY_KIB, (name, outcome)


@pytest.mark.parametrize("command, request_name", PLACES)
def test_refusals(daemon, image, command, request_name):
    daemon.answers = {request_name: reply(500, {"message": "the disk\nis full\x1b[2J"})}
    outcome = do(command, daemon, image)
    assert outcome.status == (0 if command == "probe" else 1), outcome
    assert "Docker says: the disk\\x0ais full\\x1b[2J (HTTP 500)" in outcome.reason, outcome
    if command == "run":
        assert outcome.told == outcome.reason


# The body of these is not looked at.
UNREAD = ("GET /_ping", "DELETE /", "POST /containers/create", f"POST /containers/{ID}/start")
READ = [(command, request) for command, request in PLACES if request not in UNREAD]


@pytest.mark.parametrize("command, request_name", READ)
def test_wrong_answers(daemon, image, command, request_name):
    for name, answer in WRONG.items():
        if (command, request_name) == ("pull", "GET /images/") and b"200" in answer[:20] and is_json(answer):
            continue  # that it is there is all that matters
        daemon.answers = {request_name: answer}
        outcome = do(command, daemon, image)
        if is_fine(command, request_name, name):
            continue
        assert outcome.reason, (name, outcome)
        assert outcome.status == (0 if command == "probe" else 1), (name, outcome)
        assert outcome.memory_kib < MEMORY_KIB, (name, outcome)


def is_json(answer):
    try:
        value = json.loads(answer.partition(b"\r\n\r\n")[2])
    except (ValueError, RecursionError):
        return False
    return value is not None


def is_fine(command, request_name, name):
    """An object without what we look for is an image without volumes to `run`."""
    return (command, request_name) == ("run", "GET /images/") and name in ("wrong types", "an error in words")


@pytest.mark.parametrize("command, request_name", PLACES)
def test_large_answers(daemon, image, command, request_name):
    """More than is taken, with the length told and without; and as much as may be, of what takes most memory."""
    endless = b"HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\n\r\n" + b" " * (ANSWER_MAX + 4096)
    for name, answer in {
        "long": reply(200, b" " * (ANSWER_MAX + 1)),
        "endless": Cut(endless),
        "zeros": reply(200, b"[" + b"0," * (ANSWER_MAX // 2 - 4) + b"0]"),
    }.items():
        if name == "zeros" and (command, request_name) not in READ or is_found(command, request_name, name):
            continue
        daemon.answers = {request_name: answer}
        outcome = do(command, daemon, image)
        assert outcome.reason, (name, outcome)
        assert name == "zeros" or f"longer than {ANSWER_MAX} bytes" in outcome.reason, (name, outcome)
        assert outcome.memory_kib < MEMORY_KIB, (name, outcome)


def is_found(command, request_name, name):
    return name == "zeros" and (command, request_name) == ("pull", "GET /images/")


def test_silence(daemon, image):
    """All commands wait beside each other for a daemon that says nothing, or a byte now and then."""
    for answer in (SILENCE, Drip(b"HTTP/1.1 200 OK\r\nX: ")):
        daemon.answers = {"GET /_ping": answer}
        begin = time.monotonic()
        helpers = {c: start(c, daemon, image) for c in COMMANDS if c != "run"}
        with Keeper(daemon) as keeper:
            keeper.send_plan()
            outcomes = {command: helper.end() for command, helper in helpers.items()}
            outcomes["run"] = keeper.end()
        for command, outcome in outcomes.items():
            assert "does not answer (/_ping)" in outcome.reason, (command, outcome)
            assert outcome.status == (0 if command == "probe" else 1), (command, outcome)
        assert "does not answer" in outcomes["run"].told
        assert time.monotonic() - begin > 9


def test_no_daemon(tmp_path, image):
    gone = tmp_path / "gone.sock"
    refused = tmp_path / "refused.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(refused))
    for path, words in ((gone, f"the socket {gone} does not exist"), (refused, "is not running")):
        outcome = call("probe", path, "name")
        assert outcome.status == 0 and words in outcome.reason, outcome
        for command, *arguments in (["pull", "a"], ["import", "a", image], ["remove", ID], ["list", "/store"]):
            outcome = call(command, path, *arguments)
            assert outcome.status == 1 and words in outcome.reason, outcome


def test_misuse(daemon):
    for words in (
        [],
        ["other"],
        ["probe", daemon.socket],
        ["probe", daemon.socket, "../x"],
        ["probe", daemon.socket, ""],
        ["pull", daemon.socket, "a b"],
        ["pull", daemon.socket, IMAGE_ID],
        ["import", daemon.socket, "a@" + IMAGE_ID, "/nowhere"],
        ["import", daemon.socket, "a", "relative"],
        ["import", daemon.socket, "a", "/nowhere"],
        ["remove", daemon.socket, "er1a2b3c4"],
        ["remove", daemon.socket, "er1A2b3c4d"],
        ["remove", daemon.socket, "../../images"],
        ["list", daemon.socket, "/s", "x"],
        ["run", "x"],
    ):
        outcome = call(*words)
        assert outcome.status == 1 and outcome.reason and not outcome.stdout, (words, outcome)
    assert daemon.requests == []


def test_probe(daemon):
    outcome = call("probe", daemon.socket, "registry.example:5000/a/b:c")
    assert outcome.stdout == f"version 26.1.5\nimage {IMAGE_ID}\nsource {SOURCE}\n", outcome
    assert daemon.names() == ["GET /_ping", "GET /info", "GET /images/registry.example:5000/a/b:c/json"]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"Runtimes": {"runc": {}, "sysbox-runc": {}}}, "\nruntime sysbox-runc\n"),
        ({"OSType": "windows"}, "\ntrouble the Docker daemon runs containers of windows, not of Linux"),
        ({"SecurityOptions": ["name=seccomp", "name=rootless"]}, "\ntrouble the Docker daemon is a rootless one"),
        ({"SecurityOptions": ["name=userns"]}, "\ntrouble the Docker daemon maps users (userns-remap)"),
        ({"SecurityOptions": ["name=userns"], "Runtimes": {"sysbox-runc": {}}}, f"\nimage {IMAGE_ID}"),
        ({"SecurityOptions": None}, f"\nimage {IMAGE_ID}"),
        ({"SecurityOptions": [7]}, f"\nimage {IMAGE_ID}"),
        ({"ServerVersion": "9" * 100}, "version " + "9" * 31 + "\n"),
        ({"ServerVersion": "1\nimage x"}, "version 1\\x0aimage x\n"),
        ({"ServerVersion": "\n" * 31}, "version " + ("\\x0a" * 31)[:31] + "\n"),
    ],
)
def test_probe_info(daemon, change, said):
    daemon.answers = {"GET /info": reply(200, {**INFO, **change})}
    outcome = call("probe", daemon.socket, "name")
    assert outcome.status == 0 and said in outcome.stdout, outcome


def test_probe_image(daemon):
    daemon.answers = {"GET /images/": reply(404, {"message": "No such image: name"})}
    assert call("probe", daemon.socket, "name").stdout == "version 26.1.5\n"
    for config in (None, {}, {"Labels": None}, {"Labels": {"other": "x"}}):
        daemon.answers = {"GET /images/": reply(200, {"Id": IMAGE_ID, "Config": config})}
        assert call("probe", daemon.socket, "name").stdout == f"version 26.1.5\nimage {IMAGE_ID}\n"
    daemon.answers = {"GET /images/": reply(200, {**IMAGE, "Id": "sha256:../../x"})}
    assert "trouble the image name: the id is none" in call("probe", daemon.socket, "name").stdout


def test_probe_versions(daemon):
    for version, said in (("1.39", "too old"), ("1", "version that is none"), ("x", "version that is none")):
        daemon.answers = {"GET /_ping": reply(200).replace(b"1.41", version.encode())}
        assert said in call("probe", daemon.socket, "name").reason


def test_probe_another_root(daemon, tmp_path):
    """A daemon that sees other files than we do cannot mount ours."""
    root = tmp_path / "root"
    root.mkdir()
    steps = (
        'mount --bind "$0" "$0"',
        'cd "$0"',
        "mkdir usr proc socket program",
        "mount --rbind /usr usr",
        "ln -s usr/lib lib",
        "ln -s usr/lib64 lib64",
        "mount --rbind /proc proc",
        f"mount --bind {tmp_path} socket",
        f"mount --bind {PROGRAM.parent} program",
        f"exec chroot . /program/{PROGRAM.name} probe /socket/{daemon.socket.name} name",
    )
    mounts = " && ".join(steps)
    done = subprocess.run(["unshare", "--mount", "/bin/sh", "-c", mounts, root], capture_output=True, text=True)
    assert "trouble the Docker daemon has another root directory" in done.stdout, done


def test_pull(daemon):
    for reference, query in (
        ("debian", "fromImage=debian&tag=latest"),
        ("r.example:5000/a", "fromImage=r.example:5000/a&tag=latest"),
        ("r.example:5000/a:b", "fromImage=r.example:5000/a&tag=b"),
        ("a@" + IMAGE_ID, f"fromImage=a&tag={IMAGE_ID}"),
        ("a:b@" + IMAGE_ID, f"fromImage=a:b&tag={IMAGE_ID}"),
    ):
        outcome = call("pull", daemon.socket, reference)
        assert outcome.status == 0, outcome
        assert f"POST /images/create?{query}" in daemon.names()
        assert outcome.stderr.splitlines() == [f"pulling the image {reference}", f"pulling the image {reference}: 50 %"]


def test_pull_errors(daemon):
    for line, said in (
        ({"errorDetail": {"message": "manifest unknown"}, "error": "x"}, "Docker says: manifest unknown"),
        ({"error": "no space left"}, "Docker says: no space left"),
        ({"status": "Downloading", "id": 7}, "the member id is no string"),
        ({"status": "x", "progressDetail": {"current": "7"}}, "the member current is no integer"),
    ):
        daemon.answers = {"POST /images/create": chunked(json.dumps(LINE).encode() + b"\n", json.dumps(line).encode())}
        outcome = call("pull", daemon.socket, "name")
        assert outcome.status == 1 and said in outcome.reason, outcome
    many = b"".join(json.dumps({**LINE, "id": f"l{i}"}).encode() + b"\n" for i in range(2000))
    daemon.answers = {"POST /images/create": chunked(many)}
    assert call("pull", daemon.socket, "name").status == 0
    daemon.answers = {"GET /images/": reply(404, {"message": "No such image"})}
    assert "pulling the image name: Docker says: No such image" in call("pull", daemon.socket, "name").reason


def import_request(daemon):
    (request,) = [r for r in daemon.requests if r.name.startswith("POST")]
    return request


def test_import(daemon, image):
    outcome = call("import", daemon.socket, "r.example:5000/a/b:c", image)
    assert outcome.status == 0, outcome
    request = import_request(daemon)
    label = f"changes=LABEL%20dev.bnema.ermite-runner.image%3D{SOURCE}"
    assert request.name == f"POST /images/create?fromSrc=-&repo=r.example:5000/a/b&tag=c&{label}"
    with tarfile.open(fileobj=io.BytesIO(request.body)) as tar:
        members = {m.name: m for m in tar.getmembers()}
        assert set(members) == {".", "./hello", "./tool", "./same", "./link", "./" + "n" * 200}
        assert (members["./hello"].uid, members["./hello"].gid, members["./hello"].uname) == (1000, 70000, "")
        files = [members["./tool"], members["./same"]]
        assert sorted(m.islnk() for m in files) == [False, True]
        (tool,) = [m for m in files if not m.islnk()]
        assert tool.mode == 0o4755 and "SCHILY.xattr.security.capability" in tool.pax_headers
        assert members["./link"].linkname == "hello"
    lines = outcome.stderr.splitlines()
    assert lines[0] == "feeding the image r.example:5000/a/b:c to Docker"
    assert all(re.fullmatch(r"feeding the image .* to Docker: [0-9]+0 %", line) for line in lines[1:])


def test_import_of_a_damaged_image(daemon, image, tmp_path):
    """What tar cannot read is no image: the daemon does not hear the end of it."""
    broken = tmp_path / "broken"
    shutil.copytree(image, broken)
    words = ["debugfs", "-w", "-R", "clri hello", str(broken / "base.ext4")]
    subprocess.run(words, check=True, capture_output=True)
    outcome = call("import", daemon.socket, "a", broken)
    assert outcome.status == 1 and "tar ended with status 2" in outcome.reason, outcome
    assert not import_request(daemon).complete


def test_import_without_an_image(daemon, image, tmp_path):
    for text, said in (
        (None, "image.json: No such file"),
        ("{", "image.json: not the JSON"),
        ("{}", "the member sha256 is missing"),
        ('{"sha256": "x y"}', "the member sha256 is no SHA-256"),
        ('{"sha256": "%s"}' % SOURCE, "base.ext4: No such file"),
    ):
        if text is not None:
            (tmp_path / "image.json").write_text(text)
        outcome = call("import", daemon.socket, "a", tmp_path)
        assert outcome.status == 1 and said in outcome.reason, outcome
    daemon.answers = {"POST /images/create": chunked(b'{"errorDetail":{"message":"no space"},"error":"no space"}')}
    assert "import a: Docker says: no space" in call("import", daemon.socket, "a", image).reason
    daemon.answers = {"POST /images/create": chunked(b'{"status":"fine"}')}
    assert "does not tell the id" in call("import", daemon.socket, "a", image).reason


def test_remove(daemon):
    outcome = call("remove", daemon.socket, ID)
    assert (outcome.status, outcome.stdout) == (0, "container c1\nvolume v1\nnetwork n1\n")
    label = "%7B%22label%22:%5B%22dev.bnema.ermite-runner.job%3Der1a2b3c4d%22%5D%7D"
    assert daemon.names() == [
        "GET /_ping",
        f"GET /containers/json?all=1&filters={label}",
        "DELETE /containers/c1?force=1&v=1",
        f"GET /volumes?filters={label}",
        "DELETE /volumes/v1?force=1",
        f"GET /networks?filters={label}",
        "DELETE /networks/n1",
    ]


def test_remove_nothing(daemon):
    daemon.answers = {"GET /containers/json": reply(200, []), "GET /networks": reply(200, [])}
    for volumes in ({"Volumes": None}, {"Volumes": []}, {}):
        daemon.answers["GET /volumes"] = reply(200, volumes)
        outcome = call("remove", daemon.socket, ID)
        assert (outcome.status, outcome.stdout) == (0, "")
    assert not [name for name in daemon.names() if name.startswith("DELETE")]


def test_remove_what_goes_meanwhile(daemon):
    progress = reply(409, {"message": "removal of container c1 is already in progress"})
    gone = reply(404, {"message": "No such container: c1"})
    daemon.answers = {"DELETE /containers": gone}
    outcome = call("remove", daemon.socket, ID)
    assert outcome.status == 0
    assert "container" not in outcome.stdout, "another one removed it"
    daemon.answers = {"DELETE /containers": [progress, gone]}
    assert call("remove", daemon.socket, ID).status == 0
    assert "POST /containers/c1/wait?condition=removed" in daemon.names()
    daemon.answers = {"DELETE /containers": progress, "POST /containers/c1/wait": gone}
    assert call("remove", daemon.socket, ID).status == 0
    daemon.answers = {"DELETE /containers": progress}
    outcome = call("remove", daemon.socket, ID)
    assert outcome.status == 1 and f"{ID}: remove the container c1: Docker says: removal" in outcome.reason, outcome


def test_remove_hostile_names(daemon):
    for name in ("../images/x", "a/b", "", ".", "a?b", "a b", "x" * 256):
        daemon.answers = {"GET /containers/json": reply(200, [{"Id": name}])}
        outcome = call("remove", daemon.socket, ID)
        assert outcome.status == 1 and "what none can be named" in outcome.reason, outcome
    assert not [name for name in daemon.names() if name.startswith("DELETE")]


def test_list(daemon):
    others = [{"Labels": {"dev.bnema.ermite-runner.job": text}} for text in ("er00000002", "../x", "er0000000", ID)]
    others += [{"Labels": {}}, {"Labels": {"dev.bnema.ermite-runner.job": "er00000003\n"}}]
    daemon.answers = {"GET /networks": reply(200, others)}
    outcome = call("list", daemon.socket, 'a "b"')
    assert (outcome.status, outcome.stdout) == (0, f"{ID}\ner00000002\n"), outcome
    label = "%5C%22b%5C%22%22%5D%7D"
    assert daemon.names()[1].endswith(f"store%3Da%20{label}"), daemon.names()


def test_mounts_of_the_host(daemon):
    """The keeper's own mounts may hide the socket."""
    for command, argument in (("remove", ID), ("list", "/store")):
        script = f'mount -t tmpfs none "{daemon.socket.parent}" && exec "$@"'
        words = ["unshare", "--mount", "/bin/bash", "-c", script, "-"]
        words += [str(PROGRAM), command, str(daemon.socket), argument]
        hidden = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert hidden.returncode == 1 and "does not exist" in hidden.stderr, hidden
        words[4] = f"exec 3<&0; {words[4]}"
        with pathlib.Path("/proc/self/ns/mnt").open("rb") as mounts:
            found = subprocess.run(words, stdin=mounts, capture_output=True, text=True)
        assert found.returncode == 0, found


def test_run(daemon):
    with Keeper(daemon) as keeper:
        keeper.send_plan()
        keeper.send_knock()
        outcome = keeper.end()
    assert (outcome.status, outcome.told, outcome.stderr) == (0, "", "")
    assert daemon.names() == [
        "GET /_ping",
        f"GET /images/{IMAGE_ID}/json",
        f"POST /containers/create?name={ID}",
        f"POST /containers/{ID}/start",
    ]
    request = json.loads(daemon.requests[2].body)
    assert request["Image"] == IMAGE_ID and request["HostConfig"]["Privileged"] is True
    assert request["HostConfig"]["Memory"] == 1 << 30


def test_run_ends_with_the_keeper(daemon):
    with Keeper(daemon) as keeper:
        keeper.send_plan()
        keeper.channel.shutdown(socket.SHUT_RDWR)
        outcome = keeper.helper.end()
    assert outcome.status == 1 and "keeper is gone" in outcome.reason, outcome


def test_run_without_a_knock(daemon):
    running = {"State": {"Running": True, "ExitCode": 0, "Error": ""}}
    ended = {"State": {"Running": False, "ExitCode": 3, "Error": "no\nway"}}
    daemon.answers = {f"GET /containers/{ID}/json": [reply(200, running), reply(200, ended)]}
    with Keeper(daemon) as keeper:
        keeper.send_plan()
        outcome = keeper.end()
    assert outcome.status == 1
    assert outcome.told == "the container ended with status 3 before it knocked: no\\x0away", outcome


def test_run_conflict(daemon):
    daemon.answers = {"POST /containers/create": reply(409, {"message": "The container name is already in use"})}
    outcome = run(daemon)
    assert outcome.told == "create the container: Docker says: The container name is already in use (HTTP 409)"


def test_run_of_a_bad_plan(daemon):
    for content in (b"", b"x", bytes(ctypes.sizeof(Plan)), bytes(ctypes.sizeof(Plan) + 1)):
        with Keeper(daemon) as keeper:
            keeper.send_plan(content)
            outcome = keeper.end()
        assert outcome.status == 1 and "the plan of the container" in outcome.told, outcome
    for change in ({"id": b"er../../x"}, {"cpus": 0}, {"guest_dir": b"x"}, {"memory_bytes": 1 << 63}):
        with Keeper(daemon, **change) as keeper:
            keeper.send_plan()
            outcome = keeper.end()
        assert outcome.status == 1 and "the plan of the container" in outcome.told, outcome
    assert daemon.requests == []
