"""What the tests of whole sandboxes share: the runner as a person calls it, and the host before and after.

A test gets the fixture `runner` and calls it with the words of the command line:

    outcome = runner.run("--user", "root", "--", "id", "-u")
    assert (outcome.status, outcome.stdout) == (0, b"0\\n")

`runner.start()` is the same in the background. The fixture `unchanged` compares the whole host before and after a test.

Every test that makes sandboxes runs once for each isolation, first all of them with one, then all with the next; those
of the container isolation on a Docker daemon of the tests' own, started when the first of them runs. What is by its
nature about one isolation says so, and why: @pytest.mark.only("system", why="...").

ERMITE_BUILD is the build directory (build/ unless set), ERMITE_IMAGE the image (/var/lib/ermite-runner/image)."""

import contextlib
import dataclasses
import difflib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "tests" / "lab"
sys.path.append(str(LAB))

import engine  # noqa: E402

THREAT_TESTS = ROOT.parent / "shared" / "threat-tests"
BUILD = pathlib.Path(os.environ.get("ERMITE_BUILD", ROOT / "build"))
IMAGE = pathlib.Path(os.environ.get("ERMITE_IMAGE", "/var/lib/ermite-runner/image"))
PROGRAM = BUILD / "src" / "main" / "ermite-runner"

LIMIT_S = 120  # for one run; a test that is slower is broken
FIRST_LIMIT_S = 600  # for the run that feeds Docker the image
SETTLE_S = 20  # for what the kernel frees after a sandbox is gone
REAPED_S = 150  # for the host's init to reap what killed keepers leave: not every init does it at once
POLL_S = 0.005
UIDS = range(900000, 900000 + 12 * 65536)  # of the sandboxes that tests make

ISOLATIONS = ("system", "container")

# What a job's result calls them here: neither the daemon nor this host has sysbox.
REPORTED = {"system": "system", "container": "container_privileged"}

# The keeper's processes while a job runs.
HELPERS = {"system": ("conduit", "lxcfs", "lxc"), "container": ("conduit", "lxcfs")}

# What standard error says of every job in a privileged container, and no test has to expect: which one was chosen, and
# what that means.
WARNING = re.compile(
    rb'(?:\{"time":"[^"]*","level":"info","message":"(?:container_sysbox passed over: |isolation container_)[^\n]*\n'
    rb"|ermite-runner: warning: root inside this sandbox is root of this host: the container is privileged[^\n]*\n"
    rb"|ermite-runner: warning: this host's root itself lacks [^\n]*\n)"
)


def pytest_configure(config):
    # A shell starts what runs in the background with SIGINT ignored, and the runner leaves it so, as it should.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "sanitized: also run with the programs built with sanitizers")
    config.addinivalue_line("markers", "only(isolation, why): by its nature about one isolation")


def pytest_generate_tests(metafunc):
    if "isolation" not in metafunc.fixturenames:
        return
    only = metafunc.definition.get_closest_marker("only")
    assert not only or only.kwargs["why"]
    metafunc.parametrize("isolation", only.args if only else ISOLATIONS, indirect=True, scope="session")


def is_sanitized():
    """Whether the programs are built with sanitizers, which take more memory."""
    options = json.loads((BUILD / "meson-info" / "intro-buildoptions.json").read_text())
    return next(o["value"] for o in options if o["name"] == "b_sanitize") != "none"


