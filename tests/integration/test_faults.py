"""Faults of the host while sandboxes come and go: a clock that is set, processes of ours that are stopped for a while
or for good, and a host that has run out of what a sandbox needs. A run ends as it would have, or with one sentence that
names the reason; nothing is left."""

import concurrent.futures
import contextlib
import ctypes
import errno
import os
import pathlib
import platform
import re
import signal
import struct
import subprocess
import time

import pytest

from conftest import BUILD, LIMIT_S, Outcome, is_sanitized, read_result, wait_for
from netlab import ECHO, NAME, SERVER, command_of, lab  # noqa: F401
from test_reap import Traces, family_of, kill, reap
from test_run import Terminal

pytestmark = pytest.mark.only(
    "system", why="which of its processes are ours, and what it takes of the host, is this isolation's"
)

DAYS_2 = 2 * 24 * 3600
STOPPED_S = 1.5
SLACK_S = 30  # what a loaded machine may add to a deadline
UID_BASE = 710000000  # apart from what else may run on this host
COMMANDS = {"keeper": "ermite-keeper", "conduit": "ermite-conduit", "lxc": "ermite-lxc", "lxcfs": "lxcfs"}
READER = ("--stdin", "--", "sh", "-c", "echo started; read x; echo done")
SLEEPER = ("--", "sh", "-c", "echo started; exec sleep 1000")


@pytest.fixture
def traces(runner):
    traces = Traces(runner)
    yield traces
    done = reap(runner)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done
    traces.assert_gone()


# --- the clock is set -------------------------------------------------------------------------------------------------


class Clock:
    """The wall clock of every program in the lab (tests/crash/clockstep.c)."""

    def __init__(self, root):
        self.library = BUILD / "tests" / "crash" / "clockstep.so"
        self.file, self.preload = root / "etc" / "ermite-clockstep", root / "etc" / "ld.so.preload"
        self.file.write_bytes(bytes(8))
        self.preload.write_text(f"{self.library}\n")

    def step(self, *seconds):
        """Sets it to each of these distances from the machine's, one after the other."""
        for distance in seconds:
            with open(self.file, "r+b", buffering=0) as file:
                file.write(struct.pack("=q", distance))
            time.sleep(0.05)

    def is_shifted_in(self, pid):
        return self.library.name in pathlib.Path(f"/proc/{pid}/maps").read_text()

    def close(self):
        self.preload.unlink()
        self.file.unlink()


@pytest.fixture
def clock(lab):  # noqa: F811
    clock = Clock(lab.root)
    yield clock
    clock.close()
    lab.end_guests()
    assert lab.runner.ps() == []


def test_clock_that_is_set_is_seen(lab, clock):  # noqa: F811
    """By every process of ours: the tests that follow would say nothing otherwise."""
    clock.step(DAYS_2)
    assert abs(int(lab.call("date", "+%s")) - time.time() - DAYS_2) < SLACK_S
    guest = lab.guest()
    pids = {name: guest.running.helper(name) for name in COMMANDS}
    pids |= {"client": guest.running.pid, "dns": guest.helper("dns")}
    assert [name for name, pid in pids.items() if not clock.is_shifted_in(pid)] == []
    clock.step(0)
    guest.end()


def assert_as_ever(outcome, reason, begun, at_least_s=0):
    """It ended like that, and neither too early nor too late."""
    took_s = time.monotonic() - begun
    phases_s = sum(outcome.result["phases_ms"].values()) / 1000
    assert outcome.reason == reason, outcome
    assert at_least_s <= took_s < at_least_s + SLACK_S, outcome
    assert phases_s < took_s + 1, outcome


