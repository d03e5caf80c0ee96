"""Nothing is left behind: processes of the runner killed at any moment, two reapers at once, a reaper beside sandboxes
that start and end, what cannot be removed, a full disk, no descriptors, unfit state directories."""

import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from conftest import IMAGE, LIMIT_S, PROGRAM, Runner, wait_for
from netlab import lab  # noqa: F401

ROUNDS = 200 if os.environ.get("ERMITE_FULL") else 12
SEED = int(os.environ.get("ERMITE_SEED", "0")) or random.randrange(1 << 32)
HELPERS = ("conduit", "lxcfs", "init")


def reap(runner, *words):
    return runner.call("reap", "--state-dir", runner.state, *words)


def found_by(runner, *words):
    """What a reap tells, as (kind, state)."""
    done = reap(runner, "--json", *words)
    assert done.stderr == b"", done
    return [(thing["kind"], thing["state"]) for thing in map(json.loads, done.stdout.splitlines())]


def store_of(runner):
    return runner.state / "sandboxes"


def record_of(runner, sandbox_id):
    with contextlib.suppress(OSError):
        return (store_of(runner) / sandbox_id / "record").read_text()
    return ""


def groups_of(sandbox_id):
    top = pathlib.Path("/sys/fs/cgroup")
    return [group for pattern in ("", "*/") for group in top.glob(f"{pattern}ermite-runner/{sandbox_id}")]


def loops_on(runner):
    """Disks of sandboxes in the file system of the state directory."""
    device = runner.state.stat().st_dev
    said = subprocess.run(["losetup", "--json", "-O", "back-maj:min,back-ino"], capture_output=True, check=True).stdout
    rows = json.loads(said or b'{"loopdevices": []}')["loopdevices"]
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return [row["back-ino"] for row in rows if row["back-maj:min"] == wanted]


def start_time(pid):
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return stat[19] if stat[0] != "Z" else None
    return None


def processes_in(record):
    """(pid, start time) of what the record names, the keeper among them."""
    words = [line.split() for line in record.splitlines()]
    return [(int(w[2]), w[3]) for w in words if len(w) == 4 and w[0] in ("keeper", "process")]


class Traces:
    """What the sandboxes of a test had, to see later that it is gone."""

    def __init__(self, runner):
        self.runner = runner
        self.seen = {}

    def look(self):
        for directory in store_of(self.runner).glob("*"):
            with contextlib.suppress(OSError):
                inode = (directory / "scratch.ext4").stat().st_ino
                self.seen[directory.name] = (record_of(self.runner, directory.name), inode)

    def inodes(self):
        return {inode for _, inode in self.seen.values()}

    def assert_gone(self):
        assert list(store_of(self.runner).glob("*")) == []
        loops = loops_on(self.runner)
        for sandbox_id, (record, inode) in self.seen.items():
            assert groups_of(sandbox_id) == []
            assert inode not in loops
            alive = [pid for pid, start in processes_in(record) if start_time(pid) == start]
            assert alive == [], record
        assert found_by(self.runner) == []


