"""A job's own doing comes through: status, output, input, environment, user, directory, terminal, result."""

import fcntl
import hashlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time

import pytest

from conftest import PROGRAM, Output, wait_for

pytestmark = pytest.mark.sanitized

GIB = 1 << 30


@pytest.mark.parametrize("status", [0, 1, 42, 124, 255])
def test_exit_status_is_the_commands(runner, status):
    outcome = runner.run("--", "sh", "-c", f"exit {status}")
    assert (outcome.status, outcome.stderr) == (status, b"")
    assert outcome.reason == "exited"
    assert outcome.evidence == f"the job exited with status {status}"
    assert (outcome.result["exit_status"], outcome.result["signal"]) == (status, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_signal_becomes_128_and_its_number(runner, number):
    outcome = runner.run("--", "sh", "-c", f"kill -{number:d} $$")
    assert outcome.status == 128 + number
    assert outcome.reason == "signalled"
    assert outcome.evidence == f"the job was ended by signal {number:d} ({number.name})"
    assert outcome.result["signal"] == number


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("no-such-command", 127, b"no-such-command: command not found"),
        ("/no/such/file", 127, b"/no/such/file: No such file or directory"),
        ("/etc/passwd", 126, b"/etc/passwd: Permission denied"),
        ("/etc", 126, b"/etc: Permission denied"),
    ],
)
def test_command_that_cannot_be_executed(runner, command, status, words):
    outcome = runner.run("--", command)
    assert outcome.status == status
    assert words in outcome.stderr
    assert (outcome.reason, outcome.result["exit_status"]) == ("start_failed", status)
    assert outcome.evidence.encode() in outcome.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--user", "nobody-has-this"], b"nobody-has-this"),
        (["--workdir", "/no/such/directory"], b"workdir"),
        (["--workdir", "/proc/self/fd/3"], b"workdir"),
        (["--workdir", "/etc/passwd"], b"workdir"),
    ],
)
def test_job_that_cannot_be_set_up(runner, options, words):
    outcome = runner.run(*options, "--", "true")
    assert outcome.status == 125
    assert words in outcome.stderr
    assert outcome.reason == "start_failed"


def test_streams_are_separate_and_in_order(runner):
    script = 'for i in $(seq 2000); do echo "out $i"; echo "err $i" >&2; done'
    outcome = runner.run("--", "sh", "-c", script)
    assert outcome.status == 0
    assert outcome.stdout.split() == " ".join(f"out {i}" for i in range(1, 2001)).encode().split()
    assert outcome.stderr.split() == " ".join(f"err {i}" for i in range(1, 2001)).encode().split()
    assert outcome.result["output_bytes"] == len(outcome.stdout) + len(outcome.stderr)


def test_both_streams_into_one_pipe_keep_their_order(runner):
    script = 'for i in $(seq 500); do echo "$i"; done 2>&1; echo end'
    outcome = runner.run("--", "sh", "-c", script, stderr=subprocess.STDOUT)
    assert outcome.stdout.split() == [*(b"%d" % i for i in range(1, 501)), b"end"]


def test_output_comes_at_once(runner):
    job = runner.start(
        "--stdin", "--", "sh", "-c", "echo one; echo two >&2; read x; printf 'no newline'; read x; echo three"
    )
    job.wait_output(b"one\n")
    job.wait_stderr(b"two\n")
    job.send(b"\n")
    job.wait_output(b"no newline")
    assert job.process.poll() is None
    job.send(b"\n")
    outcome = job.wait()
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, b"one\nno newlinethree\n", b"two\n")


def test_output_is_any_bytes(runner):
    outcome = runner.run("--", "python3", "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)")
    assert outcome.stdout == bytes(range(256)) * 3


