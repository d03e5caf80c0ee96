"""Files in and out: what arrives, and that no output, however hostile, touches anything outside its target."""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import stat

import pytest

from conftest import wait_for

pytestmark = pytest.mark.sanitized

# Prints name, kind, mode, time, owner, and checksum or target of everything below the working directory.
SHOW = """
import hashlib, json, os, stat, sys
found = {}
for folder, folders, files in os.walk(b"."):
    for name in [b""] + folders + files:
        path = os.path.join(folder, name) if name else folder
        s = os.lstat(path)
        content = None
        if stat.S_ISREG(s.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif stat.S_ISLNK(s.st_mode):
            content = os.fsdecode(os.readlink(path))
        key = os.path.normpath(path).decode("latin-1")
        found[key] = [stat.S_IFMT(s.st_mode), stat.S_IMODE(s.st_mode), int(s.st_mtime), s.st_uid, s.st_gid, content]
json.dump(found, sys.stdout)
"""


def checksum(data):
    return hashlib.sha256(data).hexdigest()


def snapshot(top):
    """Everything about the files below a directory that can change."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(top)):
        for name in [b".", *folders, *files]:
            path = os.path.join(folder, name)
            s = os.lstat(path)
            content = None
            if stat.S_ISREG(s.st_mode):
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            elif stat.S_ISLNK(s.st_mode):
                content = os.readlink(path)
            found[path] = (
                s.st_mode,
                s.st_uid,
                s.st_gid,
                s.st_size,
                s.st_mtime_ns,
                s.st_ctime_ns,
                s.st_ino,
                s.st_nlink,
                content,
            )
    return found


# --- in -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path):
    """A directory with everything in it that a project may hold."""
    top = tmp_path / "workspace"
    top.mkdir()
    (top / "plain").write_bytes(b"text\n")
    (top / "program").write_bytes(b"#!/bin/sh\necho ran\n")
    (top / "program").chmod(0o755)
    (top / "private").write_bytes(b"")
    (top / "private").chmod(0o600)
    (top / "read-only").write_bytes(b"r")
    (top / "read-only").chmod(0o444)
    (top / "setuid").write_bytes(b"s")
    (top / "setuid").chmod(0o4755)
    (top / "with blanks and\nnewline \t'\"$x").write_bytes(b"1")
    (top / "ünï→😀").write_bytes(b"2")
    (top / "-rf").write_bytes(b"3")
    (top / ("n" * 255)).write_bytes(b"4")
    with open(os.fsencode(top) + b"/\xff\xfe", "wb") as file:
        file.write(b"5")
    (top / "empty" / "deep" / "er").mkdir(parents=True)
    (top / "empty").chmod(0o700)
    (top / "large").write_bytes(os.urandom(20_000_000))
    (top / "link").symlink_to("plain")
    (top / "empty" / "up").symlink_to("../plain")
    (top / "nowhere").symlink_to("not/there")
    with (top / "sparse").open("wb") as file:
        file.seek(700 << 20)
        file.write(b"end")
    read_only = top / "read-only-directory"
    read_only.mkdir()
    (read_only / "inside").write_bytes(b"i")
    read_only.chmod(0o555)
    for number, name in enumerate(["plain", "program", "empty/deep", "empty"]):
        os.utime(top / name, (1_000_000_000 + number, 1_000_000_000 + number))
    return top


def test_workspace_is_copied_in(runner, workspace):
    before = snapshot(workspace)
    job = runner.run("--workspace", workspace, "--", "python3", "-c", SHOW)
    assert job.stderr == b"", job
    inside = json.loads(job.stdout)
    expected = {}
    for path, (mode, _, _, _, mtime_ns, *_, content) in before.items():
        name = os.path.normpath(os.path.relpath(path, os.fsencode(workspace))).decode("latin-1")
        text = os.fsdecode(content) if isinstance(content, bytes) else content
        kept = 0o777 if stat.S_ISLNK(mode) else stat.S_IMODE(mode) & 0o777
        expected[name] = [stat.S_IFMT(mode), kept, mtime_ns // 1_000_000_000, 1000, 1000, text]
    for name in inside:
        if inside[name][0] == stat.S_IFLNK:
            inside[name][2] = expected[name][2]  # the time of a link is not kept
    # The workspace's own directory is the sandbox's.
    assert {n: inside[n] for n in inside if n != "."} == {n: expected[n] for n in expected if n != "."}
    assert inside["."][3] == 1000
    assert snapshot(workspace) == before


def test_sparse_file_stays_sparse(runner, workspace):
    job = runner.run("--workspace", workspace, "--", "stat", "-c", "%s %b", "sparse")
    size, blocks = map(int, job.stdout.split())
    assert size == (700 << 20) + 3
    assert blocks * 512 < 1 << 20
    assert job.result["disk_used_bytes"] < 60 << 20


def test_job_changes_only_its_copy(runner, workspace):
    before = snapshot(workspace)
    script = "./program && chmod -R u+w . && rm -rf empty plain && echo x > program && echo y > new && find . | wc -l"
    job = runner.run("--workspace", workspace, "--", "sh", "-c", script)
    assert job.status == 0, job
    assert job.stdout.startswith(b"ran\n")
    assert snapshot(workspace) == before


def test_what_cannot_be_copied_in_is_left_out_with_a_warning(runner, tmp_path):
    top = tmp_path / "workspace"
    (top / "sub").mkdir(parents=True)
    (top / "kept").write_text("kept")
    (top / "absolute").symlink_to("/etc/passwd")
    (top / "sub" / "climbing").symlink_to("../../secret")
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(top / "fifo")
    os.mknod(top / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(top / "socket"))
    job = runner.run("--workspace", top, "--", "find", ".", "-mindepth", "1")
    assert sorted(job.stdout.split()) == [b"./kept", b"./sub"]
    warnings = job.stderr.decode().splitlines()
    assert len(warnings) == 5, job
    for name in ("absolute", "sub/climbing", "fifo", "device", "socket"):
        assert any(name in line and line.startswith("ermite-runner: warning: ") for line in warnings), name


def test_workspace_of_root_belongs_to_root(runner, tmp_path):
    (tmp_path / "f").write_text("x")
    job = runner.run("--workspace", tmp_path, "--user", "root", "--", "stat", "-c", "%U", "f")
    assert job.stdout == b"root\n", job


def test_workspace_that_is_larger_than_the_disk(runner, tmp_path):
    with (tmp_path / "large").open("wb") as file:
        for _ in range(1100):
            file.write(b"x" * (1 << 20))
    job = runner.run("--workspace", tmp_path, "--", "true")
    assert job.status == 125
    assert b"workspace: " in job.stderr
    assert b"No space left on device" in job.stderr


def test_workspace_that_is_not_there(runner, tmp_path):
    job = runner.run("--workspace", tmp_path / "none", "--", "true")
    assert job.status == 125
    assert job.stderr.decode() == f"ermite-runner: --workspace {tmp_path}/none: No such file or directory\n"
    (tmp_path / "file").write_text("")
    job = runner.run("--workspace", tmp_path / "file", "--", "true")
    assert job.stderr.decode() == f"ermite-runner: --workspace {tmp_path}/file: Not a directory\n"


# --- out ------------------------------------------------------------------------------------------------------------


def test_outputs_come_out(runner, tmp_path):
    script = """
        mkdir -p dist/sub dist/empty; echo one > dist/a; echo two > 'dist/sub/b c'; chmod 751 dist/a; chmod 700 dist/sub
        printf x > 'dist/line
