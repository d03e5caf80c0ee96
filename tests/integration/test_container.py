"""The container isolation and its daemon: what is made and from which image, who else has containers there, and what
happens when the daemon fails.

Most tests have a daemon of their own and an image of nothing but busybox: they can do with both as they like."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

import engine
from conftest import BUILD, FIRST_LIMIT_S, IMAGE, LIMIT_S, WARNING, Host, Runner, wait_for

pytestmark = pytest.mark.only("container", why="it is about this isolation")

DEFAULT_IMAGE = "ermite-runner-debian-13:latest"
LABEL = "dev.bnema.ermite-runner"
AT_ONCE = 4
DEFINED_S = 120  # however the daemon fails, a run has an end within this
LATE_S = 30  # what other runs at the same time may add


LAST_CAPABILITY = pathlib.Path("/proc/sys/kernel/cap_last_cap")

# By number.
CAPABILITIES = [
    f"CAP_{name}"
    for name in """CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE
    SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE""".split()
]


def capabilities_of_this_host():
    """By number the names of those that root has here and Docker knows."""
    bounding = re.search(r"CapBnd:\t(\w+)", pathlib.Path("/proc/self/status").read_text())[1]
    names = [name for number, name in enumerate(CAPABILITIES) if int(bounding, 16) >> number & 1]
    return names, int(bounding, 16)


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_tar(tmp_path_factory):
    return engine.tiny_tar(tmp_path_factory.mktemp("tiny"), IMAGE)


@pytest.fixture(scope="module")
def tiny_image(one_runner, tiny_tar):
    """The directory of an image made from it."""
    top = one_runner.state.with_name(one_runner.state.name + "-tiny")
    top.mkdir(mode=0o700)
    nowhere = {**os.environ, "DOCKER_HOST": f"unix://{top}/none"}  # or Docker would be fed with it
    done = one_runner.call("image", "import", "--state-dir", top, tiny_tar, env=nowhere)
    assert done.returncode == 0, done
    yield top / "image"
    shutil.rmtree(top)


class Place:
    """A daemon, a proxy before it, and a runner that knows it by the proxy and has an image to feed it."""

    numbers = iter(range(1, 1 << 20))

    def __init__(self, image, settings=None, prefix=()):
        name = f"{os.getpid()}-{next(self.numbers)}"
        folders = (pathlib.Path(top, f"docker-under-test-{name}") for top in ("/var/lib", "/run"))
        self.daemon = engine.Daemon(*folders, settings=settings, prefix=prefix)
        self.daemon.start()
        self.engine = self.daemon.engine
        self.proxy = engine.Proxy(self.daemon.directory / "proxy.sock", self.daemon)
        self.env = {**os.environ, "DOCKER_HOST": self.proxy.address}
        state = pathlib.Path(f"/var/lib/ermite-test-{name}")
        state.mkdir(mode=0o700)
        self.runner = Runner(state, "container", self.daemon, image)

    def words(self, words):
        return ("--user", "root", *words)

    def run(self, *words, **options):
        return self.runner.run(*self.words(words), **{"env": self.env, **options})

    def start(self, *words):
        return self.runner.start(*self.words(words), env=self.env)

    def reap(self):
        return self.runner.call("reap", "--state-dir", self.runner.state)

    def left(self):
        """What there is of sandboxes."""
        records = [str(path) for path in (self.runner.state / "sandboxes").glob("er*")]
        return records + [f"container {c['Names']} {c['State']}" for c in self.engine.containers()]

    def recover(self):
        """The daemon lives and answers, whatever was done to it."""
        if self.daemon.is_alive():
            self.daemon.signal(signal.SIGCONT)
        else:
            self.daemon.start()
        wait_for(lambda: self.engine.answers() and self.proxy.is_idle(), "the daemon's answers")

    def close(self):
        try:
            self.recover()
            self.runner.end_all()
            self.reap()
        finally:
            self.proxy.close()
            self.daemon.remove()
            self.runner.remove()


@pytest.fixture
def place(runner, tiny_image):
    """For a test that does something to the daemon."""
    place = Place(tiny_image)
    yield place
    place.close()


@pytest.fixture(scope="module")
def one_place(one_runner, tiny_image):
    place = Place(tiny_image)
    assert place.run("--", "true", limit_s=FIRST_LIMIT_S).status == 0
    yield place
    place.close()


@pytest.fixture
def shared(one_place):
    """For tests that leave the daemon alone, and no sandbox."""
    yield one_place
    one_place.runner.end_all()
    assert one_place.left() == []


# --- images -----------------------------------------------------------------------------------------------------------


def test_image_that_was_fed_with_the_first_job(runner, daemon):
    """By a fixture; the next job finds it there."""
    image = daemon.engine.get(f"/images/{DEFAULT_IMAGE}/json")
    sha256 = json.loads((IMAGE / "image.json").read_text())["sha256"]
    assert image["Config"]["Labels"] == {f"{LABEL}.image": sha256}
    outcome = runner.run("--", "true")
    assert (outcome.status, outcome.stderr) == (0, b""), outcome
    assert daemon.engine.image_id(DEFAULT_IMAGE) == image["Id"]


@pytest.mark.sanitized
def test_image_is_fed_when_it_is_missing_and_when_it_is_stale(place, tiny_tar):
    stale = "none"
    for what in ("missing", "stale"):
        outcome = place.run("--", "echo", "ran")
        assert (outcome.status, outcome.stdout) == (0, b"ran\n"), (what, outcome)
        assert DEFAULT_IMAGE.encode() in outcome.stderr, "what takes long is said"
        assert place.engine.image_id(stale) is None, "the one that was fed before is removed"
        fed = place.engine.image_id(DEFAULT_IMAGE)
        outcome = place.run("--", "echo", "ran")
        assert (outcome.status, outcome.stderr) == (0, b""), (what, outcome)
        assert place.engine.image_id(DEFAULT_IMAGE) == fed
        stale = place.daemon.import_image(tiny_tar, DEFAULT_IMAGE, f"LABEL {LABEL}.image=0123456789")
        assert place.engine.image_id(DEFAULT_IMAGE) == stale != fed


@pytest.mark.sanitized
def test_image_by_reference_and_by_id(shared, tiny_tar):
    identity = shared.daemon.import_image(tiny_tar, "team/other:1.2", "ENV A=b")
    for image in ("team/other:1.2", identity, identity.removeprefix("sha256:"), identity[7:19]):
        outcome = shared.run("--image", image, "--", "echo", "ran")
        assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"ran\n", b""), (image, outcome)
    job = shared.start("--image", "team/other:1.2", "--stdin", "--", "sh", "-c", "echo up; read x")
    job.wait_output(b"up\n")
    assert shared.engine.inspect(job.sandbox()["id"])["Image"] == identity
    job.close_stdin()
    assert job.wait().status == 1


def test_image_that_cannot_be_had(shared):
    """Nothing may be pulled here: the daemon's own words are passed on."""
    outcome = shared.run("--image", "localhost:1/no/such:image", "--", "true")
    assert (outcome.status, outcome.stdout) == (125, b""), outcome
    assert b"localhost:1/no/such" in outcome.stderr