def test_closed_output_cancels_the_job(runner):
    done = subprocess.run(
        f'{" ".join(runner.command(runner.new_result_file(), ["--", "yes"]))} | head -n 3; echo "${{PIPESTATUS[0]}}"',
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split() == [b"y", b"y", b"y", b"130"], done


def test_environment(runner, tmp_path):
    file = tmp_path / "env"
    file.write_text('# comment\n\nFROM_FILE=it\'s "as it stands" $HOME\n  BOTH=file\nEMPTY=\n')
    options = ("--env", "A=b=c", "--env", "BOTH=first", "--env-file", file, "--env", "A=last", "--env", "NL=one\ntwo")
    outcome = runner.run(*options, "--", "python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))")
    seen = json.loads(outcome.stdout)
    assert seen == {
        "A": "last",
        "BOTH": "file",
        "EMPTY": "",
        "FROM_FILE": 'it\'s "as it stands" $HOME',
        "HOME": "/home/runner",
        "LANG": "C.UTF-8",
        "LOGNAME": "runner",
        "NL": "one\ntwo",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SHELL": "/bin/bash",
        "USER": "runner",
        **{name: seen[name] for name in ("PWD", "LC_CTYPE") if name in seen},
    }


def test_environment_of_the_host_stays_there(runner):
    outcome = runner.run("--", "env", env={**os.environ, "HOST_ONLY": "1", "LD_PRELOAD": ""})
    assert b"HOST_ONLY" not in outcome.stdout
    assert b"LD_PRELOAD" not in outcome.stdout


def test_large_environment_and_arguments(runner):
    words = [f"{i}" * 50 for i in range(1000)]
    variables = [word for i in range(200) for word in ("--env", f"V{i}={'x' * 2000}")]
    outcome = runner.run(*variables, "--", "sh", "-c", 'echo $#; env | grep -c "^V[0-9]*=x*$"', "sh", *words)
    assert outcome.stdout.split() == [b"1000", b"200"], outcome


@pytest.mark.parametrize(
    ("options", "directory"),
    [
        ([], "/home/runner/work"),
        (["--workdir", "/tmp"], "/tmp"),
        (["--workdir", "/var/../etc"], "/etc"),
    ],
)
def test_directory(runner, options, directory):
    outcome = runner.run(*options, "--", "pwd", "-P")
    assert outcome.stdout.decode() == f"{directory}\n"


def test_relative_directory_lies_in_the_workspace(runner, tmp_path):
    (tmp_path / "a b").mkdir()
    outcome = runner.run("--workspace", tmp_path, "--workdir", "a b", "--", "pwd", "-P")
    assert outcome.stdout == b"/home/runner/work/a b\n"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (None, "1000 1000 runner /home/runner"),
        ("runner", "1000 1000 runner /home/runner"),
        ("root", "0 0 root /root"),
        ("0", "0 0 root /root"),
        ("1000", "1000 1000 runner /home/runner"),
        ("4321", "4321 0 4321 /"),
        ("root:runner", "0 1000 root /root"),
        ("4321:1234", "4321 1234 4321 /"),
    ],
)
def test_user(runner, user, expected):
    options = ["--user", user] if user else []
    outcome = runner.run(*options, "--", "sh", "-c", 'echo "$(id -u) $(id -g) $USER $HOME"')
    assert outcome.stdout.decode().strip() == expected, outcome


def test_runner_may_become_root(runner):
    outcome = runner.run("--", "sh", "-c", "id -nG; sudo -n id -u")
    assert outcome.stdout.split() == [b"runner", b"sudo", b"docker", b"0"], outcome


def test_standard_input_is_empty_unless_asked_for(runner):
    assert runner.run("--", "cat", input=b"not for the job").stdout == b""
    assert runner.run("--stdin", "--", "cat", input=b"for the job\0\xff").stdout == b"for the job\0\xff"


def test_job_that_does_not_read_its_input(runner):
    outcome = runner.run("--stdin", "--", "echo", "done", input=b"x" * (8 << 20))
    assert (outcome.status, outcome.stdout) == (0, b"done\n"), outcome


