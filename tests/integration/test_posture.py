"""What the processes around a sandbox are allowed to do, read back from the kernel and compared with tables.

Every process of a sandbox is looked at while a job runs, after it has done everything that there is to do, and in a
sandbox after twenty others."""

import collections
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import time

import pytest

from conftest import is_sanitized, wait_for
from torture_farm import Farm

pytestmark = pytest.mark.sanitized

IDS = 65536  # of a sandbox
UID_BASE = 900000

STATUS = (
    "Umask Uid Gid Groups SigBlk SigIgn CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp Seccomp_filters".split()
)
NONE = "0000000000000000"
SIGPIPE = "0000000000001000"
NAMESPACES = {"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"}


def read(pid, name):
    return pathlib.Path(f"/proc/{pid}/{name}").read_text()


def status_of(pid, thread):
    """What of a thread's status is compared."""
    lines = dict(line.split(":", 1) for line in read(pid, f"task/{thread}/status").splitlines())
    return {name: " ".join(lines[name].split()) for name in STATUS}


def limits_of(pid):
    """Soft and hard limits by name."""
    rows = [re.split(r"  +", line) for line in read(pid, "limits").splitlines()[1:]]
    return {row[0]: (row[1], row[2]) for row in rows}


def namespaces_of(pid):
    """The namespaces that are not ours."""
    names = os.listdir(f"/proc/{pid}/ns")
    return {n for n in names if os.readlink(f"/proc/{pid}/ns/{n}") != os.readlink(f"/proc/self/ns/{n}")}


def children_of(pid):
    threads = os.listdir(f"/proc/{pid}/task")
    return [int(child) for thread in threads for child in read(pid, f"task/{thread}/children").split()]


def descendants_of(pid):
    """A process and all below it; who ends meanwhile is left out."""
    try:
        return [pid, *(p for child in children_of(pid) for p in descendants_of(child))]
    except OSError:
        return []