@pytest.mark.parametrize("step", [DAYS_2, -DAYS_2])
def test_clock_is_set(lab, clock, step):  # noqa: F811
    """While sandboxes start, run, are cancelled, time out and are taken down: no deadline comes early, or never."""
    begun = time.monotonic()
    ends, is_cancelled = (lab.runner.start("--timeout", "1h", *words) for words in (READER, SLEEPER))
    times_out = lab.runner.start("--timeout", "3s", *SLEEPER)
    wait_for(lab.runner.ps, "a sandbox that is made")
    clock.step(step)
    for job in (ends, is_cancelled, times_out):
        job.wait_output(b"started\n")
    clock.step(0, step, -step, step)
    assert all(sandbox["age_s"] >= 0 for sandbox in lab.runner.ps())
    is_cancelled.signal(signal.SIGTERM)
    clock.step(0)
    assert_as_ever(is_cancelled.wait(), "cancelled", begun)
    ends.close_stdin()
    clock.step(step)
    outcome = ends.wait()
    assert_as_ever(outcome, "exited", begun)
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"started\ndone\n", b""), outcome
    outcome = times_out.wait()
    assert_as_ever(outcome, "timeout", begun, at_least_s=3)
    assert outcome.status == 124 and outcome.result["phases_ms"]["run"] >= 3000, outcome


def test_clock_is_set_beside_a_leftover(lab, clock):  # noqa: F811
    """It is known by the numbers of its processes and their start, which no clock changes; names are resolved."""
    guest = lab.guest()
    for step in (DAYS_2, -DAYS_2):
        clock.step(step)
        assert guest.ask(NAME).addresses == [SERVER]
    keeper = guest.running.helper("keeper")
    kill(keeper)
    assert guest.running.wait().status == 125
    clock.step(DAYS_2)
    assert [sandbox["state"] for sandbox in lab.runner.ps()] == ["leftover"]
    done = reap(lab.runner)
    assert (done.returncode, done.stderr) == (0, b""), done
    guest.close_net()
    lab.guests.remove(guest)


# --- processes are stopped --------------------------------------------------------------------------------------------


def process_of(job, name):
    """The pid of a process of ours, from the instant it is there."""

    def pid():
        family = family_of(job.pid)
        return next((p for p in family if command_of(p) == COMMANDS[name]), None)

    return job.pid if name == "client" else wait_for(pid, f"the {name} of a sandbox")


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(*pids):
    """The processes stand still for a while."""
    send(pids, signal.SIGSTOP)
    try:
        yield
        time.sleep(STOPPED_S)
    finally:
        send(pids, signal.SIGCONT)


def stop_while_it_starts(job, name):
    with stopped(process_of(job, name)):
        pass
    job.wait_output(b"started\n")
    job.close_stdin()


def stop_while_it_runs(job, name):
    job.wait_output(b"started\n")
    with stopped(process_of(job, name)):
        pass
    job.close_stdin()


def stop_while_it_ends(job, name):
    job.wait_output(b"started\n")
    with stopped(process_of(job, name)):
        job.close_stdin()


def stop_everything(job, name):
    del name
    job.wait_output(b"started\n")
    with stopped(*family_of(job.pid)):
        job.close_stdin()


MOMENTS = (stop_while_it_starts, stop_while_it_runs, stop_while_it_ends)


@pytest.mark.parametrize("moment", MOMENTS)
def test_process_is_stopped_for_a_while(runner, traces, moment):
    """Each of ours in a sandbox of its own: the run is only longer."""
    names = ("client", *COMMANDS)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        stops = {}
        for name in names:
            job = runner.start("--capacity", "8", *READER)
            stops[name] = (job, pool.submit(moment, job, name))
        traces.look()
        for name, (job, stop) in stops.items():
            stop.result()
            outcome = job.wait()
            assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"started\ndone\n", b""), (name, outcome)


def test_everything_is_stopped_for_a_while(runner, traces):
    """As on a machine that sleeps."""
    job = runner.start(*READER)
    stop_everything(job, "")
    traces.look()
    outcome = job.wait()
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"started\ndone\n", b""), outcome