break'; printf y > dist/ünï; ln -s a dist/link; ln -s ../a dist/sub/up; ln dist/a dist/hard
        touch -d @1000000000 dist/a; echo log > report.txt; echo etc > /tmp/elsewhere"""
    options = ("--output", "dist", "--output", "report.txt:renamed.txt", "--output", f"/tmp/elsewhere:{tmp_path}/t")
    job = runner.run(*options, "--", "sh", "-c", script, cwd=tmp_path)
    assert (job.status, job.stderr) == (0, b""), job
    dist = tmp_path / "dist"
    assert {str(p.relative_to(dist)) for p in dist.rglob("*")} == {
        "a", "hard", "link", "sub", "sub/b c", "sub/up", "empty", "ünï", "line\nbreak",
    }  # fmt: skip
    assert (dist / "a").read_text() == "one\n"
    assert (dist / "sub" / "b c").read_text() == "two\n"
    assert os.readlink(dist / "sub" / "up") == "../a"
    assert stat.S_IMODE((dist / "a").stat().st_mode) == 0o751
    assert stat.S_IMODE((dist / "sub").stat().st_mode) == 0o700
    assert (dist / "a").stat().st_mtime == 1_000_000_000
    assert (dist / "a").stat().st_nlink == 1
    assert (dist / "hard").read_text() == "one\n"
    assert (tmp_path / "renamed.txt").read_text() == "log\n"
    assert (tmp_path / "t").read_text() == "etc\n"
    assert {p.stat().st_uid for p in tmp_path.rglob("*") if not p.is_symlink()} == {0}


@pytest.mark.parametrize(("ending", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_outputs_come_out_after_a_failure(runner, tmp_path, ending, status):
    job = runner.run("--output", f"log:{tmp_path}/log", "--", "sh", "-c", f"echo why > log; {ending}")
    assert job.status == status
    assert (tmp_path / "log").read_text() == "why\n"


def test_outputs_come_out_after_a_timeout_and_a_full_disk(runner, tmp_path):
    script = "echo why > log; dd if=/dev/zero of=fill bs=1M 2>/dev/null; sleep 60"
    job = runner.run("--output", f"log:{tmp_path}/log", "--timeout", "3s", "--", "sh", "-c", script)
    assert (job.status, job.reason) == (124, "timeout"), job
    assert (tmp_path / "log").read_text() == "why\n"


def test_output_of_exactly_what_was_made(runner, tmp_path):
    script = """
        mkdir out; for i in $(seq 3000); do echo $i > out/$i; done
        head -c 60000000 /dev/urandom | tee out/random | sha256sum"""
    job = runner.run("--output", f"out:{tmp_path}/out", "--", "bash", "-c", script)
    assert len(list((tmp_path / "out").iterdir())) == 3001
    assert all((tmp_path / "out" / str(i)).read_text() == f"{i}\n" for i in range(1, 3001))
    assert checksum((tmp_path / "out" / "random").read_bytes()) == job.stdout.split()[0].decode()


def test_working_directory_as_output(runner, tmp_path):
    job = runner.run("--output", f".:{tmp_path}/all", "--", "sh", "-c", "echo x > f")
    assert job.status == 0, job
    assert (tmp_path / "all" / "f").read_text() == "x\n"


def test_directory_of_the_host_is_filled_up(runner, tmp_path):
    target = tmp_path / "dist"
    target.mkdir(mode=0o711)
    (target / "old").write_text("stays")
    (target / "same").write_text("goes")
    job = runner.run("--output", f"dist:{target}", "--", "sh", "-c", "mkdir dist; echo new > dist/same")
    assert job.status == 0, job
    assert (target / "old").read_text() == "stays"
    assert (target / "same").read_text() == "new\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o711


def test_files_that_only_root_inside_can_read(runner, tmp_path):
    script = "mkdir out out/d; echo s > out/f; echo t > out/d/g; chmod 0 out/f out/d out"
    job = runner.run("--output", f"out:{tmp_path}/out", "--", "sh", "-c", script)
    assert (job.status, job.stderr) == (0, b""), job
    assert (tmp_path / "out" / "d" / "g").read_text() == "t\n"
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "out" / "f").stat().st_mode) == 0


def test_missing_output(runner, tmp_path):
    job = runner.run("--output", f"none:{tmp_path}/none", "--", "true")
    assert job.status == 125
    assert job.stderr == b"ermite-runner: output none: none: No such file or directory\n", job
    assert job.reason == "runner_failed"
    job = runner.run("--output", f"none:{tmp_path}/none", "--", "sh", "-c", "exit 9")
    assert job.status == 9
    assert job.stderr == b"ermite-runner: warning: output none: none: No such file or directory\n", job
    assert (job.reason, list(tmp_path.iterdir())) == ("exited", [])


def test_missing_output_does_not_keep_the_next_one(runner, tmp_path):
    options = ("--output", f"none:{tmp_path}/none", "--output", f"there:{tmp_path}/there")
    job = runner.run(*options, "--", "sh", "-c", "echo x > there")
    assert job.status == 125
    assert (tmp_path / "there").read_text() == "x\n"


def kill_inside(*words):
    """Ends the one process of this host that was started so."""
    wanted = b"".join(word.encode() + b"\0" for word in words)
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if process.read_bytes() == wanted:
                os.kill(int(process.parent.name), signal.SIGKILL)
                return True
    return False


def test_cancelled_while_outputs_are_copied(runner, tmp_path):
    """The job has succeeded; what was asked for has not."""
    number = f"1{os.getpid()}"
    script = f"echo x > out; echo started; sleep {number}; true"
    job = runner.start("--output", f"out:{tmp_path}/out", "--", "sh", "-c", script)
    job.wait_output(b"started\n")
    job.signal(signal.SIGSTOP)  # so that it does not begin before it is cancelled
    wait_for(lambda: kill_inside("sleep", number), "the end of the job")
    job.wait_state("over")
    job.signal(signal.SIGTERM)
    job.signal(signal.SIGCONT)
    outcome = job.wait()
    sentence = "cancelled before all outputs were copied"
    assert (outcome.status, outcome.reason, outcome.evidence) == (130, "cancelled", sentence), outcome
    assert outcome.stderr.decode().endswith(f"ermite-runner: {sentence}\n"), outcome
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["", "/", "a/..", "..", "x:", "x:/no/such/directory/f"])
def test_bad_output_is_refused_before_anything_is_made(runner, output):
    job = runner.run("--output", output, "--", "touch", "/made")
    assert job.status == 125
    assert job.stderr.startswith(b"ermite-runner: --output"), job
    assert job.result == {}


# --- hostile output -------------------------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path):
    """A directory for outputs, beside files that must stay what they are."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (outside / "program").write_text("untouched")
    (outside / "program").chmod(0o755)
    (outside / "directory").mkdir()
    (outside / "directory" / "file").write_text("untouched")
    inside = tmp_path / "target"
    inside.mkdir()
    before = snapshot(outside), snapshot("/etc"), sorted(os.listdir(tmp_path))
    yield inside
    assert (snapshot(outside), snapshot("/etc"), sorted(os.listdir(tmp_path))) == before


