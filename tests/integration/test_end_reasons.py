"""Why a job ended, with the evidence; and that whatever it does, a sandbox beside it keeps answering."""

import os
import pathlib
import signal
import subprocess
import time

import pytest

from conftest import wait_for

ANSWER_S = 1.0

# In large steps: a slow hog makes the kernel throw out and read back the pages of programs for minutes before it kills.
MEMORY_HOG = "hog = []\nwhile True: hog.append(bytearray(64 << 20))"

FORKS_UNTIL_REFUSED = """
import os, sys, time
try:
    while True:
        if os.fork() == 0:
            os.closerange(0, 3); time.sleep(100); os._exit(0)
except OSError as error:
    sys.exit(f"fork: {error}")
"""

FORK_BOMB = """
import subprocess, sys, time
bomb = ["bash", "-c", "bomb() { bomb | bomb & }; bomb"]
subprocess.run(bomb, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
time.sleep(4)
sys.exit(1)
"""

FILLS_THE_DISK = "dd if=/dev/zero of=fill bs=1M"

FILES_UNTIL_REFUSED = """
import os, sys
try:
    for i in range(10000000):
        os.close(os.open(str(i), os.O_CREAT | os.O_WRONLY))
except OSError as error:
    sys.exit(f"open: {error}")
"""


class Neighbour:
    """A sandbox with a job in it that answers lines, and how long its answers took."""

    def __init__(self, runner):
        self.job = runner.start(
            "--capacity", "2", "--stdin", "--", "python3", "-uc", "while True: print('to', input())"
        )
        self.n = 0
        self.times = []
        self.ask()  # until it runs
        self.times.clear()

    def ask(self):
        self.n += 1
        began = time.monotonic()
        self.job.send(b"%d\n" % self.n)
        self.job.wait_output(b"to %d\n" % self.n)
        self.times.append(time.monotonic() - began)

    def ask_while(self, job):
        """Asks again and again until the other job has ended."""
        while job.process.poll() is None:
            self.ask()
            time.sleep(0.02)

    def end(self):
        self.job.close_stdin()
        outcome = self.job.wait()
        assert outcome.reason == "exited", outcome
        assert len(self.times) > 5
        assert max(self.times) < ANSWER_S, sorted(self.times)[-5:]


def beside(runner, *words):
    """Runs a job with a neighbour that has to keep answering; returns the job's outcome."""
    neighbour = Neighbour(runner)
    job = runner.start("--capacity", "2", *words)
    neighbour.ask_while(job)
    outcome = job.wait()
    neighbour.end()
    return outcome


# --- limits ---------------------------------------------------------------------------------------------------------


def test_out_of_memory(runner):
    job = beside(runner, "--job-memory", "256M", "--", "python3", "-c", MEMORY_HOG)
    assert (job.status, job.reason) == (137, "out_of_memory"), job
    assert job.evidence.startswith("memory limit 256 MiB, peak 256 MiB, 1 process killed (python3"), job.evidence
    # The kernel lets some of its own pages through above the limit.
    assert 256 << 20 <= job.result["memory_peak_bytes"] < 257 << 20


def test_out_of_memory_in_a_child_that_the_job_reports(runner):
    job = runner.run("--job-memory", "256M", "--", "sh", "-c", f"python3 -c '{MEMORY_HOG}'; echo survived; exit 3")
    assert (job.status, job.reason, job.stdout) == (3, "out_of_memory", b"survived\n"), job


def test_job_that_succeeds_in_spite_of_a_kill_for_memory(runner):
    job = runner.run("--job-memory", "256M", "--", "sh", "-c", f"python3 -c '{MEMORY_HOG}'; exit 0")
    assert (job.status, job.reason) == (0, "exited"), job


def test_file_systems_in_memory_count_as_memory(runner):
    job = runner.run(
        "--user",
        "root",
        "--job-memory",
        "256M",
        "--",
        "sh",
        "-c",
        "mount -t tmpfs -o size=1G none /mnt && dd if=/dev/zero of=/mnt/f bs=1M",
    )
    assert job.reason == "out_of_memory", job
    job = runner.run("--job-memory", "256M", "--", "dd", "if=/dev/zero", "of=/dev/shm/f", "bs=1M")
    assert job.reason in ("out_of_memory", "exited") and job.status != 0, job


def test_pids_limit(runner):
    job = runner.run("--ready", "system", "--job-pids", "100", "--", "python3", "-c", FORKS_UNTIL_REFUSED)
    assert (job.status, job.reason) == (1, "pids_limit"), job
    assert job.evidence.startswith("limit of 100 processes, "), job
    assert b"fork: [Errno 11] Resource temporarily unavailable" in job.stderr


