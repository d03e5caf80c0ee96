"""The host's one daemon: its lock, what it says, and that what killed sandboxes leave behind goes without a command."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

from conftest import LIMIT_S, PROGRAM, Output, wait_for

pytestmark = pytest.mark.only("system", why="it takes down sandboxes by the same code as every command")

IDLE_S = 3


class Daemon:
    """A daemon of the test's own."""

    def __init__(self, runner, lock):
        words = ["daemon", "--state-dir", runner.state, "--lock-file", lock, "--log", "text"]
        self.words = [str(word) for word in (PROGRAM, *words)]
        self.process = subprocess.Popen(
            self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.stderr = Output(self.process.stderr)
        self.stderr.wait(f"the daemon watches over the sandboxes of {runner.state}\n".encode(), LIMIT_S)

    def lines(self):
        """What it has said, without what stands in front of each line."""
        return [line.partition("ermite-runner: ")[2] or line for line in bytes(self.stderr.bytes).decode().splitlines()]

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        status = self.process.wait(LIMIT_S)
        assert self.process.stdout.read() == b""
        self.stderr.all()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()
        return status


@pytest.fixture
def lock(runner):
    directory = runner.state / "lock"
    directory.mkdir(mode=0o700)
    yield directory / "daemon.lock"
    shutil.rmtree(directory)


@pytest.fixture
def watcher(runner, lock):
    """A daemon that runs; `daemon` is Docker's."""
    watcher = Daemon(runner, lock)
    yield watcher
    if watcher.process.returncode is None:
        watcher.end(signal.SIGKILL)


def second(runner, lock):
    """Status and sentence of a daemon that does not start."""
    done = runner.call("daemon", "--state-dir", runner.state, "--lock-file", lock)
    assert done.stdout == b""
    return done.returncode, done.stderr.decode()


def start(runner):
    job = runner.start("--capacity", "4", "--", "sh", "-c", "echo started; exec sleep 1000")
    job.wait_output(b"started\n")
    return job


def kill_keeper(job):
    """Returns the sandbox's id."""
    sandbox = job.sandbox()
    os.kill(sandbox["pid"], signal.SIGKILL)
    assert job.wait().status == 125
    return sandbox["id"]


def test_second_daemon(runner, lock, watcher):
    command = " ".join(watcher.words)
    who = f"process {watcher.process.pid}, {command}"
    sentence = f"ermite-runner: lock file {lock}: a daemon runs on this host: {who}\n"
    for _ in range(2):
        assert second(runner, lock) == (1, sentence)
    assert lock.read_text() == f"{watcher.process.pid} {command}\n"
    assert lock.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_in_order(runner, lock, watcher, number):
    assert watcher.end(number) == 0
    assert watcher.lines()[-1].endswith(f"the daemon ends: {number.name}")
    assert lock.read_text() == ""
    assert Daemon(runner, lock).end() == 0


def test_lock_of_a_killed_daemon_is_free(runner, lock, watcher):
    assert watcher.end(signal.SIGKILL) == -signal.SIGKILL
    assert lock.read_text() != ""  # which nobody believes
    other = Daemon(runner, lock)
    assert lock.read_text().split()[0] == str(other.process.pid)
    assert other.end() == 0


def test_lock_is_not_handed_down(runner, lock, watcher):
    """What the daemon starts while it reaps does not keep the lock when the daemon is killed."""
    job = start(runner)
    sandbox = kill_keeper(job)
    wait_for(lambda: any(f"removed sandbox {sandbox}" in line for line in watcher.lines()), "the end of the sandbox")
    watcher.end(signal.SIGKILL)
    assert Daemon(runner, lock).end() == 0


def test_leftover_goes_without_a_command(runner, watcher):
    living = start(runner)
    sandbox = kill_keeper(start(runner))
    place = runner.state / "sandboxes" / sandbox
    wait_for(lambda: not place.exists(), "the end of the sandbox")
    wait_for(lambda: watcher.lines()[-1].endswith(f"removed sandbox {sandbox}"), "the line about it")
    assert [s["pid"] for s in runner.ps()] == [living.sandbox()["pid"]]
    living.signal(signal.SIGTERM)
    assert living.wait().reason == "cancelled"
    assert watcher.end() == 0
    assert len(watcher.lines()) == 3, watcher.lines()


def test_leftover_goes_at_the_start(runner, lock):
    sandbox = kill_keeper(start(runner))
    half = runner.state / "templates" / "scratch-12345.ext4.new"
    half.write_bytes(b"half")
    watcher = Daemon(runner, lock)
    wait_for(lambda: not half.exists(), "the end of a half made template")
    assert watcher.end() == 0
    assert not (runner.state / "sandboxes" / sandbox).exists()
    assert any(line.endswith(f"removed sandbox {sandbox}") for line in watcher.lines())


def test_what_stays_is_told(runner, lock):
    sandbox = kill_keeper(start(runner))
    busy = runner.state / "sandboxes" / sandbox / "scratch.ext4"
    busy.unlink()
    busy.mkdir()
    watcher = Daemon(runner, lock)
    sentence = f"sandbox {sandbox} stays: scratch: remove the scratch file: Is a directory"
    wait_for(lambda: any(line.endswith(sentence) for line in watcher.lines()), "the line about it")
    assert watcher.end() == 0
    busy.rmdir()
    assert runner.call("reap", "--state-dir", runner.state).returncode == 0


def test_commands_beside_it(runner, watcher):
    job = start(runner)
    assert [s["state"] for s in runner.ps()] == ["running"]
    assert runner.call("reap", "--state-dir", runner.state).returncode == 0
    assert runner.call("image", "list", "--state-dir", runner.state).returncode == 0
    outcome = runner.run("--capacity", "4", "--", "true")
    assert (outcome.status, outcome.stderr) == (0, b""), outcome
    job.signal(signal.SIGTERM)
    assert job.wait().reason == "cancelled"
    assert watcher.end() == 0
    assert len(watcher.lines()) == 2, watcher.lines()


def test_idle_daemon_sleeps(watcher):
    """It looks every ten seconds, and in between it does nothing."""
    status = pathlib.Path(f"/proc/{watcher.process.pid}/status")
    wait_for(lambda: "State:\tS" in status.read_text(), "the end of the first look")

    def wakeups():
        return int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])

    before = wakeups()
    time.sleep(IDLE_S)
    assert wakeups() - before <= 2