HOSTILE = """
mkdir out; cd out
ln -s /etc/passwd absolute; ln -s / root; ln -s ../outside/file climbing; ln -s ../../../../../../etc up
mkdir d; ln -s ../../outside d/far; ln -s .. d/parent; ln -s . d/self; ln -s loop loop; ln -s ../d d/again
mkfifo fifo; echo data > fine; ln fine hard; ln -s fine link; cp /bin/true suid; chmod 6777 suid
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
mknod null c 1 3 2>/dev/null; mknod disk b 8 0 2>/dev/null; mknod whiteout c 0 0 2>/dev/null
touch -- "$(printf 'new\\nline')" "$(printf 'esc\\033[2J')" ' ' '...' '-rf' '\\'
true
"""


@pytest.mark.parametrize("user", ["root", "runner"])
def test_hostile_output(runner, target, user):
    job = runner.run("--user", user, "--output", f"out:{target}/out", "--", "bash", "-c", HOSTILE)
    assert job.status == 0, job
    out = target / "out"
    found = {os.fsdecode(os.path.relpath(p, os.fsencode(out))) for p in snapshot(out)} - {"."}
    expected = {"d", "fine", "hard", "link", "suid", "new\nline", "esc\x1b[2J", " ", "...", "-rf", "\\"}
    assert expected <= {p.removesuffix("/.") for p in found}
    for path in out.rglob("*"):
        mode = path.lstat().st_mode
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
        assert stat.S_IMODE(mode) & 0o7000 == 0, path
        assert path.lstat().st_uid == 0
        if path.is_symlink() and path.name != "loop":
            assert path.resolve().is_relative_to(out), path
    assert (out / "fine").stat().st_nlink == 1
    names = {p.name for p in out.rglob("*")}
    assert not names & {"absolute", "root", "climbing", "up", "far", "fifo", "socket", "null", "disk"}
    text = job.stderr.decode()
    assert all(line.startswith("ermite-runner: warning: output out/") for line in text.splitlines()), job
    assert {"absolute", "climbing", "fifo", "socket"} <= {
        line.split(":")[2].split("/")[-1] for line in text.splitlines()
    }
    assert "\x1b" not in text