def test_fork_bomb(runner):
    job = beside(runner, "--ready", "system", "--job-pids", "400", "--", "python3", "-c", FORK_BOMB)
    assert (job.status, job.reason) == (1, "pids_limit"), job
    assert job.evidence.startswith("limit of 400 processes, "), job


def test_disk_full(runner):
    job = beside(runner, "--", "sh", "-c", FILLS_THE_DISK)
    assert (job.status, job.reason) == (1, "disk_full"), job
    assert b"No space left on device" in job.stderr
    assert job.evidence == "disk limit 1024 MiB, no free blocks were left at the worst moment"
    assert job.result["disk_used_bytes"] > 900 << 20


def test_disk_full_that_is_free_again(runner):
    job = runner.run("--", "sh", "-c", f"{FILLS_THE_DISK}; sleep 1; rm fill; exit 5")
    assert (job.status, job.reason) == (5, "disk_full"), job


def test_scratch_and_root_are_the_same_disk(runner):
    job = runner.run("--user", "root", "--", "dd", "if=/dev/zero", "of=/scratch/fill", "bs=1M")
    assert (job.status, job.reason) == (1, "disk_full"), job


def test_no_inodes(runner):
    job = runner.run("--", "python3", "-c", FILES_UNTIL_REFUSED)
    assert (job.status, job.reason) == (1, "disk_full"), job
    assert b"No space left on device" in job.stderr
    assert job.evidence == "disk limit 1024 MiB, no inodes were left at the worst moment"


# --- time and signals -----------------------------------------------------------------------------------------------


def test_timeout(runner):
    began = time.monotonic()
    job = runner.run("--timeout", "1s", "--", "sh", "-c", "echo before; sleep 60")
    assert (job.status, job.reason, job.stdout) == (124, "timeout", b"before\n"), job
    assert job.evidence == "the job ran longer than its timeout of 1 s"
    assert job.result["exit_status"] == 124
    assert 1 < time.monotonic() - began < 8


def test_timeout_gives_the_job_time_to_end(runner):
    script = "trap 'echo cleaning; sleep 1; echo clean; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    job = runner.run("--timeout", "1s", "--", "sh", "-c", script)
    assert (job.status, job.reason, job.stdout) == (124, "timeout", b"ready\ncleaning\nclean\n"), job


def test_timeout_kills_a_job_that_ignores_it(runner):
    began = time.monotonic()
    job = runner.run("--timeout", "1s", "--", "sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60")
    assert (job.status, job.reason) == (124, "timeout"), job
    assert 10.5 < time.monotonic() - began < 20


def test_timeout_counts_from_the_jobs_start(runner):
    job = runner.run("--ready", "system", "--timeout", "2s", "--", "sh", "-c", "sleep 1; echo done")
    assert (job.status, job.stdout) == (0, b"done\n"), job


SIGNALS = [signal.SIGTERM, signal.SIGINT]


def assert_cancelled(outcome, number):
    assert outcome.status == 130, outcome
    assert (outcome.reason, outcome.evidence) == ("cancelled", f"the runner was sent {number.name}"), outcome