def wait_for(condition, what, limit_s=30):
    """Calls condition until it gives something true, which is returned."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit_s} s")
        time.sleep(POLL_S)


@dataclasses.dataclass
class Outcome:
    """How a run of the program ended. result is what --result wrote; {} when it wrote nothing."""

    status: int
    stdout: bytes
    stderr: bytes
    result: dict

    @property
    def reason(self):
        return self.result.get("reason")

    @property
    def evidence(self):
        return self.result.get("evidence", "")

    def __str__(self):
        said = self.stderr[-4000:].decode(errors="replace")
        return f"status {self.status}\n{self.stdout[-2000:]}\n{said}\n{self.result}"


class Output:
    """What a program writes to a pipe, read as it comes."""

    def __init__(self, pipe):
        self.pipe = pipe
        self.changed = threading.Condition()
        self.bytes = bytearray()
        self.ended = False
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read_piece(self):
        try:
            return os.read(self.pipe.fileno(), 1 << 16)
        except OSError:  # a terminal whose other side is closed
            return b""

    def read(self):
        while True:
            piece = self.read_piece()
            with self.changed:
                self.bytes += piece
                self.ended = not piece
                self.changed.notify_all()
            if not piece:
                return

    def wait(self, wanted, limit_s):
        """Waits until the bytes stand in the output."""
        with self.changed:
            self.changed.wait_for(lambda: wanted in self.bytes or self.ended, limit_s)
            assert wanted in self.bytes, f"{wanted} was not written; written was {bytes(self.bytes[-2000:])}"

    def all(self):
        self.thread.join(LIMIT_S)
        return bytes(self.bytes)


class Running:
    """A run in the background."""

    def __init__(self, runner, words, env):
        self.runner = runner
        self.result_file = runner.new_result_file()
        self.process = subprocess.Popen(
            runner.command(self.result_file, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            process_group=0,
        )
        self.stdout = Output(self.process.stdout)
        self.stderr = Output(self.process.stderr)

    @property
    def pid(self):
        return self.process.pid

    def wait_output(self, wanted, limit_s=60):
        self.stdout.wait(wanted, limit_s)

    def wait_stderr(self, wanted, limit_s=60):
        self.stderr.wait(wanted, limit_s)

    def send(self, data):
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close_stdin(self):
        self.process.stdin.close()

    def signal(self, number):
        self.process.send_signal(number)

    def sandbox(self):
        """The entry of `ps` for this run, None before there is one. The keeper is a child of the program."""
        return next((s for s in self.runner.ps() if parent_of(s["pid"]) == self.pid), None)

    def wait_state(self, *states, limit_s=30):
        """Waits until `ps` shows one of these states, and returns the entry."""

        def seen():
            sandbox = self.sandbox()
            return sandbox if sandbox and sandbox["state"] in states else None

        return wait_for(seen, f"state {states}", limit_s)

    def helper(self, name):
        """The pid of a process of the sandbox: keeper, conduit, lxcfs, lxc or init."""
        sandbox = self.wait_state("booting", "waiting", "ready", "running", "stopping", "over")
        if name == "keeper":
            return sandbox["pid"]
        record = self.runner.state / "sandboxes" / sandbox["id"] / "record"

        def pid():
            words = [line.split() for line in record.read_text().splitlines()]
            return next((int(w[2]) for w in words if w[0] == "process" and w[1] == name), None)

        return wait_for(pid, f"process {name}")

    def wait(self, limit_s=LIMIT_S):
        """Waits for the end. Standard input is left as it is."""
        status = self.process.wait(limit_s)
        stdout, stderr = self.stdout.all(), self.runner.without_warning(self.stderr.all())
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        return Outcome(status, stdout, stderr, read_result(self.result_file))


def parent_of(pid):
    """The parent of a process, 0 when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def read_result(file):
    return json.loads(file.read_text()) if file.exists() else {}


class Runner:
    """The program with a state directory of its own."""

    def __init__(self, state, isolation, daemon=None, image=IMAGE):
        self.state = state
        if isolation == "container":  # a directory that --image names is for the other isolations
            state.mkdir(mode=0o700, exist_ok=True)
            (state / "image").symlink_to(image)
        self.isolation = isolation
        self.daemon = daemon
        self.reported = REPORTED[isolation]
        self.helpers = HELPERS[isolation]
        self.results = pathlib.Path(tempfile.mkdtemp(prefix="ermite-results-"))
        self.n_results = 0
        self.started = []
        self.base = (
            "--isolation",
            isolation,
            "--network-mode",
            "none",
            "--state-dir",
            str(state),
            "--image",
            str(image),
        )

    def new_result_file(self):
        self.n_results += 1
        return self.results / f"{self.n_results}.json"

    def command(self, result_file, words):
        """The arguments of `run`: defaults for tests, then the words, whose options win."""
        small = ("--ready", "now", "--job-disk", "1G", "--job-memory", "512M", "--result", str(result_file))
        return [str(word) for word in (PROGRAM, "run", *self.base, *small, *words)]

    def without_warning(self, stderr):
        """What standard error says besides the warning that belongs to this isolation."""
        return WARNING.sub(b"", stderr) if self.isolation == "container" else stderr

    def run(self, *words, input=None, env=None, limit_s=LIMIT_S, **options):
        """Runs a job to its end. input are bytes for standard input; options go to subprocess.run()."""
        result_file = self.new_result_file()
        source = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **source, **options}
        done = subprocess.run(self.command(result_file, words), env=env, timeout=limit_s, check=False, **streams)
        stdout = self.without_warning(done.stdout) if options.get("stderr") == subprocess.STDOUT else done.stdout
        stderr = self.without_warning(done.stderr or b"")
        return Outcome(done.returncode, stdout, stderr, read_result(result_file))

    def start(self, *words, env=None):
        """Starts a job in the background; it is ended with the test."""
        running = Running(self, words, env)
        self.started.append(running)
        return running

    def call(self, *words, **options):
        """Calls the program with exactly these words."""
        streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "timeout": LIMIT_S, "check": False}
        return subprocess.run([PROGRAM, *map(str, words)], **{**streams, **options})

    def ps(self):
        done = self.call("ps", "--json", "--state-dir", self.state)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def end_all(self):
        """Ends what a failed test left running, and waits until no sandbox lives."""
        for running in self.started:
            if running.process.poll() is None:
                running.signal(signal.SIGKILL)
                running.wait()
        self.started.clear()
        wait_for(lambda: all(s["state"] == "leftover" for s in self.ps()), "the end of all sandboxes")

    def remove(self):
        shutil.rmtree(self.results)
        shutil.rmtree(self.state)


@pytest.fixture(scope="session")
def dockerd():
    """A Docker daemon of the tests' own. The runner feeds it the image with its first job."""
    name = f"docker-under-test-{os.getpid()}"  # not "ermite": what is in there is the daemon's
    daemon = engine.Daemon(f"/var/lib/{name}", f"/run/{name}")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.remove()


