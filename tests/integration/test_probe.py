"""What a job can reach: nothing of the host's, and nothing of another sandbox's.

The programs of probe/ and shared/threat-tests/probe.c try it from inside, as root and as the usual user. What they may
find open stands in probe/expect.* and probe/threat.*, with a comment that says why; for a privileged container, whose
root is the host's, in probe/container/. That the usual user there finds what he finds elsewhere is what counts."""

import os
import pathlib
import pty
import re
import subprocess
import tty

import pytest

from conftest import BUILD, IMAGE, THREAT_TESTS

HERE = pathlib.Path(__file__).resolve().parent / "probe"
USERS = ("root", "runner")
SOURCES = {"expect": sorted(HERE.glob("*.c"))}
if (THREAT_TESTS / "probe.c").exists():
    SOURCES["threat"] = [THREAT_TESTS / "probe.c"]

# The older probe writes what it tried first, and an error last.
LINES = {
    "expect": re.compile(r"(?P<word>OPEN|shut|none) (?P<what>.*)"),
    "threat": re.compile(r"(?P<what>.*?) +(?P<word>OPEN|shut)(?: .*)?"),
}

# In a privileged container: what root of this host has.
HOSTS_CAPABILITIES = re.compile(r"Cap(Bnd|Eff) (?!0{16})")

UID_BASE = 900000
IDS = 65536

# What the kernel of the host is, as far as a sandbox could have changed it.
KERNEL = ("kernel", "vm", "fs", "net/core", "net/ipv4", "user", "dev")
RESTLESS = re.compile(
    r"/(?:random/|file-nr|inode-nr|inode-state|dentry-state|aio-nr|ns_last_pid|pty/nr|quota/|conf/|neigh/)"
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A workspace with the probes, statically linked."""
    workspace = tmp_path_factory.mktemp("probes")
    for name, sources in SOURCES.items():
        strict = ("-Wall", "-Wextra", "-Werror") if name == "expect" else ("-w",)
        subprocess.run(
            ["gcc", "-std=gnu2x", "-D_GNU_SOURCE", "-O1", "-static", *strict, "-o", workspace / name, *sources],
            check=True,
        )
    return workspace


def kernel_settings():
    """Every sysctl that can be read, and the modules."""
    settings = {}
    for folder in KERNEL:
        for path in pathlib.Path("/proc/sys", folder).rglob("*"):
            if path.is_file() and not RESTLESS.search(str(path)):
                try:
                    settings[str(path)] = path.read_bytes()
                except OSError:
                    settings[str(path)] = None
    modules = pathlib.Path("/proc/modules")
    text = modules.read_text() if modules.exists() else ""
    settings["modules"] = sorted(line.split()[0] for line in text.splitlines())
    return settings


def read_expected(name, user, isolation):
    """What was tried -> how it must end. Every open line says why."""
    expected = {}
    folder = HERE / "container" if isolation == "container" else HERE
    for line in (folder / f"{name}.{user}").read_text().splitlines():
        word, _, rest = line.partition(" ")
        what, _, why = rest.partition("#")
        assert (word != "OPEN") or why.strip(), f"{name}.{user}: no reason is given: {line}"
        expected[what.strip()] = word
    return expected


def read_found(name, output):
    """What was tried -> how it ended."""
    found = {}
    for line in output.decode().splitlines():
        match = LINES[name].fullmatch(line)
        if match:
            found[match["what"].strip()] = match["word"]
        elif line.startswith("note "):
            found[line.removeprefix("note ").strip()] = "note"
    return found


def difference(expected, found):
    """Sentences. What is not there at all ("none") may be missing on one kernel and not on another, open or shut."""
    for what in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(what, "nothing"), found.get(what, "nothing")
        if what.split()[1:2] == ["afresh"] and got == "nothing":
            continue
        if wanted != got and not (got == "none" and wanted in ("OPEN", "shut")):
            yield f"{what}: {got}, expected {wanted}"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("name", SOURCES)
def test_only_what_is_expected_is_open(runner, programs, name, user):
    before = kernel_settings()
    outcome = runner.run("--ready", "system", "--user", user, "--workspace", programs, "--", f"./{name}")
    assert outcome.status == 0, outcome
    found = read_found(name, outcome.stdout)
    assert len(found) > 50
    if runner.isolation == "container":
        found = {what: word for what, word in found.items() if not HOSTS_CAPABILITIES.match(what)}
    assert "\n".join(difference(read_expected(name, user, runner.isolation), found)) == ""
    assert kernel_settings() == before


DESCRIPTORS = """
import os, stat
for pid in ("self", os.getppid()):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{fd}"
        if os.path.lexists(link):
            print(stat.filemode(os.stat(link).st_mode)[0], os.readlink(link))
"""


def test_descriptors_lead_nowhere(runner):
    """Neither the job nor the executor holds a directory, a file or a disk."""
    outcome = runner.run("--user", "root", "--", "python3", "-c", DESCRIPTORS)
    lines = outcome.stdout.decode().splitlines()
    assert len(lines) > 6, outcome
    harmless = re.compile(r"c /dev/null|p pipe:\[\d+\]|s socket:\[\d+\]|\? anon_inode:\[?[a-z]+\]?")
    assert [line for line in lines if not harmless.fullmatch(line)] == []


def test_no_path_of_the_host_is_shown(runner):
    files = "/proc/self/mountinfo /sys/block/*/loop/backing_file"
    files += " ".join(f" /proc/1/{name} /proc/$PPID/{name}" for name in ("cgroup", "maps", "environ"))
    outcome = runner.run("--user", "root", "--", "sh", "-c", f"cat {files}")
    text = outcome.stdout.decode()
    assert "\n/scratch.ext4\n" in text
    for path in (runner.state, BUILD, IMAGE):
        assert f"{path}/" not in text


@pytest.mark.only("system", why="root in a privileged container is root of the host")
def test_ids_lie_in_the_range_of_the_slot(runner):
    outcome = runner.run("--user", "root", "--", "cat", "/proc/self/uid_map", "/proc/self/gid_map")
    maps = [list(map(int, line.split())) for line in outcome.stdout.splitlines()]
    first = UID_BASE + IDS * (outcome.result["slot"] + 1)
    assert maps == [[0, first, IDS]] * 2


@pytest.mark.only("system", why="root in a privileged container is root of the host")
def test_no_address_of_the_kernel_is_shown(runner):
    script = "grep -hv '^0*[- ]' /proc/kallsyms; sed 's/^ *//' /proc/iomem /proc/ioports | grep -v '^0*-0* '"
    outcome = runner.run("--user", "root", "--", "sh", "-c", script)
    assert outcome.stdout == b""


def test_masked_files_read_empty(runner):
    files = "/proc/kcore /proc/keys /proc/latency_stats /proc/timer_list /proc/sched_debug /proc/interrupts"
    folders = "/proc/acpi /proc/scsi /sys/firmware /sys/devices/virtual/powercap"
    script = f"for f in {files}; do [ ! -e $f ] || cat $f; done; for d in {folders}; do [ ! -e $d ] || ls -A $d; done"
    for user in USERS:
        outcome = runner.run("--user", user, "--", "sh", "-c", script)
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"", b"")


def test_nothing_is_typed_into_the_callers_terminal(runner, programs):
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
        outcome = runner.run("-t", "--workspace", programs, "--", "./expect", stdin=theirs, stdout=theirs)
        os.set_blocking(theirs, False)
        with pytest.raises(BlockingIOError):
            os.read(theirs, 1)
        assert outcome.status == 0, outcome
        assert b"OPEN terminal /dev/tty" in os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