CHANGES = (
    "VOLUME /data /home/runner/work",
    "HEALTHCHECK --interval=1s CMD touch /checked",
    'ENTRYPOINT ["/bin/false"]',
    'CMD ["no", "such"]',
    "USER nobody",
    "ENV FOREIGN=1 PATH=/nonexistent LD_PRELOAD=/x.so",
    "WORKDIR /nonexistent",
    "EXPOSE 80",
)


@pytest.mark.sanitized
def test_what_an_image_asks_for_is_overridden(shared, tiny_tar):
    shared.daemon.import_image(tiny_tar, "odd:1", *CHANGES)
    options = ("--image", "odd:1", "--stdin")
    script = "echo up; id -u; pwd; env | sort; read x; echo more >/data/file; ls /"
    job = shared.start(*options, "--", "sh", "-c", script)
    job.wait_output(b"PATH")
    seen = shared.engine.inspect(job.sandbox()["id"])
    assert shared.engine.get("/volumes")["Volumes"] in ([], None)
    time.sleep(1.5)  # longer than the interval of the health check
    job.send(b"\n")
    outcome = job.wait()
    assert (outcome.status, outcome.stderr) == (0, b""), outcome
    lines = outcome.stdout.decode().split("\n")
    assert lines[:3] == ["up", "0", "/home/runner/work"]
    assert "FOREIGN" not in outcome.stdout.decode() and "checked" not in lines, outcome
    assert "Health" not in seen["State"] and seen["State"]["Running"]
    assert shared.engine.get("/volumes")["Volumes"] in ([], None)


