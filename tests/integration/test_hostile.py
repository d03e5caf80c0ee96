"""A hostile program in the place of the guest program: whatever it does ends the run with a name, in time, and costs
the host next to nothing.

The program is torture/. Its modes run eight at a time, once for all tests here; each test judges one of them."""

import concurrent.futures
import contextlib
import dataclasses
import os
import pathlib
import queue
import re
import shutil
import subprocess
import threading
import time

import pytest

from conftest import Host, is_sanitized, read_result
from torture_farm import Farm

pytestmark = pytest.mark.sanitized

TORTURE_SOURCES = pathlib.Path(__file__).parent / "torture"
AT_ONCE = 12
LIMIT_S = 90  # for one run; one that takes longer hangs
UNREAD_S = 10  # how long output stays unread at most
SLACK_S = 15  # what so many sandboxes on two CPUs may add to a deadline
MEMORY_MAX_KIB = 32 << 10
CONDUIT_FDS_MAX = 24
PS_MAX_S = 1
IDLE_SHARE_MAX = 0.05  # of one CPU, for the conduit of a guest that does nothing
OUTPUT = ("--output", "out")
WORKSPACE = ("--workspace", "workspace")
STDIN = ("--stdin",)
ENDLESS = 1 << 40
SILENT = "^$"
STEERING = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]"  # a terminal or the order of words
SHORT = ("--timeout", "1s")


@dataclasses.dataclass(frozen=True)
class Mode:
    """What a mode must end with. after_s: the deadline that it meets."""

    name: str
    reason: str
    words: str  # a pattern for the evidence
    options: tuple = ()
    after_s: int = 0
    status: int = 125
    input: int = 0  # bytes on standard input, with --stdin
    said: str = ""  # a pattern for standard error
    output: int = 0  # bytes that come out at least
    busy: bool = False  # it makes the conduit work until its deadline
    unread: bool = False  # nobody reads standard output while the sandbox lives


def broken(name, words, *options, **more):
    return Mode(name, "protocol_error", words, options, **more)


COPY = "files from process 3: tree of files, entry "
COPY_LEFT = "the guest has left a copy of files alone for 60000 ms"
OUT_OF_RANGE = "message from the guest: kind {} is unknown or has a value out of range"
DEAF = "the guest has read nothing for 30000 ms while [0-9]+ bytes wait for it"
KILLED = "the executor inside ended while the system went on: it was killed"
FRAME_LATE = "a frame was begun and not complete after 30000 ms"