def kill(pid):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid):
    with contextlib.suppress(OSError):
        return [int(c) for c in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def family_of(pid):
    """A process and everything below it, the deepest last."""
    return [pid, *(p for child in children_of(pid) for p in family_of(child))]


def assert_reaped(runner, traces):
    done = reap(runner)
    assert (done.returncode, done.stderr) == (0, b""), (SEED, done)
    traces.assert_gone()


# --- one sandbox ------------------------------------------------------------------------------------------------------


@pytest.fixture
def traces(runner):
    return Traces(runner)


def start(runner, *words):
    return runner.start("--capacity", "4", *words, "--", "sh", "-c", "echo started; exec sleep 1000")


def start_and_kill_keeper(runner, traces, *words):
    """A leftover. Returns its entry in `ps` as it lived."""
    job = start(runner, *words)
    job.wait_output(b"started\n")
    sandbox = job.sandbox()
    traces.look()
    kill(sandbox["pid"])
    assert job.wait().status == 125
    return sandbox


def test_reap_takes_down(runner, traces, unchanged):
    sandbox = start_and_kill_keeper(runner, traces)
    assert [s["state"] for s in runner.ps()] == ["leftover"]
    for _ in range(2):  # a dry run changes nothing
        done = reap(runner, "--dry-run")
        assert (done.returncode, done.stdout.decode(), done.stderr) == (1, f"would remove sandbox {sandbox['id']}\n", b"")
        assert found_by(runner, "--dry-run") == [("sandbox", "found")]
    done = reap(runner)
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"removed sandbox {sandbox['id']}\n", b"")
    traces.assert_gone()
    for words in ((), ("--dry-run",)):
        done = reap(runner, *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_start_says_what_it_took_down(runner, traces):
    sandbox = start_and_kill_keeper(runner, traces)
    outcome = runner.run("--", "true")
    assert outcome.status == 0, outcome
    assert f"removed sandbox {sandbox['id']}" in outcome.stderr.decode()
    traces.assert_gone()


def test_output_that_fails(runner, traces):
    start_and_kill_keeper(runner, traces)
    with open("/dev/full", "wb") as full:
        done = reap_to(runner, full)
    assert (done.returncode, done.stderr) == (1, b"ermite-runner: standard output: No space left on device\n")
    traces.assert_gone()


def reap_to(runner, file):
    words = [PROGRAM, "reap", "--state-dir", str(runner.state)]
    return subprocess.run(words, stdout=file, stderr=subprocess.PIPE, check=False, timeout=LIMIT_S)


@pytest.mark.parametrize("helper", HELPERS)
def test_keeper_and_helper_killed(runner, traces, helper):
    assert_reaped_after_two(runner, traces, helper)


@pytest.mark.only("system", why="while a container runs, nothing but the keeper stands for it")
def test_keeper_and_lxc_killed(runner, traces):
    assert_reaped_after_two(runner, traces, "lxc")


def assert_reaped_after_two(runner, traces, helper):
    job = start(runner)
    job.wait_output(b"started\n")
    pids = [job.helper(helper), job.helper("keeper")]
    traces.look()
    random.shuffle(pids)
    for pid in pids:
        kill(pid)
    job.wait()
    assert_reaped(runner, traces)


def test_everything_stopped_and_keeper_killed(runner, traces):
    job = start(runner)
    job.wait_output(b"started\n")
    keeper = job.helper("keeper")
    traces.look()
    for pid in family_of(keeper)[1:]:
        os.kill(pid, signal.SIGSTOP)
    kill(keeper)
    job.wait()
    assert_reaped(runner, traces)


# --- at any moment ----------------------------------------------------------------------------------------------------


def victims(chance, client):
    """Which of a client's processes are killed, in which order."""
    family = family_of(client)
    kind = chance.choice(("client", "keeper", "client and keeper", "one", "all"))
    if kind == "client":
        return [client]
    if kind == "keeper":
        return family[1:2]
    if kind == "client and keeper":
        return chance.sample(family[:2], len(family[:2]))
    return chance.sample(family, 1 if kind == "one" else len(family))


def kill_at_some_time(runner, traces, chance, *words):
    job = runner.start("--capacity", "4", *words, "--", "sh", "-c", "sleep 0.03")
    end = time.monotonic() + chance.uniform(0, 0.12)
    while time.monotonic() < end:
        traces.look()
    for pid in victims(chance, job.pid):
        kill(pid)
    job.process.wait(LIMIT_S)
    job.wait()


def is_gone(runner):
    """What Docker would not remove for a keeper that was ending is the next reaper's."""
    left = runner.ps()
    if left and runner.isolation == "container" and all(s["state"] == "leftover" for s in left):
        assert reap(runner).returncode == 0, (SEED, left)
    return not left


def sweep(runner, traces, rounds, *words):
    chance = random.Random(SEED)
    for _ in range(rounds):
        kill_at_some_time(runner, traces, chance, *words)
        # A keeper whose client alone was killed is taking down what it made; a reaper leaves that to it.
        assert reap(runner).returncode == 0, SEED
        wait_for(lambda: is_gone(runner), f"the end of the sandbox, seed {SEED}")
        assert_reaped(runner, traces)


def test_killed_at_any_moment(runner, traces, unchanged):
    sweep(runner, traces, 4 * ROUNDS)


def test_killed_at_any_moment_with_a_network(lab):  # noqa: F811
    sweep(lab.runner, Traces(lab.runner), ROUNDS)
    assert not lab.gateway_path.exists()
    assert "erup" not in lab.host.links()


def test_members_beside_a_leftover(lab):  # noqa: F811
    """A sandbox that lives keeps its place in the gateway when the one beside it is reaped."""
    guest = lab.guest()
    traces = Traces(lab.runner)
    sandbox = start_and_kill_keeper(lab.runner, traces)
    assert sandbox["slot"] == guest.slot + 1
    done = reap(lab.runner)
    assert (done.returncode, done.stdout.decode()) == (0, f"removed sandbox {sandbox['id']}\n")
    gateway = lab.gateway()
    assert set(re.findall(r"erveth\d+", gateway.call("nft", "list", "ruleset"))) == {guest.link}
    gateway.close()
    guest.end()
    assert not lab.gateway_path.exists()


def test_member_without_a_record(lab):  # noqa: F811
    """As when the directory was deleted by hand: the rules go, and with the last of them the gateway."""
    traces = Traces(lab.runner)
    sandbox = start_and_kill_keeper(lab.runner, traces)
    shutil.rmtree(store_of(lab.runner) / sandbox["id"])
    wait_for(lambda: not set(loops_on(lab.runner)) & traces.inodes(), "the end of what died with the keeper")
    container = [("container", "found")] if lab.runner.isolation == "container" else []
    wanted = [("cgroup", "found"), *container, ("member", "found")]
    assert found_by(lab.runner, "--dry-run") == wanted
    assert lab.gateway_path.exists()
    assert found_by(lab.runner) == [(kind, "removed") for kind, _ in wanted]
    assert not lab.gateway_path.exists()
    traces.assert_gone()


# --- several at once --------------------------------------------------------------------------------------------------


def start_reap(runner, *words):
    command = [PROGRAM, "reap", "--json", "--state-dir", str(runner.state), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_reapers_at_once(runner, traces):
    for _ in range(max(2, ROUNDS // 4)):
        jobs = [start(runner) for _ in range(4)]
        for job in jobs:
            job.wait_output(b"started\n")
        traces.look()
        keepers = [job.helper("keeper") for job in jobs]
        ids = {sandbox["id"] for sandbox in runner.ps()}
        for pid in keepers:
            kill(pid)
        for job in jobs:
            job.wait()
        reapers = [start_reap(runner) for _ in range(3)]
        told = [reaper.communicate(timeout=LIMIT_S) for reaper in reapers]
        assert [r.returncode for r in reapers] == [0, 0, 0], told
        things = [json.loads(line) for out, _ in told for line in out.splitlines()]
        assert sorted(t["name"] for t in things) == sorted(ids)  # each by one of them
        traces.assert_gone()


def test_reapers_beside_sandboxes(runner, traces):
    """Nothing of a sandbox that starts, lives or ends is a leftover."""
    living = start(runner)
    living.wait_output(b"started\n")
    for _ in range(ROUNDS):
        job = runner.start("--capacity", "4", "--", "true")
        while job.process.poll() is None:
            reaper = start_reap(runner)
            assert runner.ps()
            out, err = reaper.communicate(timeout=LIMIT_S)
            assert (reaper.returncode, out, err) == (0, b"", b"")
        outcome = job.wait()
        assert (outcome.status, outcome.stderr) == (0, b""), outcome
    living.signal(signal.SIGTERM)
    outcome = living.wait()
    assert (outcome.reason, outcome.stderr) == ("cancelled", b""), outcome
    traces.assert_gone()


def test_reap_while_keepers_are_killed(runner, traces):
    """Neither a keeper that is just dying nor a reaper that is killed confuses the next one."""
    chance = random.Random(SEED)
    for _ in range(ROUNDS):
        job = start(runner)
        job.wait_output(b"started\n")
        traces.look()
        keeper = job.helper("keeper")
        reaper = start_reap(runner)
        time.sleep(chance.uniform(0, 0.004))
        kill(keeper)
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 0.02))
            reaper.kill()
        reaper.communicate(timeout=LIMIT_S)
        assert reaper.returncode in (0, -signal.SIGKILL), SEED
        job.wait()
        assert_reaped(runner, traces)


# --- what stays -------------------------------------------------------------------------------------------------------


def test_what_stays_keeps_its_slot(runner, traces):
    sandbox = start_and_kill_keeper(runner, traces)
    keeps_busy = store_of(runner) / sandbox["id"] / "scratch.ext4"
    keeps_busy.unlink()
    keeps_busy.mkdir()
    sentence = "scratch: remove the scratch file: Is a directory"
    for _ in range(2):
        done = reap(runner)
        assert (done.returncode, done.stdout) == (1, b"")
        assert done.stderr.decode() == f"ermite-runner: sandbox {sandbox['id']} stays: {sentence}\n"
    entry = runner.ps()[0]
    assert (entry["state"], entry["slot"], entry["reason"]) == ("leftover", 0, sentence)
    text = runner.call("ps", "--state-dir", runner.state).stdout.decode().splitlines()
    assert text[2].strip() == sentence
    outcome = runner.run("--capacity", "2", "--", "true")
    assert (outcome.status, outcome.result["slot"]) == (0, 1), outcome
    assert sentence in outcome.stderr.decode()
    outcome = runner.run("--capacity", "1", "--", "true")
    assert outcome.status == 125 and "no free slot" in outcome.evidence, outcome
    keeps_busy.rmdir()
    assert_reaped(runner, traces)


def test_disk_that_is_kept_mounted(runner, traces):
    """A process that went into the sandbox's mounts from outside keeps its disk: it is not deleted behind its back."""
    job = start(runner)
    job.wait_output(b"started\n")
    traces.look()
    keeper = job.helper("keeper")
    words = ["nsenter", f"--mount=/proc/{keeper}/ns/mnt", "sh", "-c", "echo in; exec sleep 1000"]
    inside = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert inside.stdout.readline() == b"in\n"
    kill(keeper)
    job.wait()
    done = reap(runner)
    assert done.returncode == 1 and b"stays: scratch: something keeps the disk mounted" in done.stderr, done
    assert [s["reason"] for s in runner.ps()] == ["scratch: something keeps the disk mounted"]
    inside.kill()
    inside.wait()
    inside.stdout.close()
    assert_reaped(runner, traces)


def test_half_a_template(runner, traces):
    half = runner.state / "templates" / "scratch-12345.ext4.new"
    half.write_bytes(b"half")
    assert found_by(runner, "--dry-run") == [("template", "found")]
    assert half.exists()
    assert found_by(runner) == [("template", "removed")]
    assert not half.exists()


# --- descriptors ------------------------------------------------------------------------------------------------------


def with_descriptors(words, soft, hard):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return subprocess.run(list(map(str, words)), capture_output=True, check=False, timeout=LIMIT_S, preexec_fn=limit)


def may_raise_limits():
    """Root as a rule may, and then no limit is too small."""
    status = pathlib.Path("/proc/self/status").read_text()
    return bool(int(re.search(r"CapEff:\t(\w+)", status)[1], 16) & 1 << 24)


@pytest.mark.skipif(may_raise_limits(), reason="root raises the limit")
def test_reap_with_few_descriptors(runner, traces):
    """With too few it says so before it begins."""
    start_and_kill_keeper(runner, traces)
    words = [PROGRAM, "reap", "--state-dir", runner.state]
    for limit in (8, 20, 63):
        done = with_descriptors(words, limit, limit)
        sentence = f"ermite-runner: 64 open files are needed, and {limit} are allowed: see ulimit -n\n"
        assert (done.returncode, done.stdout, done.stderr.decode()) == (1, b"", sentence)
    assert runner.ps()
    assert with_descriptors(words, 64, 64).returncode == 0
    traces.assert_gone()


def test_reap_raises_its_limit(runner, traces):
    start_and_kill_keeper(runner, traces)
    assert with_descriptors([PROGRAM, "reap", "--state-dir", runner.state], 8, 4096).returncode == 0
    traces.assert_gone()


@pytest.mark.parametrize("end", ["cancel", "exit", "client killed"])
def test_keeper_without_free_descriptors(runner, traces, end):
    job = runner.start("--stdin", "--", "sh", "-c", "echo started; read x")
    job.wait_output(b"started\n")
    traces.look()
    keeper = job.helper("keeper")
    used = max(int(fd.name) for fd in pathlib.Path(f"/proc/{keeper}/fd").iterdir()) + 1
    resource.prlimit(keeper, resource.RLIMIT_NOFILE, (used, used))
    if end == "cancel":
        job.signal(signal.SIGTERM)
    elif end == "exit":
        job.close_stdin()
    else:
        kill(job.pid)
    outcome = job.wait()
    assert end != "cancel" or outcome.reason == "cancelled", outcome
    wait_for(lambda: not runner.ps(), "the end of the sandbox")
    traces.assert_gone()


@pytest.mark.skipif(may_raise_limits(), reason="root raises the limit")
@pytest.mark.parametrize("limit", [10, 14, 20, 30, 60, 255])
def test_start_with_few_descriptors(runner, traces, limit):
    done = with_descriptors(runner.command(runner.new_result_file(), ["--", "true"]), limit, limit)
    assert done.returncode == 125, done
    assert runner.without_warning(done.stderr).startswith(b"ermite-runner: "), done
    traces.assert_gone()


def test_start_raises_its_limit(runner, traces):
    done = with_descriptors(runner.command(runner.new_result_file(), ["--", "true"]), 64, 4096)
    assert (done.returncode, runner.without_warning(done.stderr)) == (0, b""), done


# --- a full disk ------------------------------------------------------------------------------------------------------


class SmallDisk:
    """A state directory on a file system of its own."""

    def __init__(self, runner, mib):
        self.file = runner.state.parent / f"{runner.state.name}-disk.img"
        self.place = runner.state.parent / f"{runner.state.name}-disk"
        with open(self.file, "wb") as file:
            file.truncate(mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", self.file], check=True)
        self.place.mkdir(mode=0o700)
        subprocess.run(["mount", "-o", "loop", self.file, self.place], check=True)
        self.runner = Runner(self.place / "state", runner.isolation, runner.daemon)

    def free_bytes(self):
        fs = os.statvfs(self.place)
        return fs.f_bavail * fs.f_frsize

    def fill(self, leave=0):
        """Until so many bytes are free."""
        with open(self.place / "filler", "ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, max(1, file.tell() + self.free_bytes() - leave))
            if leave == 0:
                size = 1 << 20
                while size >= 1:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        size //= 2
        assert leave or self.free_bytes() == 0

    def empty(self):
        (self.place / "filler").unlink()

    def close(self):
        self.runner.end_all()
        shutil.rmtree(self.runner.results)
        wait_for(lambda: subprocess.run(["umount", self.place], check=False).returncode == 0, "umount")
        self.place.rmdir()
        self.file.unlink()


@pytest.fixture
def small(runner):
    disk = SmallDisk(runner, 400)
    yield disk
    disk.close()


OVERCOMMIT = ("--disk-overcommit", "100")


def test_too_little_room(small):
    """A start is refused with the figures."""
    figures = re.compile(
        r"scratch: 1024 MiB of disk are asked for, but (\d+) MiB are free in the state directory, 64 MiB of them must "
        r"stay free, and (\d+) MiB are promised to other sandboxes: a smaller ERMITE_RUNNER_JOB_DISK or an "
        r"ERMITE_RUNNER_DISK_OVERCOMMIT above (\d+) would do"
    )
    free = small.free_bytes() >> 20
    outcome = small.runner.run("--", "true")
    found = figures.fullmatch(outcome.evidence)
    assert (outcome.status, outcome.reason) == (125, "start_failed") and found, outcome
    assert abs(int(found[1]) - free) <= 32 and found.groups()[1:] == ("0", "1")
    # Three times what may be used is enough for one and not for two.
    job = small.runner.start("--capacity", "2", "--disk-overcommit", "4", "--", "sh", "-c", "echo started; sleep 1000")
    job.wait_output(b"started\n")
    outcome = small.runner.run("--capacity", "2", "--disk-overcommit", "4", "--", "true")
    found = figures.fullmatch(outcome.evidence)
    assert outcome.status == 125 and found and 900 < int(found[2]) <= 1024 and found[3] == "4", outcome
    job.signal(signal.SIGTERM)
    job.wait()
    assert small.runner.run(*OVERCOMMIT, "--", "true").status == 0
    small.fill(leave=60 << 20)
    outcome = small.runner.run(*OVERCOMMIT, "--", "true")
    assert outcome.status == 125, outcome
    assert re.fullmatch(
        r"scratch: (59|60) MiB are free in the state directory, of which 64 MiB must stay free", outcome.evidence
    ), outcome


@pytest.mark.parametrize("end", ["cancel", "exit", "keeper killed", "client killed"])
def test_full_disk(small, end):
    """With not a byte free sandboxes are ended and reaped as ever, and the next start is refused."""
    traces = Traces(small.runner)
    job = small.runner.start(*OVERCOMMIT, "--stdin", "--", "sh", "-c", "echo started; read x")
    job.wait_output(b"started\n")
    traces.look()
    keeper = job.helper("keeper")
    small.fill()
    if end == "cancel":
        job.signal(signal.SIGTERM)
    elif end == "exit":
        job.close_stdin()
    else:
        kill(keeper if end == "keeper killed" else job.pid)
    outcome = job.wait()
    assert end != "cancel" or outcome.reason == "cancelled", outcome
    if end == "keeper killed":
        small.fill()
        assert [s["state"] for s in small.runner.ps()] == ["leftover"]
        assert found_by(small.runner) == [("sandbox", "removed")]
    wait_for(lambda: not small.runner.ps(), "the end of the sandbox")
    traces.assert_gone()
    small.fill()
    outcome = small.runner.run(*OVERCOMMIT, "--", "true")
    assert outcome.status == 125, outcome
    assert "No space left on device" in outcome.evidence or "must stay free" in outcome.evidence, outcome
    assert found_by(small.runner) == []
    small.empty()


# --- unfit state directories ------------------------------------------------------------------------------------------


def refusal(state):
    """The same for each command that uses it."""
    said = set()
    run = ["run", "--isolation", "system", "--network-mode", "none", "--image", str(IMAGE), "--", "true"]
    for words in (["ps"], ["reap"], run):
        words[1:1] = ["--state-dir", str(state)]
        done = subprocess.run([PROGRAM, *words], capture_output=True, check=False, timeout=LIMIT_S)
        assert done.returncode == (125 if words[0] == "run" else 1), done
        said.add(done.stderr.decode())
    assert len(said) == 1, said
    return said.pop()


@pytest.fixture
def place():
    """A directory in which only root can write, unlike pytest's own."""
    place = pathlib.Path(f"/var/lib/ermite-test-{os.getpid()}-place")
    place.mkdir(mode=0o700)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("unfit", ["", "a", "a/b", "a/b/sandboxes"])
@pytest.mark.parametrize(
    ("mode", "owner", "words"),
    [
        (0o775, 0, "must not be writable by group or others"),
        (0o757, 0, "must not be writable by group or others"),
        (0o1777, 0, "must not be writable by group or others"),
        (0o755, 1234, "must belong to root, not to user 1234"),
    ],
)
def test_state_that_others_can_change(place, unfit, mode, owner, words):
    (place / "a/b/sandboxes").mkdir(parents=True)
    (place / unfit).chmod(mode)
    os.chown(place / unfit, owner, owner)
    state = place / "a/b"
    assert refusal(state) == f"ermite-runner: state directory {state}: {place / unfit} {words}\n".replace("/ ", " ")


@pytest.mark.parametrize("link", ["a", "a/b", "a/b/sandboxes"])
def test_state_behind_a_link(place, link):
    state = place / "a/b"
    (place / "real/b/sandboxes").mkdir(parents=True)
    (place / link).parent.mkdir(parents=True, exist_ok=True)
    (place / link).symlink_to(place / "real" / link[2:])
    assert refusal(state) == (
        f"ermite-runner: state directory {state}: {place / link} is a link: name the directory that it leads to\n"
    )


def test_state_that_is_a_file(place):
    (place / "a").write_text("")
    assert f"{place / 'a'} as a directory: Not a directory" in refusal(place / "a/b")


def test_state_on_fuse(place):
    """Stands for all file systems that another machine or a program answers for."""
    process = subprocess.Popen(["lxcfs", "-f", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: os.path.ismount(place), "a mount of lxcfs")
        for state, at in ((place, place), (place / "cgroup/x", place / "cgroup")):
            assert refusal(state) == (
                f"ermite-runner: state directory {state}: {at} must lie on a local file system, not on FUSE\n"
            )
    finally:
        subprocess.run(["umount", place], check=True)
        process.wait()


def test_state_that_is_read_only(place):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "none", place], check=True)
    try:
        assert refusal(place) == (
            f"ermite-runner: state directory {place}: make {place}/sandboxes: Read-only file system\n"
        )
    finally:
        subprocess.run(["umount", place], check=True)