# --- what is created --------------------------------------------------------------------------------------------------


# What is created, by the names that the Engine API has for it. The rest is as Docker has it where nothing is asked for.
CONFIG = {
    "User": "0:0",
    "WorkingDir": "/",
    "Entrypoint": ["/opt/ermite/ermite-runner", "init"],
    "Tty": False,
    "OpenStdin": False,
    "AttachStdin": False,
    "AttachStdout": False,
    "AttachStderr": False,
}

# What an image says of these is added to it: the guest program hands nothing of that on.
ENVIRONMENT = ["ermite.sandbox=container", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]

HOST_CONFIG = {
    "NetworkMode": "none",
    "IpcMode": "private",
    "PidMode": "",
    "UTSMode": "",
    "UsernsMode": "host",
    "CgroupnsMode": "private",
    "ReadonlyRootfs": True,
    "AutoRemove": False,
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "LogConfig": {"Type": "none", "Config": {}},
    "Binds": None,
    "VolumesFrom": None,
    "PublishAllPorts": False,
    "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
    "DeviceCgroupRules": ["a *:* rwm"],
    "MaskedPaths": [],
    "ReadonlyPaths": [],
    "Memory": 512 << 20,
    "MemorySwap": 512 << 20,
    "CpuPeriod": 100000,
    "CpuQuota": 200000,
    "PidsLimit": 8192,
    "Runtime": "runc",
    "Init": False,
}


def assert_as_planned(place, job, job_id="", volumes=()):
    """The container of a job that lives, field by field."""
    identity = job.sandbox()["id"]
    seen = place.engine.inspect(identity)
    names, bounding = capabilities_of_this_host()
    is_full = bounding == (2 << int(LAST_CAPABILITY.read_text())) - 1
    if place.engine.get("/version")["ApiVersion"] < "1.42":
        names = [name for name in names if CAPABILITIES.index(name) <= CAPABILITIES.index("CAP_AUDIT_READ")]
    store = str(place.runner.state)
    labels = {"job": identity, "store": store, "caller": job_id}
    rights = {"Privileged": is_full, "CapAdd": None if is_full else names, "CapDrop": None if is_full else ["ALL"]}
    assert seen["Name"] == f"/{identity}"
    config = {**CONFIG, "Hostname": identity}
    assert {name: seen["Config"][name] for name in config} == config
    ours = {name: value for name, value in seen["Config"]["Labels"].items() if name != f"{LABEL}.image"}
    assert ours == {f"{LABEL}.{name}": value for name, value in labels.items()}
    assert seen["Config"]["Healthcheck"]["Test"] == ["NONE"] and not seen["Config"]["Cmd"]
    assert seen["Config"]["Env"][: len(ENVIRONMENT)] == ENVIRONMENT
    host_config = {**HOST_CONFIG, **rights}
    found = {name: seen["HostConfig"][name] for name in host_config}
    for some in (found, host_config):  # a set
        some["CapAdd"] = some["CapAdd"] and sorted(some["CapAdd"])
    assert found == host_config
    mounts = seen["HostConfig"]["Mounts"]
    mounts = [(m["Type"], m.get("Source", ""), m["Target"], m.get("ReadOnly", False)) for m in mounts]
    assert sorted(mounts) == sorted([
        ("bind", str(BUILD / "src" / "main" / "guest"), "/opt/ermite", True),
        ("bind", f"{store}/sandboxes/{identity}/door", "/run/ermite", True),
        ("tmpfs", "", "/run", False),
        *(("tmpfs", "", volume, False) for volume in volumes),
    ])  # fmt: skip
    assert {m["Type"] for m in seen["Mounts"]} == {"bind", "tmpfs"}
    assert set(seen["NetworkSettings"]["Networks"]) <= {"none"}
    assert seen["State"]["Status"] == "running"


