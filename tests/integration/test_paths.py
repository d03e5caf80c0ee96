"""Links in the way: processes of an unprivileged user, or of the job, exchange what the runner is about to open for links
to elsewhere, as fast as they can. Nothing outside is read, written or removed."""

import contextlib
import json
import os
import subprocess

import pytest

from conftest import BUILD, IMAGE, wait_for

pytestmark = pytest.mark.only("system", why="paths of the host, and files in and out, are the same for each isolation")

FULL = bool(os.environ.get("ERMITE_FULL"))
TRIES = 1_000_000 if FULL else 20_000
TRIES_LIMIT_S = 5400
ROUNDS = 200 if FULL else 6
ATTACKER = 4001
SECRET = "what only root may read"
PYTHON = "/usr/bin/python3"

# Exchanges pairs of names in the working directory until it is killed.
WAR = """
import ctypes, sys
rename = ctypes.CDLL(None).renameat2
pairs = [tuple(name.encode() for name in pair.split(",")) for pair in sys.argv[1:]]
while True:
    for a, b in pairs:
        rename(-100, a, -100, b, 2)
"""


# --- our own ways of opening ------------------------------------------------------------------------------------------


def test_ways_of_opening(tmp_path):
    """tests/crash/symlinkwar.c: the wrong one shows that the attack works, the others stay inside."""
    command = [BUILD / "tests" / "crash" / "symlinkwar", tmp_path, str(TRIES)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=TRIES_LIMIT_S)
    assert (done.returncode, done.stderr) == (0, b""), done
    ways = {way.pop("way"): way for way in map(json.loads, done.stdout.splitlines())}
    assert ways.pop("look and open")["escaped"] > 0
    assert len(ways) == 8
    for name, count in ways.items():
        assert count["escaped"] == 0, (name, count)
        assert count["opened"] > 0 and count["refused"] > 0, (name, count)
    left = sorted(str(path.relative_to(tmp_path / "victim")) for path in (tmp_path / "victim").rglob("*"))
    assert left == ["d", "d/f", "f"]


# --- a user of the host -----------------------------------------------------------------------------------------------


def picture(directory):
    """Everything in a directory, with what a write would change."""
    found = {}
    for path in [directory, *directory.rglob("*")]:
        s = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = (s.st_mode, s.st_uid, s.st_ino, s.st_mtime_ns, content)
    return found


class Field:
    """A directory of the attacker's, and one of root's with names that the runner would use."""

    def __init__(self, top):
        self.victim = top / "victim"
        self.war = top / "war"
        self.attackers = []
        for folder in (self.victim, self.victim / "d", self.victim / "tree", self.victim / "tree" / "d"):
            folder.mkdir(mode=0o700)
            for name in ("secret", "result.json", "network.log", "env"):
                (folder / name).write_text(f"{SECRET}\n")
        self.make_dir("")

    def make_dir(self, name):
        path = self.war / name
        path.mkdir(exist_ok=True)
        os.chown(path, ATTACKER, ATTACKER)
        return path

    def make_file(self, name, text):
        path = self.war / name
        path.write_text(text)
        os.chown(path, ATTACKER, ATTACKER)

    def make_link(self, name, target):
        path = self.war / name
        path.symlink_to(target)
        os.chown(path, ATTACKER, ATTACKER, follow_symlinks=False)

    def attack(self, directory, *pairs):
        """pairs: "a,b"."""
        words = [PYTHON, "-c", WAR, *pairs]
        user = {"user": ATTACKER, "group": ATTACKER, "extra_groups": []}
        self.attackers.append(subprocess.Popen(words, cwd=directory, stdin=subprocess.DEVNULL, **user))

    def wait_for_escape(self, path):
        """Until who just opens the path has read the secret: so the attack is there and works."""

        def reads():
            with contextlib.suppress(OSError):
                return SECRET in (self.war / path).read_text()
            return False

        wait_for(reads, "an escape of a program that is not careful")

    def end(self):
        for attacker in self.attackers:
            attacker.kill()
            attacker.wait()


@pytest.fixture
def field(tmp_path):
    field = Field(tmp_path)
    before = picture(field.victim)
    yield field
    field.end()
    assert picture(field.victim) == before