def test_descriptors_of_the_job(runner):
    outcome = runner.run("--", "sh", "-c", "ls /proc/self/fd")
    assert outcome.stdout.split() == [b"0", b"1", b"2", b"3"], outcome  # 3 is the directory that ls reads


def test_job_with_a_background_process_that_holds_its_output(runner):
    """The job's end is its exit; stragglers have five seconds for what they still say, and are ended then."""
    began = time.monotonic()
    outcome = runner.run("--", "sh", "-c", "(sleep 1; echo late; sleep 60; echo never) & echo early; exit 3")
    took = time.monotonic() - began
    assert (outcome.status, outcome.stdout) == (3, b"early\nlate\n"), outcome
    assert 4.5 < took < 12


def test_job_with_a_background_process_that_holds_nothing(runner):
    began = time.monotonic()
    outcome = runner.run("--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo early")
    assert (outcome.status, outcome.stdout) == (0, b"early\n"), outcome
    assert time.monotonic() - began < 4


# --- much -----------------------------------------------------------------------------------------------------------


def gibibyte(write, close):
    """Writes 1 GiB that does not repeat itself soon; returns its checksum."""
    block = os.urandom(1 << 20)
    digest = hashlib.sha256()
    for number in range(GIB >> 20):
        piece = struct.pack("<Q", number) + block[8:]
        digest.update(piece)
        write(piece)
    close()
    return digest.hexdigest()


def test_one_gibibyte_in(runner):
    job = runner.start("--stdin", "--", "sha256sum")
    expected = gibibyte(job.process.stdin.write, job.close_stdin)
    outcome = job.wait()
    assert outcome.stdout.split()[0].decode() == expected, outcome


def test_one_gibibyte_out(runner):
    # What comes out is the same as what the job saw, by its own word on the other stream.
    script = "{ head -c 1073741824 /dev/urandom | tee /proc/self/fd/3 | sha256sum >&2; } 3>&1"
    process = subprocess.Popen(
        runner.command(runner.new_result_file(), ["--", "sh", "-c", script]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    digest = hashlib.sha256()
    n = 0
    while piece := process.stdout.read(1 << 20):
        digest.update(piece)
        n += len(piece)
    said = runner.without_warning(process.stderr.read())
    assert process.wait(60) == 0
    assert n == GIB
    assert said.split()[0].decode() == digest.hexdigest()


def test_a_line_of_200_megabytes(runner):
    size = 200_000_000
    outcome = runner.run(
        "--secret", "PASSWORD=correct horse", "--", "sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x"
    )
    assert len(outcome.stdout) == size
    assert outcome.stdout.count(b"x") == size


# --- terminal -------------------------------------------------------------------------------------------------------


class Terminal:
    """A terminal with a run in it."""

    def __init__(self, runner, *words, rows=33, columns=101):
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.result_file = runner.new_result_file()
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        self.process = subprocess.Popen(
            runner.command(self.result_file, ["-t", *words]),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "vt220"},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.file = os.fdopen(self.ours, "rb", buffering=0)
        self.output = Output(self.file)

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.ours, text)

    def wait_output(self, wanted):
        self.output.wait(wanted, 30)

    def wait(self):
        status = self.process.wait(60)
        assert termios.tcgetattr(self.theirs) == self.before, "the terminal was left raw"
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.theirs)
        self.output.all()
        self.file.close()


@pytest.fixture
def terminal(runner):
    opened = []

    def make(*words, **options):
        opened.append(Terminal(runner, *words, **options))
        return opened[-1]

    yield make
    for t in opened:
        t.close()


def test_terminal(terminal):
    t = terminal(
        "--", "sh", "-c", 'stty size; tty; test -t 0 && test -t 1 && test -t 2 && echo "$TERM all"; read x; exit 7'
    )
    t.wait_output(b"33 101\r\n/dev/pts/")
    t.wait_output(b"vt220 all\r\n")
    t.type(b"\r")
    assert t.wait() == 7