@pytest.mark.sanitized
def test_container_is_as_planned(shared):
    job = shared.start("--job-id", "build \x1b[31m é 7", "--stdin", "--", "sh", "-c", "echo up; read x")
    job.wait_output(b"up\n")
    assert_as_planned(shared, job, "build \\x1b[31m é 7")
    job.close_stdin()
    assert job.wait().status == 1


def test_container_of_an_odd_image_is_as_planned(shared, tiny_tar):
    shared.daemon.import_image(tiny_tar, "odd:2", *CHANGES)
    job = shared.start("--image", "odd:2", "--stdin", "--", "sh", "-c", "echo up; read x")
    job.wait_output(b"up\n")
    assert_as_planned(shared, job, volumes=("/data", "/home/runner/work"))
    job.close_stdin()
    assert job.wait().status == 1


def test_daemon_is_asked_for_nothing_of_a_container_that_runs(shared):
    """Neither files nor processes go through the daemon."""
    shared.proxy.requests.clear()
    outcome = shared.run("--ready", "now", "--", "true")
    assert outcome.status == 0, outcome
    asked = [request for request, _ in shared.proxy.requests]
    assert len([r for r in asked if r.startswith("POST") and "/containers/create" in r]) == 1, asked
    assert not [r for r in asked if re.search(r"/(archive|export|exec|attach|logs|copy|top|update)\b", r)], asked


# --- the disk ---------------------------------------------------------------------------------------------------------


def used_kib(folder):
    # One file system, so that no container's own is counted.
    done = subprocess.run(["du", "-skx", folder], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0])


@pytest.mark.parametrize("file", ["/scratch/fill", "/fill", "/var/lib/docker/fill"])
def test_job_that_fills_its_disk(runner, daemon, unchanged, file):
    """It is the sandbox's: what the daemon keeps does not grow by it."""
    before = used_kib(daemon.directory / "data")
    script = f"dd if=/dev/zero of={file} bs=1M; echo full; read x"
    job = runner.start("--user", "root", "--stdin", "--", "sh", "-c", script)
    job.wait_output(b"full\n")
    after = used_kib(daemon.directory / "data")
    job.send(b"\n")
    outcome = job.wait()
    assert b"No space left on device" in outcome.stderr, outcome
    assert after - before < 8 << 10
    assert outcome.result["disk_used_bytes"] > 800 << 20


def test_nested_docker(runner):
    """Its data lies on the sandbox's disk; that it builds and runs is tried in test_nested.py."""
    script = """
    docker info --format '{{.Driver}} {{.DockerRootDir}}'
    stat --file-system --format %T /var/lib/docker /var/lib/containerd /var/lib/containers
    """
    outcome = runner.run("--ready", "system", "--user", "runner", "--", "sh", "-euc", script)
    assert outcome.stdout.decode().splitlines() == ["overlay2 /var/lib/docker", *3 * ["ext2/ext3"]], outcome


# --- sysbox and privilege ---------------------------------------------------------------------------------------------