def assert_ended(job):
    """By itself: well, or refused in words. Returns whether it was refused."""
    assert job.status in (0, 125), job
    if job.status == 125:
        assert job.stderr.startswith(b"ermite-runner: "), job
    assert SECRET.encode() not in job.stdout + job.stderr, job
    return job.status == 125


def test_workspace_war(runner, field):
    for name in ("src", "src/d"):
        field.make_dir(name)
        field.make_file(f"{name}/secret", "mine\n")
    for i in range(50):
        field.make_file(f"src/d/{i}", "mine\n")
    field.make_link("evil", field.victim)
    field.make_link("src/e", field.victim / "d")
    field.make_link("src/g", field.victim / "secret")
    field.attack(field.war, "src,evil")
    field.attack(field.war / "src", "d,e", "secret,g")
    field.wait_for_escape("src/secret")
    field.wait_for_escape("src/d/secret")
    for _ in range(ROUNDS):
        job = runner.run("--workspace", field.war / "src", "--", "sh", "-c", f"grep -r '{SECRET}' . || echo clean")
        if not assert_ended(job):
            assert job.stdout == b"clean\n", job


def test_env_file_war(runner, field):
    field.make_file("env", "A=mine\n")
    field.make_link("link", field.victim / "env")
    field.make_dir("dir")
    field.make_file("dir/env", "A=mine\n")
    field.make_link("evil", field.victim)
    field.attack(field.war, "env,link", "dir,evil")
    field.wait_for_escape("env")
    field.wait_for_escape("dir/env")
    for option in ("--env-file", "--secret-file"):
        for name in ("env", "dir/env"):
            for _ in range(ROUNDS * 10):
                # What is not there is refused before a sandbox is made.
                words = ("run", *runner.base, option, field.war / name, "--output", "x:/no/such/directory/x", "true")
                done = runner.call(*words)
                assert (done.returncode, done.stdout) == (125, b""), done
                # The secret has no "=", and would be refused with its line's number.
                said = done.stderr.decode()
                assert ":1:" not in said and SECRET not in said, said


def test_outputs_war(runner, field):
    """Outputs, result and network log go into a directory that is exchanged, and directories in it are, too."""
    for name in ("out", "out/tree", "out/tree/d"):
        field.make_dir(name)
    field.make_link("evil", field.victim)
    field.make_link("out/link", field.victim / "tree")
    field.make_link("out/tree/e", field.victim / "d")
    field.attack(field.war, "out,evil")
    field.attack(field.war / "out", "tree,link")
    field.attack(field.war / "out" / "tree", "d,e")
    field.wait_for_escape("out/secret")
    field.wait_for_escape("out/tree/d/secret")
    script = """
        mkdir -p tree/d; for i in $(seq 100); do echo x >tree/$i; echo x >tree/d/$i; done
        for n in secret result.json network.log env; do echo x >tree/$n; echo x >tree/d/$n; done"""
    out = field.war / "out"
    files = ("--output", f"tree:{out}/tree", "--result", out / "result.json", "--network-log", out / "network.log")
    for _ in range(ROUNDS):
        assert_ended(runner.run(*files, "--", "sh", "-c", script))
        assert_ended(runner.run("--output", f"tree/d:{out}/tree/d", "--", "sh", "-c", script))


def test_link_that_stands_still(runner, field):
    """Each path of the command line: what another user's link leads to is not theirs."""
    field.make_link("evil", field.victim)
    field.make_link("env", field.victim / "env")
    refused = f"a link of user {ATTACKER} leads to what is not theirs"
    for option, value in (
        ("--workspace", "evil"),
        ("--workspace", "evil/d/.."),
        ("--env-file", "env"),
        ("--env-file", "evil/env"),
        ("--secret-file", "env"),
        ("--output", "x:{}/evil/x"),
        ("--output", "x:{}/evil/d/.."),
        ("--output", "x:{}/evil/."),
        ("--result", "evil/result.json"),
        ("--network-log", "evil/network.log"),
        ("--network-log", "evil/new.log"),
    ):
        value = value.format(field.war) if "{" in value else str(field.war / value)
        done = runner.call("run", *runner.base, option, value, "--", "true")
        assert (done.returncode, done.stdout) == (125, b""), done
        assert done.stderr.decode().endswith(f": {refused}\n"), done