SHOW_SIZE = """
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"%d %d\\n" % os.get_terminal_size()))
print("ready", flush=True)
sys.stdin.read()
"""


def test_terminal_follows_the_size(terminal):
    t = terminal("--", "python3", "-c", SHOW_SIZE)
    t.wait_output(b"ready\r\n")
    for rows in range(20, 60, 5):
        t.resize(rows, 120)
        t.wait_output(b"120 %d\r\n" % rows)
    t.type(b"\x04")
    assert t.wait() == 0


def test_interrupt_typed_in_the_terminal_goes_to_the_job(terminal):
    t = terminal("--", "sh", "-c", "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep 0.05; done")
    t.wait_output(b"ready\r\n")
    t.type(b"\x03")
    t.wait_output(b"interrupted\r\n")
    assert t.wait() == 9


def test_shell_with_job_control_in_the_terminal(terminal):
    t = terminal("--env", "PS1=prompt> ", "--", "bash", "--norc", "-i")
    t.wait_output(b"prompt> ")
    t.type(b"echo $((6 * 7))\r")
    t.wait_output(b"42\r\n")
    t.type(b"sleep 300\r")
    t.wait_output(b"sleep 300\r\n")
    time.sleep(0.3)  # the shell hands the terminal over after it has echoed the line
    t.type(b"\x1a")
    t.wait_output(b"Stopped")
    t.type(b"kill %1; exit 5\r")
    t.type(b"exit 5\r")
    assert t.wait() == 5
    assert b"no job control" not in t.output.bytes


def test_terminal_needs_a_terminal(runner):
    outcome = runner.run("-t", "--", "true")
    assert outcome.status == 125
    assert outcome.stderr == b"ermite-runner: --terminal: standard input is not a terminal\n"


# --- result ---------------------------------------------------------------------------------------------------------


def test_result(runner):
    options = ("--job-cpus", "1", "--job-memory", "300M", "--job-pids", "99", "--timeout", "90s", "--job-id", "build 7")
    script = "head -c 30000000 /dev/urandom > f; sync; i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; echo done"
    outcome = runner.run(*options, "--", "sh", "-c", script)
    result = outcome.result
    assert re.fullmatch("er[0-9a-f]{8}", result["id"])
    assert result["job_id"] == "build 7"
    assert (result["isolation"], result["slot"], result["ready"]) == (runner.reported, 0, "now")
    assert result["limits"] == {
        "memory_mib": 300, "disk_mib": 1024, "cpus": 1, "pids": 99, "timeout_ms": 90000, "network": "none",
        "flows": 0, "net_bytes_per_s": 0,
    }  # fmt: skip
    assert result["enforced"] == dict.fromkeys(("memory", "disk", "cpus", "pids", "network"), True)
    phases = result["phases_ms"]
    assert list(phases) == ["create", "boot", "ready", "copy_in", "run", "copy_out", "take_down"]
    assert all(0 <= ms < 60000 for ms in phases.values())
    assert phases["create"] > 0 and phases["boot"] > 0 and phases["run"] > 0
    assert 1 << 20 < result["memory_peak_bytes"] <= 300 << 20
    assert 0.05 < result["cpu_seconds"] < 30
    assert 30_000_000 <= result["disk_used_bytes"] < 60_000_000
    assert result["output_bytes"] == 5
    assert result["network_bytes"] == 0
    used = result["network"]
    assert set(used.pop("refused").values()) == {0}
    assert used == {"sent_bytes": 0, "received_bytes": 0, "flows": 0, "dns_questions": 0}


def test_result_is_one_line_and_replaces_the_file(runner, tmp_path):
    file = tmp_path / "result"
    file.write_text("old\n" * 1000)
    runner.run("--result", file, "--", "true")
    lines = file.read_text().splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0])["reason"] == "exited"
    assert [p.name for p in tmp_path.iterdir()] == ["result"]