def cancel_at(runner, states, number, *words):
    """Signals the program once `ps` shows one of the states. Returns the outcome."""
    job = runner.start(*words)
    job.wait_state(*states)
    job.signal(number)
    return job.wait()


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_it_is_made(runner, number):
    outcome = cancel_at(runner, ["creating", "booting"], number, "--", "echo", "ran")
    assert_cancelled(outcome, number)
    assert outcome.stdout == b""


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_the_system_comes_up(runner, number):
    outcome = cancel_at(runner, ["waiting"], number, "--ready", "system", "--", "echo", "ran")
    assert_cancelled(outcome, number)
    assert outcome.stdout == b""


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_files_are_copied_in(runner, tmp_path, number):
    for name in range(4):
        with (tmp_path / str(name)).open("wb") as file:
            file.write(b"x" * (100 << 20))
    outcome = cancel_at(runner, ["ready"], number, "--workspace", tmp_path, "--", "echo", "ran")
    assert_cancelled(outcome, number)
    assert outcome.stdout == b""


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_the_job_runs(runner, number):
    job = runner.start("--", "sh", "-c", "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    job.wait_output(b"ready\n")
    job.signal(number)
    outcome = job.wait()
    assert_cancelled(outcome, number)
    assert outcome.stdout == b"ready\ntold\n"


def test_cancel_of_a_job_that_ignores_it(runner):
    job = runner.start("--", "sh", "-c", "trap '' TERM INT; echo ready; while :; do sleep 0.1; done")
    job.wait_output(b"ready\n")
    began = time.monotonic()
    job.signal(signal.SIGTERM)
    outcome = job.wait()
    assert_cancelled(outcome, signal.SIGTERM)
    assert 9.5 < time.monotonic() - began < 18


def test_cancel_reaches_the_whole_process_group_but_not_other_groups(runner):
    script = """
        trap 'echo job; sleep 0.5' TERM
        (trap 'echo child; exit' TERM; while :; do sleep 0.1; done) &
        echo ready; wait; wait"""
    job = runner.start("--", "bash", "-c", script)
    job.wait_output(b"ready\n")
    time.sleep(0.3)  # the child's trap
    job.signal(signal.SIGTERM)
    outcome = job.wait()
    assert_cancelled(outcome, signal.SIGTERM)
    assert sorted(outcome.stdout.split()) == [b"child", b"job", b"ready"]


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_outputs_are_copied_out(runner, tmp_path, number):
    script = "mkdir out; for i in 1 2 3 4; do head -c 100000000 /dev/zero > out/$i; done"
    outcome = cancel_at(runner, ["over"], number, "--output", f"out:{tmp_path}/out", "--", "sh", "-c", script)
    # The job was over: how it ended stays what it was.
    assert (outcome.status, outcome.reason) in ((0, "exited"), (130, "cancelled")), outcome


@pytest.mark.parametrize("number", SIGNALS)
def test_cancel_while_it_is_taken_down(runner, number):
    # A whole system takes long enough to go for the state to be seen.
    outcome = cancel_at(runner, ["down"], number, "--ready", "system", "--", "sh", "-c", "exit 7")
    assert (outcome.status, outcome.reason) == (7, "exited"), outcome


def test_signal_before_anything_is_made(runner):
    job = runner.start("--", "echo", "ran")
    job.signal(signal.SIGTERM)
    outcome = job.wait()
    assert outcome.status in (-signal.SIGTERM, 130), outcome
    assert outcome.stdout == b""


# --- the sandbox ends under the job ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "poweroff -f",
        "reboot -f",
        "kill -9 -1; sleep 60",
    ],
)
def test_system_inside_that_ends(runner, command):
    assert_system_ended(runner, command)


@pytest.mark.only("system", why="in a container there is no systemd")
def test_systemd_that_ends(runner):
    assert_system_ended(runner, "systemctl poweroff; sleep 60", "--ready", "system")


def assert_system_ended(runner, command, *options):
    script = f"echo before; sleep 0.3; {command}; echo after; sleep 60"
    job = runner.run("--user", "root", *options, "--", "sh", "-c", script)
    assert (job.status, job.reason) == (125, "sandbox_died"), job
    assert job.stdout.startswith(b"before\n")
    assert job.evidence in (
        "the system inside ended: init exited, or it was powered off",
        "the executor inside ended while the system went on: it was killed",
        "the executor inside was killed",
    )
    assert job.evidence.encode() in job.stderr


def test_executor_killed_by_the_job(runner):
    job = runner.run("--user", "root", "--", "sh", "-c", "echo before; sleep 0.3; kill -9 $PPID; sleep 60")
    assert (job.status, job.reason, job.stdout) == (125, "sandbox_died", b"before\n"), job
    # In a container nothing is left to do for the first process when the executor has gone.
    words = {"system": "executor inside ended while the system went on: it was killed", "container": "init exited"}
    assert words[runner.isolation] in job.evidence, job


def test_executor_stopped_by_the_job_does_not_stop_the_host(runner):
    job = runner.start(
        "--user", "root", "--timeout", "2s", "--", "sh", "-c", "echo before; sleep 0.3; kill -STOP $PPID; sleep 60"
    )
    job.wait_output(b"before\n")
    outcome = job.wait(60)
    assert (outcome.status, outcome.reason) == (124, "timeout"), outcome


def test_user_cannot_kill_the_executor(runner):
    job = runner.run("--", "sh", "-c", "kill -9 $PPID || echo denied")
    assert (job.status, job.stdout) == (0, b"denied\n"), job


# --- a process of ours ends -----------------------------------------------------------------------------------------


def start_and_kill(runner, name):
    """Starts a job and kills a process that belongs to its sandbox."""
    job = runner.start(
        "--stdin",
        "--",
        "sh",
        "-c",
        "sleep 1000 >/dev/null 2>&1 & echo started; read x; cat /proc/meminfo | head -n 1; echo done",
    )
    job.wait_output(b"started\n")
    pid = job.helper(name)
    os.kill(pid, signal.SIGKILL)
    return job, pid