@pytest.fixture(scope="session")
def isolation(request):
    """The isolation that a test is about. Where it needs a daemon, DOCKER_HOST says which for as long."""
    if request.param != "container":
        yield request.param
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", request.getfixturevalue("dockerd").address)
        yield request.param


@pytest.fixture(scope="session")
def daemon(request, isolation):
    """The Docker daemon of this isolation, None where there is none."""
    return request.getfixturevalue("dockerd") if isolation == "container" else None


def assert_can_run():
    assert os.geteuid() == 0, "sandboxes need root"
    assert PROGRAM.exists(), f"there is no {PROGRAM}: build first"
    assert (IMAGE / "base.ext4").exists(), f"there is no image at {IMAGE}: ermite-runner image build"


@pytest.fixture(scope="session")
def one_runner(isolation, daemon):
    assert_can_run()
    state = pathlib.Path(f"/var/lib/ermite-test-{os.getpid()}-{isolation}")
    state.mkdir(mode=0o700)
    runner = Runner(state, isolation, daemon)
    # The first run formats the template of the scratch disk, which stays, and feeds the image to Docker.
    first = runner.run("--", "true", limit_s=FIRST_LIMIT_S)
    yield runner
    runner.remove()
    assert first.status == 0, first


@pytest.fixture
def runner(one_runner):
    """The runner; when the test is over nothing of its sandboxes may be left."""
    yield one_runner
    one_runner.end_all()
    left = one_runner.ps()
    if left:
        one_runner.run("--", "true")  # takes leftovers down, so that the next test begins with none
    assert not left, "the test left sandboxes behind"
    assert not list((one_runner.state / "sandboxes").iterdir())


def has_keys_of_sandboxes():
    lines = pathlib.Path("/proc/key-users").read_text().splitlines()
    return any(int(line.split(":")[0]) in UIDS for line in lines)


def orphaned_zombies():
    """Pids of what waits for the host's init to reap it."""
    found = set()
    for file in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            status = file.read_text()
            if "\nState:\tZ" in status and "\nPPid:\t1\n" in status:
                found.add(int(file.parent.name))
    return found


ZOMBIES_OF_OTHERS = orphaned_zombies()  # from before the tests: it may be that nobody reaps them


def has_processes_of_sandboxes():
    """Those that only wait to be reaped among them: of killed keepers and daemons; and what Docker has beside each
    container."""
    if orphaned_zombies() - ZOMBIES_OF_OTHERS:
        return True
    for file in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            status = file.read_text()
            is_shim = status.startswith("Name:\tcontainerd-shim\n")
            if is_shim and b"docker-under-test" in file.with_name("cmdline").read_bytes():
                return True
            helper = re.search(r"^Name:\t(ermite-|lxcfs|containerd-shim|runc)", status) and "\nState:\tZ" in status
            if helper or any(int(uid) in UIDS for uid in re.findall(r"^Uid:\t(\d+)", status, re.MULTILINE)):
                return True
    return False


class Host:
    """Everything on the host that a sandbox could leave behind."""

    def __init__(self, daemon=None):
        self.daemon = daemon
        scripts = [[LAB / "leakcheck"], ["bash", THREAT_TESTS / "leakcheck.sh", "snap"]]
        self.scripts = scripts if THREAT_TESTS.exists() else scripts[:1]
        self.before = self.look_when_steady()

    def look(self):
        """Lines that say to which section of which list they belong. Of the whole machine's numbers of open files and
        of tracked connections any process has its share: they are no sign of us."""
        lines = []
        for script in self.scripts:
            section = ""
            for line in subprocess.run(script, capture_output=True, text=True, check=True).stdout.splitlines():
                section = line if line.startswith("## ") else section
                if section not in ("## conntrack", "## filenr"):
                    lines.append(f"{section}: {line}")
        return lines + (self.daemon.traces() if self.daemon else [])

    def look_when_steady(self):
        """What is still being freed of an earlier sandbox, its keys last of all, is not part of the host."""
        begun = time.monotonic()
        before, now, is_quiet = None, None, False
        while now is None or now != before or not is_quiet:
            if time.monotonic() - begun > (REAPED_S if has_processes_of_sandboxes() else SETTLE_S):
                break
            if now is not None:
                time.sleep(0.2)
            # Asked first: what ends between the two is in neither.
            is_quiet = not has_keys_of_sandboxes() and not has_processes_of_sandboxes()
            before, now = now, self.look()
        return now

    def assert_unchanged(self):
        begun = quiet_since = time.monotonic()
        while (now := self.look()) != self.before:
            if has_processes_of_sandboxes() and time.monotonic() < begun + REAPED_S:
                quiet_since = time.monotonic()
            assert time.monotonic() < quiet_since + SETTLE_S, "\n".join(
                difflib.unified_diff(self.before, now, "before", "after", n=0)
            )


@pytest.fixture
def unchanged(one_runner):
    """Compares the host before and after the test, once everything that the test started has ended."""
    host = Host(one_runner.daemon)
    yield host
    one_runner.end_all()
    host.assert_unchanged()