def descriptors_of(pid):
    """By number: what a descriptor is, without numbers that differ from run to run."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            continue  # closed meanwhile
        target = re.sub(r"er[0-9a-f]{8}\b", "ID", target)
        target = re.sub(r":\[\d+\]| \(deleted\)$", "", target)
        target = re.sub(r"^/run/lxcfs/controllers/.*", "controller", target)
        found[int(number)] = target.replace("anon_inode:", "")
    return found


def kinds_of(pid, *without):
    """How many descriptors there are of each kind."""
    kinds = collections.Counter(kind for number, kind in descriptors_of(pid).items() if number not in without)
    return {kind: "some" if kind == "controller" else n for kind, n in kinds.items()}


def kinds_at_rest(pid, expected):
    """Of lxcfs, which opens more for the moment in which it answers a read: it is looked at until that is over."""
    deadline = time.monotonic() + 10
    while (kinds := kinds_of(pid)) != expected and time.monotonic() < deadline:
        time.sleep(0.02)
    return kinds


def posture_of(pid):
    """Everything about a process that must be the same in every sandbox, whatever it does at the moment."""
    threads = os.listdir(f"/proc/{pid}/task")
    status = status_of(pid, pid)
    for thread in threads:
        # Which thread takes signals is the program's own affair.
        assert {**status_of(pid, thread), "SigBlk": status["SigBlk"]} == status
    return {
        **status,
        "threads": len(threads) if len(threads) == 1 else "several",
        "namespaces": namespaces_of(pid),
        "limits": limits_of(pid),
        "environment": read(pid, "environ").split("\0")[:-1],
        "directory": os.readlink(f"/proc/{pid}/cwd"),
        "files of its root": len(os.listdir(f"/proc/{pid}/root/")) if pid_is_confined(pid) else "the host's",
        "mounts": len(read(pid, "mountinfo").splitlines()) if pid_is_confined(pid) else "the host's",
        "owner of its /proc": os.stat(f"/proc/{pid}/maps").st_uid,
        "leads a session": os.getsid(pid) == pid,
    }


def pid_is_confined(pid):
    """Whether its root is another than ours."""
    mine, its = os.stat("/"), os.stat(f"/proc/{pid}/root/")
    return (mine.st_dev, mine.st_ino) != (its.st_dev, its.st_ino)


def root_helper(environment, blocked, ignored):
    """A process that is root on the host: it keeps what root has, and is in a mount namespace of its own."""
    ours = status_of("self", os.getpid())
    root = {name: ours[name] for name in ("CapPrm", "CapEff", "CapBnd")}
    return {
        **dict(Umask="0022", Uid="0 0 0 0", Gid="0 0 0 0", Groups="", SigBlk=blocked, SigIgn=ignored),
        **dict(root, CapInh=NONE, CapAmb=NONE, NoNewPrivs="0", Seccomp="0", Seccomp_filters="0"),
        "threads": 1,
        "namespaces": {"mnt"},
        "limits": limits_of("self"),
        "environment": environment,
        "directory": "/",
        "files of its root": "the host's",
        "mounts": "the host's",
        "owner of its /proc": 0,
        "leads a session": True,
    }


def conduit(slot):
    """The process that reads what a sandbox says: nothing is left to it."""
    uid = " ".join([str(UID_BASE + 1024 + slot)] * 4)
    return {
        **dict(Umask="0022", Uid=uid, Gid=uid, Groups="", SigBlk=NONE, SigIgn=SIGPIPE),
        **dict(CapInh=NONE, CapPrm=NONE, CapEff=NONE, CapBnd=NONE, CapAmb=NONE),
        **dict(NoNewPrivs="1", Seccomp="2", Seccomp_filters="1"),
        "threads": 1,
        "namespaces": NAMESPACES - {"user", "time", "time_for_children"},
        "limits": {
            **limits_of("self"),
            "Max file size": ("0", "0"),
            "Max core file size": ("0", "0"),
            "Max processes": ("0", "0"),
            "Max open files": ("320", "320"),
            "Max locked memory": ("0", "0"),
            "Max msgqueue size": ("0", "0"),
            **({} if is_sanitized() else {"Max address space": (str(512 << 20), str(512 << 20))}),
        },
        "environment": [],
        "directory": "/",
        "files of its root": 0,
        "mounts": 1,
        "owner of its /proc": 0,  # not dumpable
        "leads a session": True,
    }


KEEPER_ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]
HUP_INT_TERM = "0000000000004003"
LIBLXC_BLOCKS = "fffffffe77fbfab7"


def expected_postures(runner, slot):
    last = int(pathlib.Path("/proc/sys/kernel/cap_last_cap").read_text())
    everything = f"{(2 << last) - 1:016x}"
    lxcfs = root_helper(["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], NONE, NONE)
    # Root, but in a user namespace around the sandbox's own.
    lxc = {
        **root_helper(["PATH=/nonexistent"], LIBLXC_BLOCKS, NONE),
        **dict(CapPrm=everything, CapEff=everything, CapBnd=everything),
        "namespaces": {"mnt", "pid", "pid_for_children", "user"},
    }
    return {
        "keeper": root_helper(KEEPER_ENVIRONMENT, HUP_INT_TERM, SIGPIPE),
        "conduit": conduit(slot),
        "lxcfs": {**lxcfs, "threads": "several"},
        **({"lxc": lxc} if "lxc" in runner.helpers else {}),
    }


def expected_descriptors(runner):
    """While a process with two outputs runs inside. Standard error of keeper and conduit is looked at elsewhere."""
    record = f"{runner.state}/sandboxes"
    lxc = {
        **{"/dev/null": 3, "/run/lxc.log": 1, "/sys/fs/cgroup": 1, "/dev/pts": 1, "socket": 1},
        **{"[eventpoll]": 1, "[signalfd]": 1, "[pidfd]": 1},
        **{"net": 1, "time": 1, "user": 1, "mnt": 1, "pid": 1, "uts": 1, "ipc": 1},
    }
    return {
        "keeper": {
            **{record: 2, record + "/ID": 1, record + "/ID/record": 1},
            **{"/dev/null": 3, "/memfd:sandbox-spec": 1, "/dev/kmsg": 1, "/": 1, "/run/ermite-runner": 1, "mnt": 1},
            **{"socket": 4, "[eventpoll]": 1, "[signalfd]": 1, "[timerfd]": 5, "[pidfd]": 4},
            **({record + "/ID/door": 1, "[eventpoll]": 2, "[pidfd]": 3} if runner.isolation == "container" else {}),
        },
        # Its own root is empty: what it has of /dev was opened before. The pipes are the client's.
        "conduit": {"/null": 2, "[eventpoll]": 1, "socket": 2, "[timerfd]": 3, "pipe": 2},
        "lxcfs": {"/dev/null": 3, "/run/lxcfs.pid": 1, "mnt": 1, "/dev/fuse": 1, "controller": "some"},
        **({"lxc": lxc} if "lxc" in runner.helpers else {}),
    }


def assert_postures(runner, running):
    """Compares every helper of a sandbox with the tables."""
    pids = {name: running.helper(name) for name in ("keeper", *runner.helpers)}
    slot = running.sandbox()["slot"]
    assert {name: posture_of(pid) for name, pid in pids.items()} == expected_postures(runner, slot)
    kinds = {name: kinds_of(pid, *([2] if name in ("keeper", "conduit") else [])) for name, pid in pids.items()}
    expected = expected_descriptors(runner)
    kinds["lxcfs"] = kinds_at_rest(pids["lxcfs"], expected["lxcfs"])
    assert kinds == expected
    for name in ("keeper", "conduit"):
        assert os.readlink(f"/proc/{pids[name]}/fd/2") == os.readlink(f"/proc/{running.pid}/fd/2")


def test_while_a_job_runs(runner):
    running = runner.start("--", "sh", "-c", "echo up; sleep 1000")
    running.wait_output(b"up")
    assert_postures(runner, running)


def test_after_work_was_done(runner, tmp_path):
    """Secrets, input, a workspace and an output went through; the client stops in the middle of a second one."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "file").write_bytes(os.urandom(3 << 20))
    script = "cat file; cat; echo $S >&2; cp file one; for i in $(seq 100); do cat file; done >two"
    outputs = ("--output", f"one:{tmp_path}/one", "--output", f"two:{tmp_path}/two")
    files = ("--workspace", tmp_path / "workspace", *outputs)
    running = runner.start(*files, "--secret", "S=a-secret-word", "--stdin", "--", "sh", "-c", script)
    running.send(b"input" * 100000)
    running.close_stdin()
    running.wait_stderr(b"***")
    running.wait_state("over")
    wait_for((tmp_path / "two").exists, "the second output")
    running.signal(signal.SIGSTOP)
    assert_postures(runner, running)
    running.signal(signal.SIGCONT)
    assert running.wait().status == 0
    assert (tmp_path / "two").stat().st_size == 300 << 20


