"""Many sandboxes, one after the other and at once: the host is afterwards what it was before."""

import concurrent.futures
import time

from conftest import wait_for

N_RUNS = 100
N_AT_ONCE = 8


def test_a_hundred_runs_in_a_row(runner, unchanged):
    for number in range(N_RUNS):
        job = runner.run("--", "true")
        assert (job.status, job.stdout, job.stderr) == (0, b"", b""), (number, job)
        assert job.result["slot"] == 0


def test_eight_at_once_and_no_ninth(runner, unchanged):
    options = ("--capacity", N_AT_ONCE, "--job-memory", "256M")
    jobs = [
        runner.start(*options, "--stdin", "--", "sh", "-c", "echo up; read line; echo $line") for _ in range(N_AT_ONCE)
    ]
    for job in jobs:
        job.wait_output(b"up\n")
    sandboxes = runner.ps()
    assert [s["slot"] for s in sandboxes] == list(range(N_AT_ONCE))
    assert {s["state"] for s in sandboxes} == {"running"}

    ninth = runner.run(*options, "--", "echo", "ran")
    assert (ninth.status, ninth.stdout, ninth.reason) == (125, b"", "start_failed"), ninth
    assert ninth.stderr == b"ermite-runner: no free slot: 8 of 8 sandboxes are there (ERMITE_RUNNER_CAPACITY)\n"

    # The lowest free slot is the next one's.
    by_slot = {job.sandbox()["slot"]: job for job in jobs}
    for slot in (5, 2):
        by_slot[slot].send(b"bye\n")
        assert by_slot[slot].wait().stdout == b"up\nbye\n"
    assert runner.run(*options, "--", "true").result["slot"] == 2
    for slot in (0, 1, 3, 4, 6, 7):
        by_slot[slot].send(b"slot %d\n" % slot)
    for slot in (0, 1, 3, 4, 6, 7):
        outcome = by_slot[slot].wait()
        assert (outcome.status, outcome.stdout) == (0, b"up\nslot %d\n" % slot), outcome
    assert runner.ps() == []


def test_many_that_start_and_end_at_once(runner, unchanged):
    """Starting sweeps what has no record: it must leave alone what others are just making."""

    def run(number):
        job = runner.run("--capacity", N_AT_ONCE, "--job-memory", "256M", "--", "echo", number)
        return job.status, job.stdout.decode().strip(), str(job)

    with concurrent.futures.ThreadPoolExecutor(N_AT_ONCE) as pool:
        for number, outcome in enumerate(pool.map(run, range(5 * N_AT_ONCE))):
            assert outcome[:2] == (0, str(number)), outcome[2]


def test_another_state_directory_is_left_alone(runner, unchanged, tmp_path_factory):
    """The sandboxes of one state directory are none of the business of a runner with another."""
    job = runner.start("--stdin", "--", "cat")
    job.wait_state("running")
    other = runner.state.with_name(runner.state.name + "-other")
    other.mkdir(mode=0o700)
    try:
        words = runner.command(runner.new_result_file(), ["--state-dir", other, "--", "echo", "ran"])
        done = runner.call(*words[1:])
        assert (done.returncode, done.stdout) == (0, b"ran\n"), done
    finally:
        for path in sorted(other.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        other.rmdir()
    job.send(b"still there")
    job.close_stdin()
    assert job.wait().stdout == b"still there"


def test_taking_down_is_quick(runner):
    times = []
    for _ in range(5):
        job = runner.start("--stdin", "--", "sh", "-c", "echo up; read x")
        job.wait_output(b"up\n")
        began = time.monotonic()
        job.send(b"\n")
        job.wait()
        times.append(time.monotonic() - began)
    assert sorted(times)[2] < 1, times


def test_sandbox_with_much_in_it_leaves_nothing(runner, unchanged):
    script = """
        mount -t tmpfs none /mnt; mkdir /sys/fs/cgroup/memory/deep 2>/dev/null
        for i in $(seq 50); do unshare -mpnui --fork sleep 1000 >/dev/null 2>&1 & done
        for i in $(seq 50); do setsid sleep 1000 >/dev/null 2>&1 & done
        python3 -c 'import socket, time
names = [socket.socket(socket.AF_UNIX) for _ in range(20)]
for i, s in enumerate(names): s.bind("\\0abstract-%d" % i); s.listen()
time.sleep(1000)' >/dev/null 2>&1 &
        truncate -s 1G /scratch/sparse; echo 1 > /scratch/open; exec 9<> /scratch/open; rm /scratch/open
        sleep 0.5; echo done"""
    job = runner.run("--user", "root", "--ready", "system", "--", "bash", "-c", script)
    assert (job.status, job.stdout) == (0, b"done\n"), job
    wait_for(lambda: not runner.ps(), "no sandbox")