def test_dns_is_stopped(lab):  # noqa: F811
    """For a while, and the answer comes late; for good, and there is none, but the sandbox ends as ever."""
    guest = lab.guest()
    dns = guest.helper("dns")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        with stopped(dns):
            answer = pool.submit(guest.ask, NAME)
        assert answer.result().addresses == [SERVER]
    os.kill(dns, signal.SIGSTOP)
    assert guest.ask(NAME, timeout=0.5) is None
    guest.end()
    assert lab.runner.ps() == [] and not lab.gateway_path.exists()


def test_relay_is_stopped(lab):  # noqa: F811
    """The same: a connection is made late, or not at all."""
    forge = ("--guest-forge", "1", "--url", "http://forge.example.test:3000", "--insecure-http", "1")
    guest = lab.guest(*forge, "--guest-forge-target", f"{SERVER}:{ECHO}")
    relay = guest.helper("relay")
    before = len(lab.echo.came)
    with stopped(relay), guest.net.connect(guest.gateway, 3000, timeout=SLACK_S) as connection:
        time.sleep(STOPPED_S)
        assert len(lab.echo.came) == before
        os.kill(relay, signal.SIGCONT)
        assert connection.recv(100) == b""  # the server's end of it, which has closed it at once
        assert len(lab.echo.came) == before + 1
    os.kill(relay, signal.SIGSTOP)
    with guest.net.connect(guest.gateway, 3000, timeout=SLACK_S):
        guest.end()
    assert lab.runner.ps() == [] and not lab.gateway_path.exists()


# Programs in the place of which another one stands that stops itself at once, and what must come of it.
STAND_INS = {
    "lxcfs": ("/usr/bin/lxcfs", "lxcfs did not mount within 10 s", 10),
    "lxc": (BUILD / "src" / "main" / "ermite-lxc", "the executor did not connect within 30 s", 30),
    "conduit": (BUILD / "src" / "main" / "ermite-conduit", "the executor did not connect within 30 s", 30),
}


@pytest.fixture
def stand_in(tmp_path):
    file = tmp_path / "stand-in"
    # The first process of a pid namespace cannot stop itself: then it sleeps, and does as little.
    file.write_text("#!/bin/sh\nkill -STOP $$\nexec /bin/sleep 1000\n")
    file.chmod(0o755)
    return file


def run_after(runner, before, *words, enter=()):
    """A function that runs a job behind these words, and returns how it ended and how long that took."""
    result_file = runner.new_result_file()
    command = [*enter, *map(str, before), *runner.command(result_file, words)[len(enter) :]]

    def run():
        begun = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=LIMIT_S)
        took_s = time.monotonic() - begun
        return Outcome(done.returncode, done.stdout, done.stderr, read_result(result_file)), took_s

    return run