@pytest.mark.parametrize("link", ["/etc", "../../../../etc", "/proc/1/root/etc", "/proc/self/root/etc"])
def test_output_that_is_a_link_means_what_it_means_inside(runner, target, link):
    script = f"echo of the sandbox > /etc/mark; ln -s {link} out"
    job = runner.run("--user", "root", "--output", f"out:{target}/out", "--", "sh", "-c", script)
    if (target / "out").exists():
        assert (target / "out" / "mark").read_text() == "of the sandbox\n"
    else:
        assert job.status == 125, job


@pytest.mark.parametrize("name", ["fifo", "socket"])
def test_output_that_is_no_file(runner, target, name):
    script = {
        "fifo": "mkfifo out",
        "socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"out\")'",
    }[name]
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", script)
    assert not os.path.lexists(target / "out"), job
    assert (job.status, job.stderr) == (125, b"ermite-runner: output out: out: neither a file nor a directory\n")


def test_huge_sparse_output_is_refused(runner, target):
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", "mkdir out; truncate -s 10G out/huge")
    assert job.status == 125
    assert "output out" in job.evidence and "more bytes than allowed" in job.evidence
    assert job.evidence.encode() in job.stderr
    assert sum(s[3] for s in snapshot(target).values() if stat.S_ISREG(s[0])) == 0