# A stand-in for sysbox: it notes that it was asked, and gives an unprivileged container what a sandbox needs.
RUNTIME = """#!/usr/bin/python3
import json, os, sys
if "create" in sys.argv:
    config_file = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(config_file) as file:
        config = json.load(file)
    with open({asked!r}, "a") as file:
        file.write(json.dumps(config) + chr(10))
    names = {capabilities!r}
    config["process"]["capabilities"] = {{kind: names for kind in ("bounding", "effective", "permitted")}}
    config["process"].pop("apparmorProfile", None)
    config["linux"].pop("seccomp", None)
    config["linux"]["maskedPaths"] = config["linux"]["readonlyPaths"] = []
    config["linux"]["resources"]["devices"] = [{{"allow": True, "access": "rwm"}}]
    with open(config_file, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""


@pytest.fixture
def sysbox(runner, tiny_image, tmp_path):
    """A daemon that lists a runtime sysbox-runc, and the file where that notes what it was asked for."""
    program, asked = tmp_path / "sysbox-runc", tmp_path / "asked"
    program.write_text(RUNTIME.format(asked=str(asked), capabilities=capabilities_of_this_host()[0][:38]))
    program.chmod(0o755)
    place = Place(tiny_image, {"runtimes": {"sysbox-runc": {"path": str(program)}}})
    place.asked = asked
    yield place
    place.close()


def created(place):
    """The bodies of the requests that made containers."""
    return [json.loads(body) for request, body in place.proxy.requests if "/containers/create" in request]


@pytest.mark.sanitized
def test_sysbox_is_taken_where_the_daemon_has_it(sysbox):
    outcome = sysbox.run("--", "id", "-u")
    assert (outcome.status, outcome.stdout) == (0, b"0\n"), outcome
    assert outcome.result["isolation"] == "container_sysbox"
    assert b"privileged" not in outcome.stderr
    (request,) = created(sysbox)
    host = request["HostConfig"]
    assert host["Runtime"] == "sysbox-runc"
    for name in ("Privileged", "CapAdd", "SecurityOpt", "DeviceCgroupRules", "Devices", "UsernsMode", "MaskedPaths"):
        assert not host.get(name), name
    (config,) = map(json.loads, sysbox.asked.read_text().splitlines())
    assert "CAP_SYS_ADMIN" not in config["process"]["capabilities"]["bounding"]


def test_sysbox_where_privileged_is_denied(sysbox):
    outcome = sysbox.run("--deny-privileged", "1", "--", "echo", "ran")
    assert (outcome.status, outcome.stdout) == (0, b"ran\n"), outcome


def test_auto_takes_sysbox(sysbox):
    outcome = sysbox.run("--isolation", "auto", "--", "echo", "ran")
    assert (outcome.status, outcome.stdout) == (0, b"ran\n"), outcome
    assert outcome.result["isolation"] == "container_sysbox"


def test_auto_takes_system_before_a_privileged_container(shared):
    outcome = shared.run("--isolation", "auto", "--", "echo", "ran")
    assert (outcome.status, outcome.stdout) == (0, b"ran\n"), outcome
    assert outcome.result["isolation"] == "system"


@pytest.mark.parametrize("how", ["option", "environment"])
def test_privileged_is_denied(shared, how):
    words = ("--deny-privileged", "1") if how == "option" else ()
    env = {**shared.env, **({} if words else {"ERMITE_RUNNER_DENY_PRIVILEGED": "1"})}
    outcome = shared.run(*words, "--", "echo", "ran", env=env)
    assert (outcome.status, outcome.stdout) == (125, b""), outcome
    assert b"ERMITE_RUNNER_DENY_PRIVILEGED" in outcome.stderr and b"sysbox" in outcome.stderr
    assert not created(shared) or shared.left() == []


def test_privileged_is_warned_about_at_every_job(shared):
    words = shared.runner.command(shared.runner.new_result_file(), shared.words(["--", "true"]))
    for _ in range(2):
        done = subprocess.run(words, env=shared.env, capture_output=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done
        warnings = [w for w in WARNING.findall(done.stderr) if b"warning" in w]
        lacks = capabilities_of_this_host()[1] != (2 << int(LAST_CAPABILITY.read_text())) - 1
        assert len(warnings) == (2 if lacks else 1), done
    assert shared.run("--", "true").result["isolation"] == "container_privileged"


# --- whose containers -------------------------------------------------------------------------------------------------


def make_container(place, name, **labels):
    body = {"Image": DEFAULT_IMAGE, "Entrypoint": ["/bin/sleep"], "Cmd": ["1000"]}
    body["Labels"] = {f"{LABEL}.{key}": str(value) for key, value in labels.items()}
    body["HostConfig"] = {"NetworkMode": "none", "LogConfig": {"Type": "none"}}
    place.engine.post(f"/containers/create?name={name}", body)
    place.engine.post(f"/containers/{name}/start")


def names_of(place):
    return sorted(container["Names"][0].removeprefix("/") for container in place.engine.containers())


@pytest.mark.sanitized
def test_containers_without_a_record(shared):
    """Those with our labels go with the next reap; another store's, and those of other people, are left alone."""
    make_container(shared, "er01234567", job="er01234567", store=shared.runner.state)
    make_container(shared, "er89abcdef", job="er89abcdef", store=shared.runner.state.with_name("another"))
    make_container(shared, "somebody")
    make_container(shared, "er0000aaaa")
    try:
        done = shared.runner.call("reap", "--dry-run", "--state-dir", shared.runner.state, env=shared.env)
        assert (done.returncode, b"er01234567" in done.stdout) == (1, True), done
        assert len(names_of(shared)) == 4
        done = shared.runner.call("reap", "--state-dir", shared.runner.state, env=shared.env)
        assert done.returncode == 0, done
        assert names_of(shared) == ["er0000aaaa", "er89abcdef", "somebody"]
        assert shared.run("--", "true").status == 0
        assert names_of(shared) == ["er0000aaaa", "er89abcdef", "somebody"]
    finally:
        for name in names_of(shared):
            shared.engine.delete(f"/containers/{name}?force=1&v=1")