def in_mounts(script):
    """The words that run something in a mount namespace of its own, made ready by a script."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-euc", f'{script}\nexec "$@"', "sh"]


def test_process_is_stopped_for_good(runner, traces, stand_in):
    """There is a deadline for each, and the sentence says what did not come."""
    running = runner.start("--capacity", "8", "--timeout", "1s", *SLEEPER)
    running.wait_output(b"started\n")
    os.kill(running.helper("conduit"), signal.SIGSTOP)
    traces.look()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = {}
        for name, (path, _, _) in STAND_INS.items():
            enter = in_mounts(f"mount --bind {stand_in} {path}")
            runs[name] = pool.submit(run_after(runner, enter, "--capacity", "8", "--", "true"))
        for name, (_, evidence, after_s) in STAND_INS.items():
            outcome, took_s = runs[name].result()
            assert (outcome.status, outcome.reason, outcome.evidence) == (125, "start_failed", evidence), outcome
            assert after_s <= took_s < after_s + SLACK_S, (name, took_s)
    outcome = running.wait()
    assert (outcome.status, outcome.reason) == (124, "timeout"), outcome


if os.environ.get("ERMITE_FULL"):  # they wait for deadlines of a minute

    def test_nft_is_stopped_for_good(lab, stand_in):  # noqa: F811
        enter = in_mounts(f"mount --bind {stand_in} /usr/sbin/nft")
        outcome, _ = run_after(lab.runner, enter, "--", "true", enter=lab.enter)()
        wanted = r"network: the gateway: nft: wait for a process: not over after \d+ ms"
        assert (outcome.status, outcome.reason) == (125, "start_failed"), outcome
        assert re.fullmatch(wanted, outcome.evidence), outcome
        done = reap(lab.runner)  # the gateway was half made
        assert (done.returncode, done.stderr) == (0, b""), done
        assert lab.runner.ps() == [] and not lab.gateway_path.exists()

    def test_watchdog(runner, traces, stand_in):
        """What has no deadline of its own: the keeper ends, naming the step, and its record is left to the reaper."""
        for template in (runner.state / "templates").iterdir():
            template.unlink()
        outcome, took_s = run_after(runner, in_mounts(f"mount --bind {stand_in} /usr/sbin/mke2fs"), "--", "true")()
        assert (outcome.status, outcome.reason) == (125, "runner_failed") and took_s >= 60, outcome
        assert b"ermite-keeper: making the resources hangs; the sandbox is taken down by its record\n" in outcome.stderr
        done = reap(runner)
        assert (done.returncode, done.stderr) == (0, b""), done


# --- the host has run out ---------------------------------------------------------------------------------------------


def assert_refused(outcome, pattern):
    """With one sentence, that matches."""
    said = outcome.stderr.decode()
    assert outcome.status == 125, outcome
    assert re.fullmatch(f"ermite-runner: (?:[^\n]*: )?{pattern}\n", said), outcome


# /dev as in many a container: the number of a new loop device can be had, but nobody makes its node.
BARE_DEV = """
cd /dev
mount -t tmpfs -o mode=755 none /dev
for name in null zero full random urandom tty fuse loop-control; do cp -a $name /dev; done
mkdir /dev/net /dev/pts /dev/shm
cp -a net/tun /dev/net
cd /
"""


def test_no_node_of_a_loop_device(runner, traces):
    outcome, _ = run_after(runner, in_mounts(BARE_DEV), "--", "true")()
    wanted = r"no loop device is free: all that are in /dev are in use, and mknod /dev/loop(\d+) b 7 \1 adds one"
    assert_refused(outcome, wanted)


LOOP_CTL_GET_FREE = 0x4C82
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
IOCTL = {"x86_64": 16, "aarch64": 29}[platform.machine()]


def refuse_ioctl(request, error):
    """From here on this ioctl() fails, for this process and all that come from it."""
    load, is_equal, end, allow, fail = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | error
    rows = ((load, 0, 0, 0), (is_equal, 0, 3, IOCTL), (load, 0, 0, 24), (is_equal, 0, 1, request))
    rows += ((end, 0, 0, fail), (end, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in rows))
    program = struct.pack("@HP", len(rows), ctypes.addressof(code))
    assert ctypes.CDLL(None).prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0) == 0


def test_no_loop_device(runner, traces):
    full = lambda: refuse_ioctl(LOOP_CTL_GET_FREE, errno.ENOSPC)  # noqa: E731
    outcome = runner.run("--", "true", preexec_fn=full)
    assert_refused(outcome, r"no loop device is free \(losetup lists who has them\): No space left on device")


@pytest.fixture
def few_processes():
    """A control group for a client and its children, as a function of how many they may be."""
    top = pathlib.Path("/sys/fs/cgroup/pids")
    if not top.exists():
        top = pathlib.Path("/sys/fs/cgroup")
        (top / "cgroup.subtree_control").write_text("+pids")
    group = top / f"few-processes-{os.getpid()}"
    group.mkdir()

    def enter(n):
        (group / "pids.max").write_text(str(n))
        return lambda: (group / "cgroup.procs").write_text("0")

    yield enter
    wait_for(lambda: not (group / "cgroup.procs").read_text(), "the end of all processes")
    group.rmdir()


def test_no_more_processes(runner, traces, few_processes):
    if is_sanitized():
        return  # such a program looks for leaks, and that takes a process of its own
    wanted = "no more processes are allowed: see ulimit -u, and pids.max of the control group"
    for n in range(1, 8):
        outcome = runner.run("--", "true", preexec_fn=few_processes(n))
        assert_refused(outcome, wanted)
    assert runner.run("--", "true", preexec_fn=few_processes(64)).status == 0


def run_limited(runner, *limits):
    """Limits that it may not raise, although it is root's."""
    enter = ["setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", *limits]
    outcome, _ = run_after(runner, enter, "--", "true")()
    return outcome


