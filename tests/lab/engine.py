"""A Docker daemon of the tests' own, and a client that asks it without Docker's command line.

    daemon = Daemon(directory, run)    both directories are made, and go with remove()
    daemon.start()
    daemon.engine.get("/containers/json?all=1")

The daemon has no bridge and touches no firewall; everything of it lies in the two directories."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.parse

START_S = 60
ANSWER_S = 60
PROC = pathlib.Path("/proc")


class Connection(http.client.HTTPConnection):
    """One connection to a socket of this host."""

    def __init__(self, path):
        super().__init__("docker", timeout=ANSWER_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Engine:
    """Questions to the daemon at a socket."""

    def __init__(self, path):
        self.path = path

    def ask(self, method, target, body=None, headers=None):
        """The status and the body of the answer."""
        connection = Connection(self.path)
        headers = headers or {"Content-Type": "application/json"}
        try:
            connection.request(method, target, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, target):
        status, text = self.ask("GET", target)
        assert status == 200, (target, status, text)
        return json.loads(text)

    def post(self, target, body=None, **options):
        status, text = self.ask("POST", target, None if body is None else json.dumps(body), **options)
        assert status < 300, (target, status, text)
        return text

    def delete(self, target):
        status, text = self.ask("DELETE", target)
        assert status in (200, 204, 404), (target, status, text)

    def answers(self):
        try:
            return self.ask("GET", "/_ping")[0] == 200
        except OSError:
            return False

    def containers(self):
        return self.get("/containers/json?all=1")

    def inspect(self, name):
        return self.get(f"/containers/{name}/json")

    def image_id(self, reference):
        status, text = self.ask("GET", f"/images/{reference}/json")
        return json.loads(text)["Id"] if status == 200 else None

    def objects(self):
        """Everything that the daemon keeps, a line each, as in a list of what may be left behind."""
        containers = [f"container {c['Id']} {c['State']} {c['Names']}" for c in self.containers()]
        volumes = [f"volume {v['Name']}" for v in self.get("/volumes")["Volumes"] or []]
        networks = [f"network {n['Name']}" for n in self.get("/networks")]
        images = [f"image {i['Id']} {i['RepoTags']}" for i in self.get("/images/json?all=1")]
        return sorted([*containers, *volumes, *networks, *images])


def processes_below(directory):
    """The pids of processes that were started with a path in this directory: daemons, shims and what they run."""
    for entry in PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in (entry / "cmdline").read_bytes():
                yield int(entry.name)


def children_of(pid):
    with contextlib.suppress(OSError):
        tasks = (PROC / str(pid) / "task").glob("*/children")
        return [int(word) for task in tasks for word in task.read_text().split()]
    return []


def wait_gone(pids, limit_s=START_S):
    """Waits until none of these processes runs any more; a zombie that its parent has not reaped does not run."""
    deadline = time.monotonic() + limit_s
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"some of {pids} still run"
        time.sleep(0.02)


def is_running(pid):
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class Daemon:
    """dockerd with its containerd. prefix are words before the program, as nsenter is."""

    def __init__(self, directory, run, prefix=(), settings=None):
        self.directory, self.run = pathlib.Path(directory), pathlib.Path(run)
        for place in (self.directory, self.run):
            place.mkdir(mode=0o700)
        self.socket = self.directory / "docker.sock"
        self.engine = Engine(self.socket)
        self.address = f"unix://{self.socket}"
        self.log = self.directory / "log"
        self.prefix = [str(word) for word in prefix]
        self.process = None
        self.settings = self.directory / "daemon.json"
        self.settings.write_text(json.dumps(settings or {}))

    def words(self):
        places = ("--data-root", self.directory / "data", "--exec-root", self.run / "exec")
        places += ("--pidfile", self.run / "pid", "--config-file", self.settings, "--host", self.address)
        alone = ("--iptables=false", "--ip-masq=false", "--bridge=none")
        return [*self.prefix, "dockerd", *map(str, places), *alone]

    def start(self):
        """Starts it and waits until it answers."""
        # Daemons that were killed leave these; they take a zombie that init has not reaped yet for a daemon that lives.
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.run / name).unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self.engine.answers():
            said = self.log.read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"dockerd ended:\n{said}"
            assert time.monotonic() < deadline, f"dockerd does not answer:\n{said}"
            time.sleep(0.05)

    def pids(self):
        """The daemon itself, and its containerd."""
        own = self.process.pid
        if self.prefix:
            own = next((p for p in children_of(own)), own)
        return [own, *(p for p in children_of(own) if (PROC / str(p) / "comm").read_text() == "containerd\n")]

    def signal(self, number, containerd=True):
        for pid in self.pids() if containerd else self.pids()[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self):
        """As a crash of both; containers and their shims go on."""
        pids = self.pids()
        self.signal(signal.SIGKILL)
        self.process.wait()
        wait_gone(pids)

    def stop(self):
        """As its own end: containers end with it."""
        self.signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(START_S)

    def import_image(self, tar, reference, *changes):
        """Gives it an image that is made from a tar. Returns the id."""
        name, _, tag = reference.partition(":")
        query = [("fromSrc", "-"), ("repo", name), ("tag", tag), *(("changes", change) for change in changes)]
        target = f"/images/create?{urllib.parse.urlencode(query)}"
        status, said = self.engine.ask("POST", target, tar.read_bytes(), {"Content-Type": "application/x-tar"})
        assert status == 200 and b"error" not in said, said
        return self.engine.image_id(reference)

    def traces(self):
        """What containers could leave behind in it: its objects, and the directories that it makes for them."""
        folders = ("data/containers", "data/overlay2", "data/volumes", "data/image/overlay2/layerdb/mounts")
        folders = [self.directory / name for name in folders]
        folders += [self.run / "exec" / name for name in ("netns", "runtime-runc/moby")]
        return self.engine.objects() + sorted(str(path) for folder in folders for path in folder.glob("*"))

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def remove(self):
        """Ends it and removes everything of it, whatever state it is in."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, OSError):
            if self.is_alive():
                self.stop()
        left = [*processes_below(self.run), *processes_below(self.directory)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                for child in children_of(pid):  # of a shim: the first process of a container
                    os.kill(child, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
        wait_gone(left)
        if self.process:
            self.process.wait(START_S)
        self.unmount()
        for place in (self.directory, self.run):
            shutil.rmtree(place)

    def unmount(self):
        """dockerd binds its data directory over itself, and leaves mounts of containers when it is killed."""
        lines = (PROC / "self" / "mountinfo").read_text().splitlines()
        places = [line.split()[4] for line in lines]
        for place in reversed(places):
            if any(pathlib.Path(place).is_relative_to(top) for top in (self.directory, self.run)):
                subprocess.run(["umount", "--lazy", place], check=False)


PASSWD = """root:x:0:0:root:/root:/bin/sh
runner:x:1000:1000::/home/runner:/bin/sh
nobody:x:65534:65534::/:/bin/sh
"""


def tiny_tar(directory, image):
    """Makes the tar of a root with nothing but the busybox of the big image, and users."""
    root = directory / "root"
    for name in ("bin", "dev", "etc", "home/runner/work", "opt", "proc", "root", "run", "sys", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True)
    os.chown(root / "home/runner", 1000, 1000)
    os.chown(root / "home/runner/work", 1000, 1000)
    busybox = root / "bin" / "busybox"
    dump = ["debugfs", "-R", f"dump /usr/bin/busybox {busybox}", f"{image}/base.ext4"]
    subprocess.run(dump, check=True, capture_output=True)
    busybox.chmod(0o755)
    for name in ("cat", "dd", "df", "echo", "env", "head", "id", "ls", "mount", "pwd", "sh", "sleep", "sort", "true"):
        (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text(PASSWD)
    (root / "etc" / "group").write_text("root:x:0:\nrunner:x:1000:\nnogroup:x:65534:\n")
    archive = directory / "root.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".")
    return archive


class Waiting:
    """A connection's requests without an answer yet: for each what is to be done when it comes."""

    def __init__(self):
        self.due = []
        self.over = False  # no answer comes any more


class Proxy:
    """Stands at a socket of its own in front of a daemon, notes every request, and does something at one of them.

        proxy.at("POST .*/start", daemon.kill)                 before the daemon gets the request
        proxy.at("POST .*/start", daemon.kill, after=True)     once it has answered, before the runner gets the answer

    Each is done once."""

    REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) (\S+) HTTP/1.1\r\n")

    def __init__(self, path, daemon):
        self.daemon = daemon
        self.address = f"unix://{path}"
        self.requests = []
        self.todo = []
        self.failed = []
        self.waiting = []
        self.lock = threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def at(self, pattern, action, after=False):
        self.todo.append((re.compile(pattern), action, after))

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(self.daemon.socket))
            except OSError:
                client.close()
                continue
            waiting = Waiting()
            with self.lock:
                self.waiting.append(waiting)
            for source, sink, look in ((client, server, self.ask), (server, client, self.answer)):
                threading.Thread(target=self.pump, args=(source, sink, look, waiting), daemon=True).start()

    def ask(self, piece, waiting):
        found = self.REQUEST.match(piece)
        if not found:
            return
        request = " ".join(word.decode() for word in found.groups())
        with self.lock:
            self.requests.append((request, piece.partition(b"\r\n\r\n")[2]))
            due = [entry for entry in self.todo if entry[0].match(request)]
            self.todo = [entry for entry in self.todo if entry not in due]
            if not waiting.over:
                waiting.due.append([action for _, action, after in due if after])
        for _, action, after in due:
            if not after:
                self.do(action)

    def answer(self, _, waiting):
        if waiting.due:
            for action in waiting.due[0]:
                self.do(action)
            waiting.due.pop(0)

    def do(self, action):
        try:
            action()
        except Exception as error:  # noqa: BLE001: the thread ends here; whoever set it up is told
            self.failed.append(repr(error))

    def pump(self, source, sink, look, waiting):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                look(piece, waiting)
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            # A daemon still does what it was asked by a client that has gone.
            sink.shutdown(socket.SHUT_WR if look == self.ask else socket.SHUT_RDWR)
        if look == self.answer:
            with self.lock:
                waiting.over = True
                waiting.due.clear()

    def is_idle(self):
        """Whether the daemon has answered everything that it was asked, or is gone."""
        return not any(waiting.due for waiting in self.waiting)

    def close(self):
        self.listener.close()