def test_result_of_a_run_that_could_not_start(runner):
    outcome = runner.run("--job-disk-iops", "100", "--", "true")
    assert outcome.status == 125
    assert outcome.reason == "start_failed"
    assert "the disk rate limit cannot be enforced on this host" in outcome.evidence
    assert outcome.evidence.encode() in outcome.stderr
    assert outcome.result["enforced"]["disk"] is False


def test_summary(runner):
    outcome = runner.run("--summary", "--job-id", "summary \x1b[31m test", "--", "sh", "-c", "echo out; exit 4")
    assert outcome.stdout == b"out\n"
    text = outcome.stderr.decode()
    assert re.search(rf"^sandbox +er[0-9a-f]{{8}} \({runner.reported}, slot 0\)$", text, re.MULTILINE)
    assert re.search(r"^ended +exited with status 4$", text, re.MULTILINE)
    assert re.search(
        r"^limits +memory 512 MiB, disk 1024 MiB, 2 CPUs, 8192 processes, network none", text, re.MULTILINE
    )
    assert re.search(r"^times +create \d+ ms, boot \d+ ms, ", text, re.MULTILINE)
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "line one\nline two\nstate forged\nslot 7\n",
        "quote ' double \" back\\slash / ../../etc \t tab",
        "ünï→😀",
        "a" * 255,
        "%s%n $(reboot) `id`",
    ],
)
def test_job_id_is_any_text(runner, text):
    job = runner.start("--job-id", text, "--stdin", "--", "cat")
    sandbox = job.wait_state("running")
    assert sandbox["slot"] == 0
    assert sandbox["job_id"] == re.sub(r"[\x00-\x1f\x7f]", "?", text)
    job.close_stdin()
    outcome = job.wait()
    assert outcome.status == 0
    assert outcome.result["job_id"] == text


def test_job_id_of_bytes_that_are_no_text(runner):
    file = runner.new_result_file()
    words = runner.command(file, ["--job-id"])
    done = subprocess.run(
        [*map(os.fsencode, words), b"a\xff\xfe\x80b", b"--", b"true"], capture_output=True, check=False
    )
    assert done.returncode == 0, done
    assert json.loads(file.read_bytes().decode())["job_id"] == "a\ufffd\ufffd\ufffdb"


def test_job_id_that_is_too_long(runner):
    outcome = runner.run("--job-id", "a" * 256, "--", "true")
    assert (outcome.status, outcome.stderr) == (125, b"ermite-runner: --job-id: at most 255 bytes are accepted\n")


def test_job_sees_a_host_name_that_resolves(runner):
    outcome = runner.run("--", "sh", "-c", "getent hosts $(hostname); hostname")
    assert outcome.stdout.decode().split()[-1] == outcome.result["id"]
    assert outcome.stdout.startswith(b"127.0.1.1")


def test_version_of_the_program_is_that_of_the_guest():
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"ermite-runner \d+\.\d+\.\d+-\S+\n", done.stdout)


def test_system_is_up_when_the_job_starts(runner):
    """--ready system is what an image with systemd gets unless told otherwise, or a container with Docker inside."""
    asks = {"system": "systemctl is-system-running", "container": "docker info --format running"}
    script = f"{asks[runner.isolation]}; test -S /run/docker.sock"
    words = runner.command(runner.new_result_file(), ["--", "sh", "-c", script])
    at = words.index("--ready")
    done = subprocess.run(words[:at] + words[at + 2 :], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"running\n"), done


def test_two_processes_of_the_program_do_not_disturb_each_other(runner):
    jobs = [runner.start("--capacity", "2", "--stdin", "--", "cat") for _ in range(2)]
    slots = {job.wait_state("running")["slot"] for job in jobs}
    assert slots == {0, 1}
    for job, text in zip(jobs, (b"first", b"second"), strict=True):
        job.send(text)
        job.close_stdin()
    assert [job.wait().stdout for job in jobs] == [b"first", b"second"]
    wait_for(lambda: not runner.ps(), "no sandbox")