@pytest.mark.parametrize(("allowed", "needed"), [(8, 64), (20, 64), (63, 64), (64, 256), (255, 256)])
def test_no_descriptors(runner, traces, allowed, needed):
    outcome = run_limited(runner, f"--nofile={allowed}:{allowed}")
    assert_refused(outcome, f"{needed} open files are needed, and {allowed} are allowed: see ulimit -n")


@pytest.mark.parametrize("allowed", [32, 128, 255])
def test_no_memory(runner, traces, allowed):
    if is_sanitized():
        return  # such a program takes terabytes of addresses, and ends by itself
    outcome = run_limited(runner, f"--as={allowed << 20}:{allowed << 20}")
    assert_refused(outcome, f"256 MiB of address space are needed, and {allowed} are allowed: see ulimit -v")


def test_just_enough(runner, traces):
    assert run_limited(runner, "--nofile=256:256").status == 0
    assert is_sanitized() or run_limited(runner, f"--as={256 << 20}:{256 << 20}").status == 0


USE_UP = """
import ctypes, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
os.setresuid(*[int(sys.argv[1])] * 3)
inotify_init, n = ctypes.CDLL(None).inotify_init, 0
while inotify_init() >= 0:
    n += 1
print(n, flush=True)
sys.stdin.read()
"""


def test_no_inotify_instances(runner, traces):
    """Somebody with the first id of the sandbox has all that this user may have."""
    uid = UID_BASE + 65536
    options = ("--capacity", "1", "--uid-base", str(UID_BASE), "--ready", "system", "--", "true")
    words = ["/usr/bin/python3", "-c", USE_UP, str(uid)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    most = pathlib.Path("/proc/sys/fs/inotify/max_user_instances").read_text()
    assert other.stdout.readline().decode() == most
    outcome = runner.run(*options)
    wanted = f"user {uid} of the host, on whom the sandbox's are counted, has no inotify instance left: see the sysctl "
    assert_refused(outcome, re.escape(f"{wanted}fs.inotify.max_user_instances"))
    other.communicate()
    assert runner.run(*options).status == 0


def test_no_terminal(runner, traces):
    """All of the sandbox's are taken when the job is to have one."""
    job = Terminal(runner, "--ready", "system", "--", "true")
    inside = []
    try:
        seen = wait_for(lambda: [s for s in runner.ps() if s["state"] in ("waiting", "ready")], "the system inside")
        os.kill(job.process.pid, signal.SIGSTOP)
        record = runner.state / "sandboxes" / seen[0]["id"] / "record"
        words = [line.split() for line in record.read_text().splitlines()]
        init = next(w[2] for w in words if w[:2] == ["process", "init"])
        enter = ["nsenter", f"--mount=/proc/{init}/ns/mnt", "mount", "-o", "remount,max=1", "/dev/pts"]
        subprocess.run(enter, check=True)
        with contextlib.suppress(OSError):  # one may have been taken already
            inside.append(os.open(f"/proc/{init}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
        os.kill(job.process.pid, signal.SIGCONT)
        assert job.wait() == 125
        job.wait_output(b"no terminal is free: ")
        result = read_result(job.result_file)
        assert result["reason"] == "start_failed" and "kernel.pty.max" in result["evidence"], result
    finally:
        for fd in inside:
            os.close(fd)
        job.close()