def test_a_start_takes_a_container_without_a_record_away(shared):
    make_container(shared, "er01234567", job="er01234567", store=shared.runner.state)
    outcome = shared.run("--", "true")
    assert outcome.status == 0, outcome
    assert names_of(shared) == []


def test_container_that_somebody_removes_under_a_job(shared):
    job = shared.start("--", "sh", "-c", "echo up; sleep 1000")
    job.wait_output(b"up\n")
    shared.engine.delete(f"/containers/{job.sandbox()['id']}?force=1&v=1")
    outcome = job.wait()
    assert (outcome.status, outcome.reason) == (125, "sandbox_died"), outcome


# --- no daemon to use -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://127.0.0.1:2375", [b"tcp://127.0.0.1:2375"]),
        ("ssh://somewhere", [b"ssh://somewhere"]),
        ("unix:///nonexistent/docker.sock", [b"/nonexistent/docker.sock"]),
    ],
)
def test_daemon_that_cannot_be_used(shared, address, words):
    outcome = shared.run("--", "echo", "ran", env={**os.environ, "DOCKER_HOST": address})
    assert (outcome.status, outcome.stdout) == (125, b""), outcome
    assert b"isolation container cannot run on this host: " in outcome.stderr
    assert all(word in outcome.stderr for word in words), outcome


@pytest.mark.sanitized
def test_daemon_that_has_gone(place):
    place.daemon.kill()
    outcome = place.run("--", "echo", "ran", env={**os.environ, "DOCKER_HOST": place.daemon.address})
    assert (outcome.status, outcome.stdout) == (125, b""), outcome
    assert str(place.daemon.socket).encode() in outcome.stderr


# --- the daemon or the keeper fails -----------------------------------------------------------------------------------

# Where in a run it happens: (request, whether it has been answered by then); None while the job runs.
MOMENTS = {
    "before probe": ("GET .*/info", False),
    "before create": ("POST .*/containers/create", False),
    "after create": ("POST .*/containers/create", True),
    "before start": ("POST .*/start", False),
    "after start": ("POST .*/start", True),
    "running": None,
    "before remove": ("DELETE .*/containers/", False),
    "after remove": ("DELETE .*/containers/", True),
}

REASONS = {"exited", "start_failed", "sandbox_died", "runner_failed", "cancelled"}


def restart(place):
    place.daemon.kill()
    place.daemon.start()


def kill_keeper(place):
    for sandbox in place.runner.ps():
        os.kill(sandbox["pid"], signal.SIGKILL)