def test_after_twenty_sandboxes(runner):
    for _ in range(20):
        assert runner.run("--", "true").status == 0
    running = runner.start("--", "sh", "-c", "echo up; sleep 1000")
    running.wait_output(b"up")
    assert_postures(runner, running)


def test_first_process_inside_gets_no_descriptor_of_the_host(runner, tmp_path):
    """It is looked at before it has done anything: this one keeps still."""
    command = Farm(tmp_path).command("init-keeps-still", runner.command(runner.new_result_file(), ["--", "true"]))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        init = wait_for(lambda: first_inside(runner, process.pid), "the first process inside")
        held = descriptors_of(init)
        # Of Docker it has pipes to Docker's shim, which it drops before the executor starts.
        streams = {"system": ["/dev/null"] * 3, "container": ["/dev/null", "pipe", "pipe"]}[runner.isolation]
        assert [held.pop(i) for i in range(3)] == streams
        assert set(held.values()) <= {"/opt/ermite/ermite-runner"}  # itself: there it finds what to do
        nulls = [i for i, stream in enumerate(streams) if stream == "/dev/null"]
        assert {os.stat(f"/proc/{init}/fd/{i}").st_rdev for i in nulls} == {os.makedev(1, 3)}
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert not runner.ps()


def first_inside(runner, run):
    """The first process of the sandbox of a run, once it is the guest program."""
    pids = descendants_of(run) if runner.isolation == "system" else processes_of_containers(runner.daemon.engine)
    for pid in pids:
        try:
            if os.readlink(f"/proc/{pid}/exe") == "/opt/ermite/ermite-runner":
                return pid
        except OSError:
            pass
    return None


def processes_of_containers(engine):
    """The first one of each that runs."""
    for container in engine.containers():
        status, text = engine.ask("GET", f"/containers/{container['Id']}/json")
        if status == 200 and (pid := json.loads(text)["State"]["Pid"]):
            yield pid