def test_links_to_what_is_theirs(runner, field):
    """A user may have links in the way, as root may."""
    field.make_dir("real")
    field.make_file("real/f", "mine\n")
    field.make_link("link", "real")
    (field.war.parent / "root").symlink_to(field.war / "link")
    for directory in (field.war / "link", field.war.parent / "root"):
        words = ("--workspace", directory, "--output", f"f:{directory}/copy", "--network-log", directory / "log")
        job = runner.run(*words, "--", "cat", "f")
        assert (job.status, job.stdout) == (0, b"mine\n"), job
        assert (field.war / "real" / "copy").read_text() == "mine\n"


def test_network_log_with_another_name(runner, field):
    """A hard link to somebody else's file, as a host without protected_hardlinks lets everybody make it."""
    log = field.war / "log"
    log.hardlink_to(field.victim / "secret")
    done = runner.call("run", *runner.base, "--network-log", log, "--", "true")
    assert done.returncode == 125
    sentence = f"--network-log {log}: the file that is there has another name, too"
    assert done.stderr.decode() == f"ermite-runner: {sentence}\n"
    log.unlink()
    assert (field.victim / "secret").read_text() == f"{SECRET}\n"


def test_image_of_another_user(runner, field):
    """The kernel reads the image as a disk: it is root's, by whatever path it is named."""
    field.make_link("evil", IMAGE)
    field.make_dir("own")
    field.make_file("own/base.ext4", "")
    for name, sentence in (
        ("evil", f"{field.war}/evil: a link of user {ATTACKER} leads to what is not theirs"),
        ("own", f"{field.war}/own: base.ext4 must belong to root, not to user {ATTACKER}"),
    ):
        job = runner.run("--image", field.war / name, "--", "true")
        assert job.status == 125, job
        assert sentence in job.evidence, job


def test_externals_of_another_user(runner, field):
    field.make_link("evil", field.victim)
    job = runner.run("--externals", field.war / "evil", "--", "cat", "/opt/externals/secret")
    assert (job.status, job.stdout) == (125, b""), job
    assert f"{field.war}/evil: a link of user {ATTACKER} leads to what is not theirs" in job.evidence, job


# --- the job ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["root", "runner"])
def test_war_of_a_job(runner, tmp_path, user):
    """Inside, everything may become everything; outside, all stays in the output."""
    target = tmp_path / "target"
    target.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("stays\n")
    before = picture(outside)
    # The links are where the same path outside would lead to the host's.
    script = f"""
        mkdir -p out/d; for i in $(seq 200); do echo $i >out/$i; echo $i >out/d/$i; done
        ln -s /etc evil; ln -s {outside} out/e; ln -s ../../outside out/g; ln -s {outside}/f out/h; echo x >out/f
        ln -s / ../other || true
        setsid {PYTHON} -c '{WAR}' out,evil ../work,../other </dev/null >/dev/null 2>&1 &
        cd out; setsid {PYTHON} -c '{WAR}' d,e d,g f,h </dev/null >/dev/null 2>&1 &
        sleep 0.2"""
    outputs = [word for name in ("out", "out/d", "out/f") for word in ("--output", f"{name}:{target}/{name[-1]}")]
    for _ in range(ROUNDS // 3):
        job = runner.run("--user", user, *outputs, "--", "sh", "-c", script)
        assert job.status in (0, 125), job
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target), path
        assert picture(outside) == before
        subprocess.run(["rm", "-r", target], check=True)
        target.mkdir()


# --- a hostile state directory ----------------------------------------------------------------------------------------


def aside(path):
    """Moves something away while a test puts another thing in its place."""
    other = path.with_name(path.name + ".aside")
    path.rename(other)
    return other


@pytest.fixture
def templates(runner):
    place = runner.state / "templates"
    other = aside(place)
    yield place, other
    subprocess.run(["rm", "-rf", place], check=True)
    other.rename(place)


@pytest.mark.parametrize("what", ["link", "owner", "writable", "file"])
def test_hostile_templates(runner, templates, what):
    place, other = templates
    if what == "link":
        place.symlink_to(other)
    elif what == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777 if what == "writable" else 0o755)
        os.chown(place, ATTACKER if what == "owner" else 0, 0)
    before = sorted(os.listdir(other))
    job = runner.run("--", "true")
    assert job.status == 125, job
    assert b"the directory of templates" in job.stderr, job
    assert sorted(os.listdir(other)) == before