FAULTS = {
    "killed": lambda place: place.daemon.kill(),
    "stopped": lambda place: place.daemon.signal(signal.SIGSTOP),
    "dockerd stopped": lambda place: place.daemon.signal(signal.SIGSTOP, containerd=False),
    "restarted": restart,
    "ended and started": lambda place: (place.daemon.stop(), place.daemon.start()),
    "keeper killed": kill_keeper,
}


@dataclasses.dataclass
class Seen:
    """What was seen of one run."""

    outcome: object = None
    seconds: float = 0
    reaped: object = None
    left: list = dataclasses.field(default_factory=list)
    traces: tuple = ()
    failed: list = dataclasses.field(default_factory=list)
    works: object = None


def run_with_fault(image, fault, moment):
    place = Place(image)
    try:
        return run_in(place, FAULTS[fault], MOMENTS[moment])
    finally:
        place.close()


def run_in(place, fault, at):
    seen = Seen()
    assert place.run("--", "true", limit_s=FIRST_LIMIT_S).status == 0
    before = place.daemon.traces()
    if at:
        place.proxy.at(at[0], lambda: fault(place), after=at[1])
    began = time.monotonic()
    job = place.start("--stdin", "--", "sh", "-c", "echo up; read x; exit 7")
    if at is None:
        job.wait_output(b"up\n")
        fault(place)
    job.close_stdin()
    seen.outcome = job.wait(DEFINED_S + LATE_S)
    seen.seconds = time.monotonic() - began
    place.recover()
    seen.reaped = place.reap()
    seen.left = place.left()
    seen.traces = (before, place.daemon.traces())
    seen.failed = place.proxy.failed
    seen.works = place.run("--", "echo", "again")
    return seen


@pytest.fixture(scope="module")
def session(request, one_runner, tiny_image):
    """All of them, some at a time; and the host around them."""
    chosen = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [(p["fault"], p["moment"]) for p in chosen if {"fault", "moment"} <= p.keys()]
    host = Host(one_runner.daemon)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        # Those that wait for a limit first.
        order = sorted(chosen, key=lambda c: "stopped" not in c[0])
        runs = {key: pool.submit(run_with_fault, tiny_image, *key) for key in order}
    return runs, host


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_has_a_defined_end_and_leaves_nothing(session, fault, moment):
    seen = session[0][fault, moment].result()
    outcome = seen.outcome
    assert seen.failed == []
    assert seen.seconds < DEFINED_S, outcome
    assert outcome.status in (7, 125), outcome
    assert outcome.reason in REASONS or outcome.result == {} and outcome.stderr, outcome
    assert outcome.status == 7 or outcome.stderr, outcome
    assert seen.reaped.returncode == 0, seen.reaped
    assert seen.left == [], outcome
    assert seen.traces[0] == seen.traces[1]
    assert (seen.works.status, seen.works.stdout) == (0, b"again\n"), seen.works


def test_nothing_is_left_on_the_host(session):
    session[1].assert_unchanged()


# --- a newer daemon ---------------------------------------------------------------------------------------------------


@pytest.fixture
def newer(runner, tiny_image, tmp_path):
    """The image's own dockerd, containerd and runc: its /usr in the place of the host's."""
    root = tmp_path / "root"
    root.mkdir()
    script = f'mount -o loop,ro {IMAGE}/base.ext4 {root}; mount --bind {root}/usr /usr; exec "$@"'
    place = Place(tiny_image, prefix=("unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh"))
    yield place
    place.close()


def test_newer_daemon(newer, daemon):
    version = newer.engine.get("/version")
    assert version["ApiVersion"] > daemon.engine.get("/version")["ApiVersion"]
    for number in range(2):
        outcome = newer.run("--", "echo", f"ran {number}")
        assert (outcome.status, outcome.stdout) == (0, b"ran %d\n" % number), outcome
    assert outcome.stderr == b"", outcome
    job = newer.start("--stdin", "--", "sh", "-c", "echo up; read x")
    job.wait_output(b"up\n")
    assert_as_planned(newer, job)
    os.kill(job.helper("keeper"), signal.SIGKILL)
    assert job.wait().status == 125
    assert newer.reap().returncode == 0
    assert newer.left() == []