MODES = [
    Mode("init-leaves", "start_failed", "the system inside ended: init exited|the container ended with status 0"),
    Mode("init-keeps-still", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("never-connect", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("leave-unconnected", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("connect-and-leave", "start_failed", KILLED),
    broken("connect-silent", "no Hello within 10000 ms of the connection", after_s=10),
    broken("trickle-hello", "no Hello within 10000 ms of the connection", after_s=10),
    Mode("connect-often", "exited", "status 0", status=0),
    Mode("connect-again", "exited", "status 0", status=0),
    broken("strangers", "64 connections, none of them by the executor"),
    Mode("strangers-first", "exited", "status 0", status=0),
    # Frames.
    broken("length-huge", "a frame of 4294967295 bytes, accepted are 1 to 1048576"),
    broken("length-huge-first", "a frame of 4294967295 bytes, accepted are 1 to 1048576"),
    broken("length-over", "a frame of 1048577 bytes, accepted are 1 to 1048576"),
    broken("length-zero", "a frame of 0 bytes, accepted are 1 to 1048576"),
    broken("trickle-frame", FRAME_LATE, after_s=30),
    broken("frame-begun", FRAME_LATE, after_s=30),
    Mode("frame-begun-and-leave", "sandbox_died", KILLED),
    broken("garbage", "message from the guest: "),
    broken("member-repeated", "SystemReady twice"),
    broken("member-unknown", "message from the guest: kind 0 is unknown"),
    broken("member-cut", "message from the guest: parent stream too short"),
    broken("member-huge", "message from the guest: parent stream too short"),
    broken("groups-nested", "message from the guest: invalid wire_type"),
    broken("text-long", "message from the guest: string overflow"),
    broken("varint-long", "message from the guest: varint overflow"),
    broken("wire-type-unknown", "message from the guest: wrong wire type"),
    broken("field-number-zero", "message from the guest: zero tag"),
    broken("status-huge", "message from the guest: integer too large"),
    broken("status-256", OUT_OF_RANGE.format(6)),
    broken("status-and-signal", OUT_OF_RANGE.format(6)),
    broken("signal-65", OUT_OF_RANGE.format(6)),
    broken("channel-3", OUT_OF_RANGE.format(3)),
    broken("failed-zero-byte", OUT_OF_RANGE.format(7)),
    # The order of messages.
    broken("started-before-hello", "Started before Hello"),
    broken("hello-other-build", "Hello: the guest program is another build than the host's"),
    broken("hello-twice", "Hello twice"),
    broken("ready-flood", "SystemReady twice"),
    broken("started-unasked", "Started of process 99, which is not there"),
    broken("started-twice", "Started of process 2, which runs already"),
    broken("started-unknown", "Started of process 99, which is not there"),
    broken("data-before-started", "Data of process 2, which has not started"),
    broken("data-unknown", "Data of process 99, which is not there"),
    broken("data-on-input", "Data of process 2: 1 bytes on channel 0"),
    broken("data-empty", "Data of process 2: 0 bytes on channel 1"),
    broken("data-after-eof", "Data of process 2, channel 1: after the end of the channel"),
    broken("data-after-exited", "Data of process 2, which (is not there|has ended)", *OUTPUT),
    broken("eof-twice", "Eof of process 2 on channel 1: it has ended already"),
    broken("eof-on-input", "Eof of process 2 on channel 0: it is the host's"),
    broken("exited-before-started", "Exited of process 2, which has not started"),
    broken("exited-twice", "Exited of process 2, which (is not there|has ended)", *OUTPUT),
    broken("exited-unknown", "Exited of process 99, which is not there"),
    broken("failed-status-zero", "Failed of process 2 with status 0"),
    # Flow control.
    broken("window-ignored", "Data of process 2, channel 1: [0-9]+ bytes with credit for [0-9]+", unread=True),
    broken("credit-zero", OUT_OF_RANGE.format(5)),
    broken("credit-huge", OUT_OF_RANGE.format(5)),
    broken("credit-unearned", "Credit of process 2: there is no input"),
    broken("credit-on-output", "Credit of process 2: the guest grants none on channel 1"),
    broken("credit-too-much", "Credit of process 2: credit of 524288 where only", *STDIN, input=10),
    Mode("credit-by-bytes", "exited", "status 0", STDIN, status=0, input=640 << 10),
    broken("never-read", DEAF, *STDIN, after_s=30, input=ENDLESS),
    broken("shut-reading", DEAF, *STDIN, after_s=30, input=ENDLESS),
    Mode("shut-writing", "sandbox_died", KILLED),
    Mode("long-line", "exited", "status 0", status=0, output=1 << 30),
    Mode("descriptors", "exited", "status 0", status=0, output=1000),
    # A job that does not end, or ends badly.
    Mode("never-exit", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("never-start", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("stop-itself", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("leave", "sandbox_died", KILLED),
    Mode("texts", "start_failed", r"^\\x1b\]0;owned\\x07", status=126),
    # Files on their way in and out.
    Mode("copy-in-ignored", "exited", "status 0", WORKSPACE, status=0),
    Mode("copy-in-refused", "runner_failed", r"workspace: \\x1b\]0;owned\\x07", WORKSPACE),
    broken("copy-in-endless", COPY_LEFT, *WORKSPACE, after_s=60),
    broken("copy-in-stuck", DEAF, *WORKSPACE, after_s=30),
    Mode("copy-out-texts", "runner_failed", r"output out: \\x1b\]0;owned\\x07", OUTPUT),
    broken("copy-out-silent", COPY_LEFT, *OUTPUT, after_s=60),
    broken("tree-absolute", COPY + "1: the name is absolute", *OUTPUT),
    broken("tree-parent", COPY + "2: the name is absolute", *OUTPUT),
    broken("tree-zero-in-name", COPY + "1: a zero byte in the name", *OUTPUT),
    broken("tree-name-long", COPY + "1: the name or the target is empty or too long", *OUTPUT),
    broken("tree-name-empty", COPY + "1: the name or the target is empty or too long", *OUTPUT),
    broken("tree-kind-unknown", COPY + "1: the kind is unknown", *OUTPUT),
    broken("tree-mode-setuid", COPY + "1: the mode has more than permission bits", *OUTPUT),
    broken("tree-link-absolute", COPY + "2: the link leads out of the tree", *OUTPUT),
    broken("tree-link-out", COPY + "2: the link leads out of the tree", *OUTPUT),
    broken("tree-size-negative", COPY_LEFT, *OUTPUT, after_s=60),
    broken("tree-segment-past", COPY + "1: a segment is too long, out of order or past the size", *OUTPUT),
    broken("tree-unfinished", "Exited of process 3 with status 0 before its files were complete", *OUTPUT),
    broken("tree-after-end", COPY + "1: bytes behind the end", *OUTPUT),
    Mode("tree-foreign", "runner_failed", "output out: other does not belong to the output out", OUTPUT),
    Mode("tree-duplicate", "runner_failed", "output out: out/x comes twice", OUTPUT),
    Mode("tree-through-link", "runner_failed", "output out: open out/link: Too many levels", OUTPUT),
    Mode("tree-nasty-names", "exited", "status 0", OUTPUT, status=0, said=r"not copied"),
    broken("tree-too-big", COPY_LEFT, *OUTPUT, after_s=60),
    broken("tree-endless", COPY_LEFT, *OUTPUT, after_s=60, busy=True),
]


class Room:
    """A copy of the programs, and a directory in which a mode runs."""

    def __init__(self, directory):
        self.farm = Farm(directory)
        self.directory = directory / "room"

    def furnish(self, mode):
        shutil.rmtree(self.directory, ignore_errors=True)
        (self.directory / "workspace").mkdir(parents=True)
        (self.directory / "workspace" / "file").write_bytes(bytes(8 << 20))
        (self.directory / "input").write_bytes(bytes(mode.input if mode.input != ENDLESS else 0))

    def strays(self):
        """What came to be outside the output, and links in it that lead out."""
        known = {"workspace", "input", "stderr", "out"}
        output = self.directory / "out"
        links = [p for p in output.rglob("*") if p.is_symlink()]
        return [
            *(p for p in self.directory.iterdir() if p.name not in known),
            *(p for p in (self.directory.parent / "torture", pathlib.Path("/etc/torture")) if p.exists()),
            *(p for p in links if not (p.parent / os.readlink(p)).resolve().is_relative_to(output)),
        ]

    def input(self, mode):
        return open("/dev/zero" if mode.input == ENDLESS else self.directory / "input", "rb")


@dataclasses.dataclass
class Seen:
    """What was seen of one run."""

    status: int = 0
    seconds: float = 0
    stderr: bytes = b""
    stdout_bytes: int = 0
    result: dict = dataclasses.field(default_factory=dict)
    memory_kib: dict = dataclasses.field(default_factory=dict)  # by program, the most
    conduit_fds: int = 0
    conduit_cpu_s: float = 0
    had_conduit: bool = False
    conduit_has_gone: bool = False
    strays: list = dataclasses.field(default_factory=list)  # files where none may come to be


def read_proc(pid, name):
    """A file of a process, "" when it is gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


class Watch(threading.Thread):
    """Looks at the keepers and conduits of all runs, and at how fast `ps` answers meanwhile."""

    def __init__(self, runner):
        super().__init__(daemon=True)
        self.runner = runner
        self.runs = {}  # pid of a run that lives: what is seen of it
        self.over = threading.Event()
        self.slowest_ps_s = 0
        self.n_ps = 0

    def look_at(self, pid, program, seen):
        peak = re.search(r"VmHWM:\s+(\d+)", read_proc(pid, "status"))
        if peak:
            seen.memory_kib[program] = max(int(peak.group(1)), seen.memory_kib.get(program, 0))
        if program != "ermite-conduit":
            return
        times = read_proc(pid, "stat").rpartition(")")[2].split()
        if times:
            seen.conduit_cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
        with contextlib.suppress(OSError):
            seen.conduit_fds = max(len(os.listdir(f"/proc/{pid}/fd")), seen.conduit_fds)

    def look(self):
        for run, seen in list(self.runs.items()):
            has_conduit = False
            for keeper in read_proc(run, f"task/{run}/children").split():
                self.look_at(keeper, "ermite-keeper", seen)
                for helper in read_proc(keeper, f"task/{keeper}/children").split():
                    if read_proc(helper, "comm") == "ermite-conduit\n":
                        self.look_at(helper, "ermite-conduit", seen)
                        has_conduit = True
            seen.conduit_has_gone = has_conduit < seen.had_conduit
            seen.had_conduit = seen.had_conduit or has_conduit

    def time_ps(self):
        began = time.monotonic()
        self.runner.ps()
        self.slowest_ps_s = max(self.slowest_ps_s, time.monotonic() - began)
        self.n_ps += 1

    def run(self):
        while not self.over.wait(0.03):
            self.look()
            if self.n_ps < time.monotonic() * 4 - self.began * 4:
                self.time_ps()

    def start(self):
        self.began = time.monotonic()
        super().start()


def count_bytes(pipe):
    n = 0
    while piece := os.read(pipe.fileno(), 1 << 20):
        n += len(piece)
    return n


def run_mode(runner, watch, rooms, mode, result_file):
    room = rooms.get()
    room.furnish(mode)
    words = [*mode.options, "--capacity", AT_ONCE, "--", "job"]
    command = room.farm.command(mode.name, runner.command(result_file, words))
    seen = Seen()
    began = time.monotonic()
    with room.input(mode) as stdin, (room.directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(command, cwd=room.directory, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
    watch.runs[process.pid] = seen
    hanging = threading.Timer(LIMIT_S, process.kill)
    hanging.start()
    # A conduit that ends at once may not have been seen at all.
    unread_until = began + UNREAD_S
    while mode.unread and not seen.conduit_has_gone and process.poll() is None and time.monotonic() < unread_until:
        time.sleep(0.05)
    seen.stdout_bytes = count_bytes(process.stdout)
    seen.status = process.wait()
    hanging.cancel()
    del watch.runs[process.pid]
    process.stdout.close()
    seen.seconds = time.monotonic() - began
    seen.stderr = runner.without_warning((room.directory / "stderr").read_bytes())
    seen.result = read_result(result_file)
    seen.strays = room.strays()
    rooms.put(room)
    return seen


@dataclasses.dataclass
class Session:
    """All modes that were run, and what the host did meanwhile."""

    seen: dict
    watch: Watch
    host: Host


@pytest.fixture(scope="module")
def session(request, one_runner, tmp_path_factory):
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    # Other files' tests have a parameter of that name, too.
    chosen = {p["mode"].name for p in parameters if isinstance(p.get("mode"), Mode)}
    modes = sorted((m for m in MODES if m.name in chosen), key=lambda m: -m.after_s)
    rooms = queue.Queue()
    for _ in range(AT_ONCE):
        rooms.put(Room(tmp_path_factory.mktemp("hostile")))
    host = Host(one_runner.daemon)
    watch = Watch(one_runner)
    watch.start()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = [(m, one_runner.new_result_file()) for m in modes]
        runs = {m.name: pool.submit(run_mode, one_runner, watch, rooms, m, f) for m, f in results}
    watch.over.set()
    watch.join()
    return Session({name: run.result() for name, run in runs.items()}, watch, host)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_mode_ends_as_it_must(session, mode):
    seen = session.seen[mode.name]
    print(mode, seen)
    assert (seen.result.get("reason"), seen.status) == (mode.reason, mode.status), seen.stderr[-2000:]
    assert re.search(mode.words, seen.result["evidence"])
    said = mode.said or (SILENT if mode.status == 0 else re.escape(seen.result["evidence"]))
    assert re.search(said, seen.stderr.decode())
    assert mode.after_s <= seen.seconds <= mode.after_s + SLACK_S
    assert not re.search(STEERING, seen.stderr.decode())
    assert b"Sanitizer" not in seen.stderr
    assert seen.stdout_bytes >= mode.output
    assert not seen.strays
    assert seen.conduit_fds <= CONDUIT_FDS_MAX
    if not is_sanitized():
        assert max(seen.memory_kib.values(), default=0) < MEMORY_MAX_KIB
    if mode.after_s and not mode.busy:
        assert seen.conduit_cpu_s <= mode.after_s * IDLE_SHARE_MAX


def test_ps_answers_meanwhile(session):
    print(session.watch.n_ps, session.watch.slowest_ps_s)
    assert session.watch.n_ps > 0
    assert session.watch.slowest_ps_s < PS_MAX_S


def test_nothing_is_left(session, runner):
    runner.end_all()
    session.host.assert_unchanged()


def test_all_modes_are_run():
    """Every mode of the program stands in the table here, and no other."""
    sources = "".join(p.read_text() for p in (TORTURE_SOURCES).glob("*.c"))
    assert sorted(re.findall(r'\{"([a-z0-9-]+)",\s*STAGE_', sources)) == sorted(m.name for m in MODES)