# --- what is refused --------------------------------------------------------------------------------------------------


def link(lock):
    (lock.parent / "other").touch(mode=0o600)
    lock.symlink_to(lock.parent / "other")


def link_to_nothing(lock):
    lock.symlink_to(lock.parent / "none")


def second_name(lock):
    (lock.parent / "other").touch(mode=0o600)
    lock.hardlink_to(lock.parent / "other")


def another_owner(lock):
    lock.touch(mode=0o600)
    os.chown(lock, 1000, 0)


def writable(lock):
    lock.touch()
    lock.chmod(0o620)


def readable(lock):
    lock.touch()
    lock.chmod(0o604)


def directory(lock):
    lock.mkdir(mode=0o700)


def fifo(lock):
    os.mkfifo(lock, 0o600)


def unix_socket(lock):
    with socket.socket(socket.AF_UNIX) as s, contextlib.chdir(lock.parent):
        s.bind(lock.name)


HOSTILE = {
    link: "{lock}: it is a link",
    link_to_nothing: "{lock}: it is a link",
    second_name: "{lock}: it has more than one name",
    another_owner: "{lock}: it must belong to root, not to user 1000",
    writable: "{lock}: only root may have access to it (mode 600)",
    readable: "{lock}: only root may have access to it (mode 600)",
    directory: "{lock}: open it: Is a directory",
    fifo: "{lock}: it is not a regular file",
    unix_socket: "{lock}: open it: No such device or address",
}


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_hostile_lock_file(runner, lock, make):
    make(lock)
    before = lock.lstat()
    sentence = HOSTILE[make].format(lock=lock)
    assert second(runner, lock) == (1, f"ermite-runner: lock file {sentence}\n")
    after = lock.lstat()
    assert (after.st_mode, after.st_size, after.st_mtime_ns) == (before.st_mode, before.st_size, before.st_mtime_ns)
    assert not (lock.parent / "none").exists()


@pytest.mark.parametrize("what", ["group", "others", "owner", "link", "missing", "file"])
def test_hostile_directory_of_the_lock(runner, lock, what):
    directory = lock.parent / "in"
    real = lock.parent / "real"
    real.mkdir(mode=0o755)
    if what == "link":
        directory.symlink_to(real)
    elif what == "file":
        directory.touch()
    elif what != "missing":
        directory.mkdir(mode=0o755)
        directory.chmod({"group": 0o775, "others": 0o757}.get(what, 0o755))
        os.chown(directory, 1000 if what == "owner" else 0, 0)
    sentence = {
        "group": f"{directory} must not be writable by group or others",
        "others": f"{directory} must not be writable by group or others",
        "owner": f"{directory} must belong to root, not to user 1000",
        "link": f"{directory} is a link: name the directory that it leads to",
        "missing": f"open {directory} as a directory: No such file or directory",
        "file": f"open {directory} as a directory: Not a directory",
    }[what]
    place = directory / "daemon.lock"
    assert second(runner, place) == (1, f"ermite-runner: lock file {place}: {sentence}\n")
    assert list(real.iterdir()) == []


@pytest.mark.parametrize("path", ["/", "/run/"])
def test_lock_file_without_a_name(runner, path):
    sentence = f"ermite-runner: lock file {path}: an absolute path that ends in a name is accepted\n"
    assert second(runner, path) == (1, sentence)


def test_unfit_state_directory(runner, lock):
    state = lock.parent / "state"
    state.mkdir(mode=0o777)
    state.chmod(0o777)
    done = runner.call("daemon", "--state-dir", state, "--lock-file", lock)
    sentence = f"ermite-runner: state directory {state}: {state} must not be writable by group or others\n"
    assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", sentence)
    assert lock.read_text() == ""
