"""A hostile program in the place of the guest program: whatever it does ends the run with a name, in time, and costs
the host next to nothing.

The program is torture/. Its modes run eight at a time, once for all tests here; each test judges one of them."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import queue
import re
import shutil
import subprocess
import threading
import time

import pytest

from conftest import BUILD, PROGRAM, Host, parent_of, read_result

pytestmark = pytest.mark.sanitized

TORTURE_SOURCES = pathlib.Path(__file__).parent / "torture"
TORTURE = BUILD / "tests" / "integration" / "torture" / "torture"
MODE_BYTES = 32  # its name at the end of the program, as in torture/main.c
AT_ONCE = 8
LIMIT_S = 75  # for one run; one that takes longer hangs
SLACK_S = 15  # what eight sandboxes on two CPUs may add to a deadline
MEMORY_MAX_KIB = 32 << 10
CONDUIT_FDS_MAX = 24
PS_MAX_S = 1
IDLE_SHARE_MAX = 0.05  # of one CPU, for the conduit of a guest that does nothing
OUTPUT = ("--output", "out")
WORKSPACE = ("--workspace", "workspace")
INPUT = ("--stdin",)
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
    said: str = ""  # a pattern for standard error
    unread: bool = False  # nobody reads standard output while the sandbox lives


def broken(name, words, *options, **more):
    return Mode(name, "protocol_error", words, options, **more)


COPY = "files from process 3: tree of files, entry "
KILLED = "the executor inside ended while the system went on: it was killed"
FRAME_LATE = "a frame was begun and not complete after 30000 ms"

MODES = [
    Mode("init-leaves", "start_failed", "init exited", after_s=0),
    Mode("init-keeps-still", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("never-connect", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("leave-unconnected", "start_failed", "the executor did not connect within 30 s", after_s=30),
    Mode("connect-and-leave", "start_failed", KILLED),
    broken("connect-silent", "no Hello within 10000 ms of the connection", after_s=10),
    broken("trickle-hello", "no Hello within 10000 ms of the connection", after_s=10),
    Mode("connect-often", "exited", "status 0", status=0, said="^$"),
    Mode("connect-again", "exited", "status 0", status=0, said="^$"),
    broken("strangers", "64 connections, none of them by the executor"),
    Mode("strangers-first", "exited", "status 0", status=0, said="^$"),
    # Frames.
    broken("length-huge", "a frame of 4294967295 bytes, accepted are 1 to 1048576"),
    broken("length-huge-first", "a frame of 4294967295 bytes, accepted are 1 to 1048576"),
    broken("length-over", "a frame of 1048577 bytes, accepted are 1 to 1048576"),
    broken("length-zero", "a frame of 0 bytes, accepted are 1 to 1048576"),
    broken("trickle-frame", FRAME_LATE, after_s=30),
    broken("frame-begun", FRAME_LATE, after_s=30),
    Mode("frame-begun-and-leave", "sandbox_died", KILLED),
    broken("garbage", "message from the guest"),
    broken("member-repeated", "SystemReady"),
    broken("member-unknown", "message from the guest: kind 0 is unknown"),
    broken("member-cut", "message from the guest"),
    broken("member-huge", "message from the guest"),
    broken("groups-nested", "message from the guest"),
    broken("text-long", "message from the guest"),
    broken("varint-long", "message from the guest"),
    broken("wire-type-unknown", "message from the guest"),
    broken("field-number-zero", "message from the guest"),
    broken("status-huge", "message from the guest"),
    broken("status-256", "message from the guest"),
    broken("status-and-signal", "message from the guest"),
    broken("signal-65", "message from the guest"),
    broken("channel-3", "message from the guest"),
    broken("failed-zero-byte", "message from the guest"),
    # The order of messages.
    broken("started-before-hello", "Started before Hello"),
    broken("hello-other-build", "Hello: the guest program is another build than the host's"),
    broken("hello-twice", "Hello twice"),
    broken("ready-flood", "SystemReady twice"),
    broken("started-unasked", "Started of process 2, which is not there"),
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
    broken("credit-zero", "message from the guest"),
    broken("credit-huge", "message from the guest"),
    broken("credit-unearned", "Credit of process 2: there is no input"),
    broken("credit-on-output", "Credit of process 2: the guest grants none on channel 1"),
    broken("credit-too-much", "Credit of process 2: credit of 524288 where only", *INPUT),
    Mode("credit-by-bytes", "exited", "status 0", INPUT, status=0, said="^$"),
    broken("never-read", "the guest has read nothing for 30000 ms while [0-9]+ bytes wait for it", *INPUT, after_s=30),
    broken("shut-reading", "the guest has read nothing for 30000 ms", *INPUT, after_s=30),
    Mode("shut-writing", "sandbox_died", KILLED),
    Mode("long-line", "exited", "status 0", status=0, said="^$"),
    Mode("descriptors", "exited", "status 0", status=0, said="^$"),
    # A job that does not end, or ends badly.
    Mode("never-exit", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("never-start", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("stop-itself", "timeout", "timeout of 1 s", SHORT, after_s=21, status=124),
    Mode("leave", "sandbox_died", KILLED),
    Mode("texts", "start_failed", "owned", status=126),
    # Files on their way in and out.
    Mode("copy-in-ignored", "exited", "status 0", WORKSPACE, status=0, said="^$"),
    Mode("copy-in-refused", "runner_failed", "workspace: .*owned", WORKSPACE),
    Mode("copy-in-endless", "runner_failed", "", WORKSPACE, after_s=30),
    Mode("copy-in-stuck", "protocol_error", "has read nothing", WORKSPACE, after_s=30),
    Mode("copy-out-texts", "runner_failed", "", OUTPUT),
    Mode("copy-out-silent", "runner_failed", "", OUTPUT, after_s=30),
    broken("tree-absolute", COPY + "1: the name is absolute", *OUTPUT),
    broken("tree-parent", COPY + "2: the name is absolute", *OUTPUT),
    broken("tree-zero-in-name", COPY + "1: a zero byte in the name", *OUTPUT),
    broken("tree-name-long", COPY + "1: the name or the target is empty or too long", *OUTPUT),
    broken("tree-name-empty", COPY + "1: the name or the target is empty or too long", *OUTPUT),
    broken("tree-kind-unknown", COPY + "1: the kind is unknown", *OUTPUT),
    broken("tree-mode-setuid", COPY + "1: the mode has more than permission bits", *OUTPUT),
    broken("tree-link-absolute", COPY + "2: the link leads out of the tree", *OUTPUT),
    broken("tree-link-out", COPY + "2: the link leads out of the tree", *OUTPUT),
    broken("tree-size-negative", COPY + "1: ", *OUTPUT),
    broken("tree-segment-past", COPY + "1: a segment is too long, out of order or past the size", *OUTPUT),
    broken("tree-unfinished", "Exited of process 3 with status 0 before its files were complete", *OUTPUT),
    broken("tree-after-end", COPY + "1: bytes behind the end", *OUTPUT),
    Mode("tree-foreign", "runner_failed", "", OUTPUT),
    Mode("tree-duplicate", "runner_failed", "", OUTPUT),
    Mode("tree-through-link", "runner_failed", "", OUTPUT),
    Mode("tree-nasty-names", "exited", "", OUTPUT),
    Mode("tree-too-big", "runner_failed", "", OUTPUT, after_s=30),
    Mode("tree-endless", "runner_failed", "", OUTPUT, after_s=30),
]


def is_sanitized():
    options = json.loads((BUILD / "meson-info" / "intro-buildoptions.json").read_text())
    return next(o["value"] for o in options if o["name"] == "b_sanitize") != "none"


class Farm:
    """The programs of the build with the hostile one among them, and room for what comes out."""

    def __init__(self, directory):
        self.directory = directory
        for place in (".", "guest"):
            (directory / place).mkdir(exist_ok=True)
            for file in (PROGRAM.parent / place).iterdir():
                if file.is_file():
                    shutil.copy2(file, directory / place)

    def take(self, mode):
        program = self.directory / "guest" / "ermite-runner"
        shutil.copy2(TORTURE, program)
        with program.open("ab") as file:
            file.write(mode.name.encode().ljust(MODE_BYTES, b"\0"))
        self.room = self.directory / mode.name
        self.room.mkdir()
        (self.room / "workspace").mkdir()
        with (self.room / "workspace" / "file").open("wb") as file:
            file.truncate(1)
            file.write(bytes(range(256)) * 32768)


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
    came_out: list = dataclasses.field(default_factory=list)


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
        self.runs = {}  # pid of a run: what is seen of it
        self.conduits = set()  # pids of runs that have one
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
        try:
            seen.conduit_fds = max(len(os.listdir(f"/proc/{pid}/fd")), seen.conduit_fds)
        except OSError:
            pass

    def look(self):
        conduits = set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            program = read_proc(pid, "comm").strip()
            if program not in ("ermite-keeper", "ermite-conduit"):
                continue
            run = parent_of(pid)
            if program == "ermite-conduit":
                run = parent_of(run)
                conduits.add(run)
            seen = self.runs.get(run)
            if seen:
                self.look_at(pid, program, seen)
        self.conduits = conduits

    def time_ps(self):
        began = time.monotonic()
        self.runner.ps()
        self.slowest_ps_s = max(self.slowest_ps_s, time.monotonic() - began)
        self.n_ps += 1

    def run(self):
        while not self.over.wait(0.05):
            self.look()
            if self.n_ps < time.monotonic() * 4 - self.began * 4:
                self.time_ps()

    def start(self):
        self.began = time.monotonic()
        super().start()


def count_bytes(pipe, may_begin):
    may_begin()
    n = 0
    while piece := os.read(pipe.fileno(), 1 << 20):
        n += len(piece)
    return n


def run_mode(runner, watch, farms, mode, result_file):
    farm = farms.get()
    farm.take(mode)
    words = [*mode.options, "--capacity", AT_ONCE, "--", "job"]
    command = [str(farm.directory / "ermite-runner"), *runner.command(result_file, words)[1:]]
    seen = Seen()
    began = time.monotonic()
    with open("/dev/zero" if "--stdin" in mode.options else "/dev/null") as stdin:
        with (farm.room / "stderr").open("wb") as stderr:
            process = subprocess.Popen(command, cwd=farm.room, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
    watch.runs[process.pid] = seen

    def conduit_has_gone():
        while mode.unread and process.poll() is None and (process.pid in watch.conduits or not seen.memory_kib):
            time.sleep(0.05)

    hanging = threading.Timer(LIMIT_S, process.kill)
    hanging.start()
    seen.stdout_bytes = count_bytes(process.stdout, conduit_has_gone)
    seen.status = process.wait()
    hanging.cancel()
    process.stdout.close()
    seen.seconds = time.monotonic() - began
    seen.stderr = (farm.room / "stderr").read_bytes()
    seen.result = read_result(result_file)
    seen.came_out = sorted(str(p.relative_to(farm.room)) for p in farm.room.rglob("out*"))
    shutil.rmtree(farm.room)
    farms.put(farm)
    return seen


@dataclasses.dataclass
class Session:
    """All modes that were run, and what the host did meanwhile."""

    seen: dict
    watch: Watch
    host: Host


@pytest.fixture(scope="module")
def session(request, one_runner, tmp_path_factory):
    names = {item.callspec.params["mode"].name for item in request.session.items if "mode" in getattr(getattr(item, "callspec", None), "params", {})}
    modes = sorted((m for m in MODES if m.name in names), key=lambda m: -m.after_s)
    farms = queue.Queue()
    for i in range(AT_ONCE):
        farms.put(Farm(tmp_path_factory.mktemp("hostile")))
    host = Host()
    watch = Watch(one_runner)
    watch.start()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = [(m, one_runner.new_result_file()) for m in modes]
        runs = {m.name: pool.submit(run_mode, one_runner, watch, farms, m, f) for m, f in results}
    watch.over.set()
    watch.join()
    return Session({name: run.result() for name, run in runs.items()}, watch, host)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.name)
def test_mode_ends_as_it_must(session, mode):
    seen = session.seen[mode.name]
    print(mode, seen)
    assert (seen.result.get("reason"), seen.status) == (mode.reason, mode.status)
    assert re.search(mode.words, seen.result["evidence"])
    assert re.search(mode.said or re.escape(seen.result["evidence"]), seen.stderr.decode())
    assert mode.after_s <= seen.seconds <= mode.after_s + SLACK_S
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]|Sanitizer|runtime error", seen.stderr)
    assert seen.conduit_fds <= CONDUIT_FDS_MAX
    if not is_sanitized():
        assert max(seen.memory_kib.values()) < MEMORY_MAX_KIB
    if mode.after_s:
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