def test_executor(runner):
    running = runner.start("--ready", "system", "--", "sh", "-c", "echo up; sleep 1000")
    running.wait_output(b"up")
    init = running.helper("init")
    (executor,) = (p for p in children_of(init) if read(p, "cmdline") == "/opt/ermite/ermite-runner\0init\0")
    ours = {"/dev/null": 3, "socket": 2, "[eventpoll]": 1, "[pidfd]": 1, "pipe": 2}
    assert kinds_of(executor) == ours  # sockets: the stream, and where systemd tells that it is up
    (job,) = children_of(executor)
    assert descriptors_of(job) == {0: "/dev/null", 1: "pipe", 2: "pipe"}
    # In a privileged container every id is itself.
    first = UID_BASE + IDS * (running.sandbox()["slot"] + 1) if runner.isolation == "system" else 0
    others = set() if runner.isolation == "system" else {"user", "time", "time_for_children"}
    for pid, uid in ((init, first), (executor, first), (job, first + 1000)):
        status = status_of(pid, pid)
        assert (status["Uid"], status["Gid"]) == (" ".join([str(uid)] * 4),) * 2
        assert (status["Seccomp"], status["Seccomp_filters"], status["NoNewPrivs"]) == ("2", "1", "0")
        assert namespaces_of(pid) == NAMESPACES - others
    assert status_of(job, job)["CapEff"] == status_of(job, job)["CapPrm"] == NONE


def mounts_of(pid):
    return {line.split()[0] for line in read(pid, "mountinfo").splitlines()}


def is_null(file):
    return stat.S_ISCHR(file.st_mode) and file.st_rdev == os.makedev(1, 3)


def test_no_process_inside_holds_a_file_of_the_host(runner):
    """With a whole system inside, every open file lies on a mount of the sandbox."""
    running = runner.start("--ready", "system", "--", "sh", "-c", "echo up; sleep 1000")
    running.wait_output(b"up")
    inside = descendants_of(running.helper("init"))
    assert len(inside) > 5
    mounts, outside = set(), []
    for pid in inside:
        mounts |= mounts_of(pid)
    for pid in inside:
        for number in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if not target.startswith("/") or target.startswith("/memfd:"):
                continue
            mount = re.search(r"mnt_id:\s+(\d+)", read(pid, f"fdinfo/{number}")).group(1)
            if mount not in mounts and not is_null(os.stat(f"/proc/{pid}/fd/{number}")):
                outside.append((read(pid, "cmdline"), number, target))
    assert outside == []


def uids_in_use():
    """The user ids of all processes with their names, and the ranges of all user namespaces but the host's."""
    uids, ranges = collections.defaultdict(list), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            ids = re.search(r"Uid:\s+(.*)", read(pid, "status")).group(1).split()
            maps = [line.split() for line in read(pid, "uid_map").splitlines()]
        except OSError:
            continue
        for uid in set(ids):
            uids[int(uid)].append(read(pid, "comm").strip())
        ranges |= {(int(outside), int(n)) for _, outside, n in maps if int(n) < 1 << 31}
    return uids, ranges


def test_conduits_uid_is_nobody_elses(runner):
    base = 500000000  # apart from what else may run on this host
    options = ("--capacity", "2", "--uid-base", base)
    both = [runner.start(*options, "--", "sh", "-c", "echo up; sleep 1000") for _ in range(2)]
    for running in both:
        running.wait_output(b"up")
    uids, ranges = uids_in_use()
    slots = sorted(running.sandbox()["slot"] for running in both)
    assert slots == [0, 1]
    for running in both:
        uid = os.stat(f"/proc/{running.helper('conduit')}").st_uid
        assert uid == base + 1024 + running.sandbox()["slot"]
        assert uids[uid] == ["ermite-conduit"]
        assert not [r for r in ranges if r[0] <= uid < r[0] + r[1]]
    assert runner.isolation != "system" or {(base + IDS * (slot + 1), IDS) for slot in slots} <= ranges


def test_nobody_else_can_look_into_our_processes(runner):
    running = runner.start("--secret", "S=a-secret-word", "--", "sh", "-c", "echo up; sleep 1000")
    running.wait_output(b"up")
    pids = [running.pid, *(running.helper(name) for name in ("keeper", *runner.helpers))]
    conduit_uid = os.stat(f"/proc/{running.helper('conduit')}").st_uid
    names = [f"/proc/{pid}/{name}" for pid in pids for name in ("environ", "maps", "mem", "fd/0", "root/", "cwd/")]
    for uid in (65534, conduit_uid):
        command = ["/usr/bin/head", "-c1", *names]
        done = subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True, text=True)
        assert done.stdout == ""
        assert done.stderr.count("Permission denied") == len(names), done.stderr
