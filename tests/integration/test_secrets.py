"""Secrets: masked in all output however it is cut, and nowhere to be found on the host but in the job."""

import contextlib
import hashlib
import os
import pathlib
import secrets
import subprocess
import sys

import pytest

from conftest import LAB, THREAT_TESTS

pytestmark = pytest.mark.sanitized

MASKTESTS = [LAB / "masktest.py", THREAT_TESTS / "masktest.py"]
MASKTESTS = [script for script in MASKTESTS if script.exists()]

SECRETS = (
    "s3cr&t\"Pa55word/+x'<y>",
    "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n\n-----END KEY-----\n",
    "  correct horse battery staple\t",
    "pässwörd→😀ssap",
    "0123456789abcdef" * 30 + "the end",
    "abababababababab",
)


@pytest.mark.parametrize("script", MASKTESTS, ids=lambda p: p.parts[-2])
def test_every_form_of_a_secret_is_masked(runner, tmp_path, script):
    (tmp_path / "masktest.py").write_bytes(script.read_bytes())
    common = ("--capacity", len(SECRETS), "--workspace", tmp_path)
    jobs = [runner.start(*common, "--secret", f"SECRET={s}", "--", "python3", "masktest.py", "emit") for s in SECRETS]
    for secret, job in zip(SECRETS, jobs, strict=True):
        outcome = job.wait()
        assert outcome.status == 0, outcome
        for log in (outcome.stdout, outcome.stderr):
            assert b"***" in log
            for checker in MASKTESTS:
                checked = subprocess.run(
                    [sys.executable, checker, "check", secret], input=log, capture_output=True, check=False
                )
                assert (checked.returncode, checked.stdout) == (0, b"clean\n"), (secret, checked.stdout)
        # What is no secret comes through.
        assert b"B" * 1000 in outcome.stdout or b"." * 1000 in outcome.stdout


def test_secret_reaches_the_job_unchanged(runner):
    value = "two\nlines \xff'\" end "
    script = "import hashlib, os; print(hashlib.sha256(os.environb[b'A']).hexdigest()[::-1])"
    job = runner.run("--secret", f"A={value}", "--", "python3", "-c", script)
    assert job.stdout.decode().strip()[::-1] == hashlib.sha256(value.encode()).hexdigest(), job


def test_secrets_of_which_one_begins_another(runner):
    options = ("--secret", "SHORT=hunter22", "--secret", "LONG=hunter22-and-more", "--secret", "INNER=ter22-an")
    script = (
        "echo hunter22; echo hunter22-and-more; echo hunter22-and-mor; echo xhunter22-andx; echo hunter2; echo ter22-an"
    )
    job = runner.run(*options, "--", "sh", "-c", script)
    assert b"hunter22" not in job.stdout
    assert b"ter22-an" not in job.stdout
    lines = job.stdout.decode().splitlines()
    assert (lines[0], lines[1], lines[4], lines[5]) == ("***", "***", "hunter2", "***")


def test_lines_of_a_secret_are_masked_each(runner, tmp_path):
    file = tmp_path / "secrets"
    file.write_text("# comment\nTOKEN=first line of it\nOTHER=another secret\n")
    options = ("--secret-file", file, "--secret", "KEY=line number one\nline number two\r\nshort\nx\n")
    script = """
        echo '<first line of it>'; echo 'line number two'; echo x; printf another; sleep 0.3; echo ' secret'
        printf '%s' "$KEY" | tr -d '\r'"""
    job = runner.run(*options, "--", "sh", "-c", script)
    assert job.stdout == b"<***>\n***\nx\n***\n***\n***\n***\nx\n", job


def test_secret_cut_between_two_writes_with_a_pause(runner):
    job = runner.start(
        "--stdin",
        "--secret",
        "A=correct horse battery",
        "--",
        "sh",
        "-c",
        "printf 'a correct ho'; read x; echo 'rse battery b'",
    )
    job.send(b"\n")
    outcome = job.wait()
    assert outcome.stdout == b"a *** b\n"


def test_beginning_of_a_secret_is_shown_when_nothing_follows(runner):
    job = runner.run("--secret", "A=correct horse battery", "--", "printf", "a correct ho")
    assert job.stdout == b"a correct ho"


def test_what_is_no_secret_is_not_delayed(runner):
    job = runner.start(
        "--stdin", "--secret", "A=correct horse battery", "--", "sh", "-c", "printf 'a prompt> '; read x"
    )
    job.wait_output(b"a prompt> ")
    job.send(b"\n")
    assert job.wait().status == 0


def test_short_secret_is_not_masked_and_the_user_is_told(runner):
    job = runner.run("--secret", "A=abc", "--secret", "EMPTY=", "--", "echo", "abc")
    assert job.stdout == b"abc\n"
    assert job.stderr == b"ermite-runner: warning: the secret A has less than 4 bytes and is not masked\n"