def test_sparse_output_stays_sparse(runner, target):
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", "truncate -s 900M out; echo x >> out")
    assert job.status == 0, job
    found = (target / "out").stat()
    assert found.st_size == (900 << 20) + 2
    assert found.st_blocks * 512 < 1 << 20


def test_links_of_the_host_are_not_followed(runner, target):
    outside = target.parent / "outside"
    (target / "out").mkdir()
    (target / "out" / "directory").symlink_to(outside / "directory")
    (target / "out" / "file").symlink_to(outside / "file")
    script = "mkdir -p out/directory; echo overwritten > out/directory/file; echo overwritten > out/file"
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", script)
    assert job.status == 125, job
    assert b"directory is in the way: it is not a directory" in job.stderr
    os.unlink(target / "out" / "directory")
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", script)
    assert job.status == 0, job
    assert not (target / "out" / "file").is_symlink()
    assert (target / "out" / "file").read_text() == "overwritten\n"


@pytest.mark.parametrize(("kind", "script"), [("file", "echo x > out"), ("directory", "mkdir out; echo x > out/file")])
def test_link_of_the_host_in_place_of_the_output(runner, target, kind, script):
    (target / "out").symlink_to(target.parent / "outside" / kind)
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", script)
    if kind == "file":
        assert job.status == 0, job
        assert (target / "out").read_text() == "x\n"
        assert not (target / "out").is_symlink()
    else:
        assert job.status == 125, job
        assert b"is in the way" in job.stderr


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda p: os.mknod(p, 0o600 | stat.S_IFCHR, os.makedev(1, 3))])
def test_what_is_in_the_way_on_the_host_stays(runner, target, make):
    make(target / "out")
    before = os.lstat(target / "out")
    job = runner.run("--output", f"out:{target}/out", "--", "sh", "-c", "echo x > out")
    assert job.status == 125, job
    assert b"is in the way" in job.stderr
    assert os.lstat(target / "out")[:7] == before[:7]


def test_output_that_changes_while_it_is_read(runner, target):
    """A process that the job leaves behind swaps a directory for links out of it as fast as it can."""
    swapping = """
import os
while True:
    for name in ("/etc", "../../outside", "d2"):
        try:
            os.symlink(name, "out/l"); os.rename("out/d", "out/x"); os.rename("out/l", "out/d")
            os.unlink("out/d"); os.rename("out/x", "out/d")
        except OSError:
            pass
"""
    script = f"""
        mkdir -p out/d out/d2; for i in $(seq 500); do echo $i > out/d/$i; echo $i > out/d2/$i; done
        setsid python3 -c '{swapping}' >/dev/null 2>&1 &"""
    for _ in range(3):
        job = runner.run("--user", "root", "--output", f"out:{target}/out", "--", "sh", "-c", script)
        assert job.status in (0, 125), job
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target), path


@pytest.mark.parametrize(("name", "levels"), [("d", 1500), ("d" * 100, 60)])
def test_output_that_is_too_deep(runner, target, name, levels):
    script = f"""
import os
os.mkdir("out"); os.chdir("out")
for i in range({levels}):
    os.mkdir("{name}"); os.chdir("{name}")"""
    job = runner.run("--output", f"out:{target}/out", "--", "python3", "-c", script)
    assert job.status == 0, job
    warnings = job.stderr.decode().splitlines()
    assert len(warnings) == 1
    assert warnings[0].endswith(
        f"/{name}: not copied: it is a device, a socket, a FIFO, a link that leads out, or too deep"
    )
    assert sum(1 for _ in (target / "out").rglob("*")) == min(127, 4095 // (len(name) + 1) - 3)