def test_keeper_killed(runner, unchanged):
    job, pid = start_and_kill(runner, "keeper")
    outcome = job.wait()
    assert (outcome.status, outcome.reason) == (125, "runner_failed"), outcome
    assert outcome.evidence == "the keeper is gone and has not said how the job ended: it was ended by signal 9"
    left = runner.ps()
    assert [(s["state"], s["pid"]) for s in left] == [("leftover", pid)]
    # Nothing of the sandbox runs any more, and the next one takes the rest away.
    assert runner.run("--", "true").status == 0
    assert runner.ps() == []


def test_client_killed(runner, unchanged):
    job = runner.start("--", "sh", "-c", "sleep 1000 & echo started; sleep 1000")
    job.wait_output(b"started\n")
    os.kill(job.pid, signal.SIGKILL)
    outcome = job.wait()
    assert outcome.status == -signal.SIGKILL
    wait_for(lambda: not runner.ps(), "the end of the sandbox")


@pytest.mark.parametrize(
    ("name", "reason", "evidence"),
    [
        ("conduit", "runner_failed", "ermite-conduit ended with status -1, signal 9"),
        ("init", "sandbox_died", "the system inside ended: init exited, or it was powered off"),
    ],
)
def test_helper_killed(runner, unchanged, name, reason, evidence):
    assert_helper_killed(runner, name, reason, evidence)


@pytest.mark.only("system", why="while a container runs, nothing but the keeper stands for it")
def test_lxc_killed(runner, unchanged):
    assert_helper_killed(runner, "lxc", "sandbox_died", "ermite-lxc was killed by signal 9")


def assert_helper_killed(runner, name, reason, evidence):
    job, _ = start_and_kill(runner, name)
    outcome = job.wait()
    assert (outcome.status, outcome.reason, outcome.evidence) == (125, reason, evidence), outcome
    assert evidence.encode() in outcome.stderr


def test_lxcfs_killed(runner, unchanged):
    job, _ = start_and_kill(runner, "lxcfs")
    job.wait_stderr(b"lxcfs ended")
    job.send(b"\n")
    outcome = job.wait()
    assert (outcome.status, outcome.reason) == (0, "exited"), outcome
    assert outcome.stdout == b"started\ndone\n"
    assert (
        b"ermite-runner: warning: lxcfs ended: free, uptime and /proc/meminfo inside no longer work" in outcome.stderr
    )


def test_keeper_told_to_end(runner, unchanged):
    job = runner.start("--", "sh", "-c", "echo started; sleep 1000")
    job.wait_output(b"started\n")
    os.kill(job.helper("keeper"), signal.SIGTERM)
    outcome = job.wait()
    assert (outcome.status, outcome.reason) == (130, "cancelled"), outcome
    assert outcome.evidence == "the keeper got signal 15"


@pytest.mark.parametrize("states", [["booting"], ["waiting"], ["over", "down"]])
def test_keeper_killed_at_other_times(runner, unchanged, states):
    job = runner.start("--ready", "system", "--", "true")
    sandbox = job.wait_state(*states)
    os.kill(sandbox["pid"], signal.SIGKILL)
    outcome = job.wait()
    assert outcome.status in (0, 125), outcome
    assert runner.run("--", "true").status == 0
    assert runner.ps() == []
    assert not list(pathlib.Path("/sys/fs/cgroup").glob(f"*/ermite-runner/{sandbox['id']}"))


@pytest.mark.only("system", why="in a container the init is ours")
def test_init_that_cannot_be_executed(runner, tmp_path):
    """What the guest program gives up at inside is told, though nobody reads its standard error."""
    root = tmp_path / "root"
    for name in ("sbin", "etc", "proc", "sys", "dev", "run", "tmp", "opt", "scratch", "var"):
        (root / name).mkdir(parents=True)
    (root / "sbin" / "init").write_bytes(b"\x7fELF, but no program\n")
    (root / "sbin" / "init").chmod(0o755)
    words = ["mkfs.ext4", "-q", "-F", "-d", str(root), str(tmp_path / "base.ext4"), "16M"]
    subprocess.run(words, check=True)
    outcome = runner.run("--image", tmp_path, "--", "true")
    # The executor is started first, and may or may not have connected by then.
    assert outcome.status == 125 and outcome.reason in ("start_failed", "sandbox_died"), outcome
    assert "become the init: execute /sbin/init: Exec format error" in outcome.evidence