def test_secret_wins_over_a_variable_and_is_masked_in_a_terminal_too(runner):
    job = runner.run(
        "--env", "A=plain", "--secret", "A=the secret one", "--", "sh", "-c", 'test "$A" = "the secret one" && echo $A'
    )
    assert job.stdout == b"***\n"


def test_secret_in_the_reason_why_a_command_cannot_run(runner):
    job = runner.run("--secret", "A=swordfish-42", "--", "/no/swordfish-42")
    assert job.status == 127
    assert b"swordfish-42" not in job.stderr, job
    assert "swordfish-42" not in job.evidence


def test_too_many_bytes_of_secrets(runner):
    options = [word for i in range(3) for word in ("--secret", f"S{i}={'x' * 50000}")]
    job = runner.run(*options, "--", "true")
    assert job.status == 125
    assert b"all secrets together are longer than the 131072 bytes that are accepted" in job.stderr


def test_secrets_of_100_kilobytes(runner, tmp_path):
    lines = "\n".join(secrets.token_hex(30) for _ in range(1600))
    file = tmp_path / "key"
    file.write_text("".join(f"S{i}={line}\n" for i, line in enumerate(lines.splitlines())))
    job = runner.run("--secret-file", file, "--", "sh", "-c", "env | grep ^S; seq 100000")
    assert job.status == 0, job
    assert not any(line.encode() in job.stdout for line in lines.splitlines())
    assert job.stdout.endswith(b"99999\n100000\n")


# --- where a secret is -----------------------------------------------------------------------------------------------


def data_of(file):
    """What is written in a file, its holes left out."""
    found = bytearray()
    with open(file, "rb", buffering=0) as f:
        size = os.fstat(f.fileno()).st_size
        at = 0
        while at < size:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole follows
                break
            end = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            found += os.pread(f.fileno(), end - at, at)
            at = end
    return bytes(found)


def is_outside(process):
    """Whether a process is none of a sandbox. Those in a container have ids of the host, but not its processes."""
    is_ours = (process / "comm").read_text().startswith("ermite-")
    try:
        is_beside = os.readlink(process / "ns/pid") == os.readlink("/proc/self/ns/pid")
    except PermissionError:  # it can do more than we, so it is the host's
        is_beside = True
    return process.stat().st_uid < 900000 and (is_ours or is_beside)


def host_files(folders):
    """Every file that tells something about processes outside sandboxes, and every regular file below the folders."""
    for process in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError):  # ended meanwhile
            if process.name.isdigit() and is_outside(process):
                yield from (process / "cmdline", process / "environ")
    for folder in folders:
        yield from (path for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.is_symlink())


def holders(canary, folders):
    """Where on the host the bytes stand."""
    found = []
    for file in host_files(folders):
        try:
            data = file.read_bytes() if file.is_relative_to("/proc") else data_of(file)
        except OSError:  # gone meanwhile
            continue
        found += [str(file)] if canary in data else []
    return found


@pytest.mark.parametrize("option", ["--secret", "--secret-file"])
def test_secret_is_nowhere_on_the_host(runner, tmp_path, option):
    canary = secrets.token_hex(16)
    value = f"CANARY={canary}"
    if option == "--secret-file":
        (tmp_path / "secrets").write_text(value)
        value = tmp_path / "secrets"
    # Variables of the job that are no secrets go the same way.
    script = "sleep 300 & echo started; read x; kill $!"
    job = runner.start("--stdin", option, value, "--env", f"NO_SECRET={canary[::-1]}", "--", "sh", "-c", script)
    job.wait_output(b"started\n")
    places = (runner.state, runner.results, "/run", "/var/log", "/dev/shm")
    assert holders(canary.encode(), places) == []
    # The search finds what is there.
    assert holders(canary[::-1].encode(), places) == [f"/proc/{job.pid}/cmdline"]
    job.send(b"\n")
    outcome = job.wait()
    assert outcome.status == 0, outcome
    assert canary not in str(outcome.result)


def test_secret_is_not_in_the_memory_of_the_keeper(runner):
    canary = secrets.token_hex(16).encode()
    job = runner.start("--stdin", "--secret", f"CANARY={canary.decode()}", "--", "sh", "-c", "echo started; read x")
    job.wait_output(b"started\n")
    for name in {"keeper", *runner.helpers} - {"conduit"}:
        assert canary not in memory(job.helper(name)), name
    # The one that masks does know it: the search works.
    assert canary in memory(job.helper("conduit"))
    job.send(b"\n")
    assert job.wait().status == 0


def memory(pid):
    """The writable memory of a process, without what a sanitizer reserves."""
    found = bytearray()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for line in maps:
            (
                span,
                rights,
                *_,
            ) = line.split()
            first, last = (int(n, 16) for n in span.split("-"))
            if not rights.startswith("rw") or last - first > 1 << 30:
                continue
            mem.seek(first)
            found += mem.read(last - first)
    return bytes(found)
