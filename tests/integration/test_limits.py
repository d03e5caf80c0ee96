"""What a job is allowed is what it sees: memory, swap, processors, processes, disk, time since the start."""

import os
import re

import pytest

MIB = 1 << 20
SYSTEM = ("--ready", "system")

# Counts the processes that can be made.
FORKS = """
import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            os.closerange(0, 3); time.sleep(60); os._exit(0)
        n += 1
except OSError:
    print(n)
"""


def meminfo(text):
    return {m[1]: int(m[2]) << 10 for m in re.finditer(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}


@pytest.mark.parametrize("mib", [256, 700])
def test_memory_is_visible(runner, mib):
    job = runner.run("--job-memory", f"{mib}M", "--", "sh", "-c", "free -b; cat /proc/meminfo")
    lines = job.stdout.decode().splitlines()
    assert lines[1].split()[:2] == ["Mem:", str(mib * MIB)], job
    assert lines[2].split() == ["Swap:", "0", "0", "0"]
    seen = meminfo(job.stdout.decode())
    assert seen["MemTotal"] == mib * MIB
    assert seen["SwapTotal"] == 0
    assert 0 < seen["MemAvailable"] <= mib * MIB


def test_there_is_no_swap(runner):
    job = runner.run("--", "sh", "-c", "tail -n +2 /proc/swaps | wc -l; swapon --show | wc -l")
    assert job.stdout.split() == [b"0", b"0"], job


@pytest.mark.parametrize("cpus", [1, 2])
def test_processors_are_visible(runner, cpus):
    if cpus > os.cpu_count():
        pytest.fail("this host has fewer processors than the test needs")
    script = """
        nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat
        python3 -c 'import os; print(len(os.sched_getaffinity(0)))'"""
    job = runner.run("--job-cpus", cpus, "--", "sh", "-c", script)
    assert job.stdout.split() == [b"%d" % cpus] * 4, job


def test_processors_beyond_the_hosts_are_not_invented(runner):
    job = runner.run("--job-cpus", "128", "--", "nproc")
    assert int(job.stdout) == len(os.sched_getaffinity(0))


def test_processor_time_is_held_to_the_limit(runner):
    burn = "import os, time\nfor _ in range(2): os.fork()\nend = time.time() + 2\nwhile time.time() < end: pass"
    job = runner.run("--job-cpus", "1", "--", "sh", "-c", f"python3 -c '{burn}'; sleep 0.2")
    seconds = job.result["cpu_seconds"]
    assert 0.2 < seconds < 1.25 * job.result["phases_ms"]["run"] / 1000 + 0.5, job


def test_disk_is_visible(runner):
    job = runner.run(
        "--job-disk",
        "3G",
        "--",
        "df",
        "-B1",
        "--output=size,avail",
        "/",
        "/home/runner/work",
        "/scratch",
        "/var/lib/docker",
        "/tmp",
    )
    rows = [list(map(int, line.split())) for line in job.stdout.decode().splitlines()[1:]]
    assert len(rows) == 5, job
    # /tmp may be memory in an image with systemd.
    for size, available in rows[:4]:
        assert 0.93 * 3 * (1 << 30) < available <= size <= 3 << 30


def test_disk_is_held_to_the_limit(runner):
    job = runner.run("--job-disk", "2G", "--", "sh", "-c", "dd if=/dev/zero of=f bs=1M; stat -c %s f")
    assert b"No space left on device" in job.stderr
    size = int(job.stdout.split()[-1])
    assert 1900 * MIB < size <= 2048 * MIB


def test_processes_are_held_to_the_limit(runner):
    job = runner.run(*SYSTEM, "--job-pids", "200", "--", "python3", "-c", FORKS)
    assert 120 < int(job.stdout) < 200, job


def test_time_since_the_start_is_the_sandboxes(runner):
    job = runner.run("--", "sh", "-c", "cut -d. -f1 /proc/uptime; uptime -p")
    assert 0 <= int(job.stdout.split()[0]) < 30, job


def test_load_is_the_sandboxes(runner):
    job = runner.run("--", "cat", "/proc/loadavg")
    assert float(job.stdout.split()[0]) <= 2, job


def test_limits_cannot_be_changed_from_inside(runner):
    """The groups that hold the limits lie above what root inside sees as the root of all groups."""
    script = """
        for name in memory.limit_in_bytes memory.memsw.limit_in_bytes memory.max pids.max cpu.cfs_quota_us cpu.max; do
            for file in $(find /sys/fs/cgroup -name $name); do echo max > $file || echo -1 > $file; done 2>/dev/null
        done
        sed 's/.*:/group /' /proc/self/cgroup; free -b"""
    options = ("--user", "root", *SYSTEM, "--job-pids", "300")
    job = runner.run(*options, "--", "bash", "-c", f"{script}; python3 -c '{FORKS}'")
    groups = [line.split()[1] for line in job.stdout.decode().splitlines() if line.startswith("group ")]
    assert groups and not any(".." in group or "ermite-runner" in group for group in groups), job
    assert b"Mem:       536870912" in job.stdout
    assert int(job.stdout.split()[-1]) < 300
    assert job.result["limits"]["pids"] == 300


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--job-disk-bandwidth", "10M", "the disk rate limit cannot be enforced on this host"),
        ("--job-disk-iops", "100", "the disk rate limit cannot be enforced on this host"),
    ],
)
def test_limit_that_this_host_cannot_enforce_stops_the_job(runner, option, value, words):
    job = runner.run(option, value, "--", "echo", "ran")
    assert (job.status, job.reason, job.stdout) == (125, "start_failed", b""), job
    assert words in job.evidence and words.encode() in job.stderr


def test_disk_that_the_host_does_not_have_is_refused(runner):
    free = os.statvfs(runner.state)
    too_much = free.f_bavail * free.f_frsize // (1 << 30) + 10
    job = runner.run("--job-disk", f"{too_much}G", "--", "echo", "ran")
    assert (job.status, job.reason, job.stdout) == (125, "start_failed", b""), job
    assert job.evidence.startswith(f"scratch: {too_much << 10} MiB of disk are asked for, but "), job
    job = runner.run("--job-disk", f"{too_much}G", "--disk-overcommit", "100", "--", "echo", "ran")
    assert (job.status, job.stdout) == (0, b"ran\n"), job


def test_disk_that_is_promised_to_another_is_not_promised_twice(runner):
    free = os.statvfs(runner.state)
    two_thirds = free.f_bavail * free.f_frsize * 2 // 3 >> 30
    options = ("--capacity", "2", "--job-disk", f"{two_thirds}G")
    first = runner.start(*options, "--stdin", "--", "sh", "-c", "echo up; read x")
    first.wait_output(b"up\n")
    second = runner.run(*options, "--", "echo", "ran")
    assert (second.status, second.stdout) == (125, b""), second
    assert b"promised to other sandboxes" in second.stderr
    assert runner.run(*options, "--disk-overcommit", "2", "--", "echo", "ran").stdout == b"ran\n"
    first.send(b"\n")
    assert first.wait().status == 0
    for template in (runner.state / "templates").glob(f"scratch-{two_thirds << 10}.ext4"):
        template.unlink()
