"""The command line as a person meets it: help, sentences for what is wrong, configuration, ps, image list."""

import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest

from conftest import IMAGE, PROGRAM

pytestmark = pytest.mark.only("system", why="what the command line says is the same for each isolation")

COMMANDS = (
    [],
    ["run"],
    ["ps"],
    ["reap"],
    ["daemon"],
    ["image"],
    ["image", "build"],
    ["image", "import"],
    ["image", "list"],
)


def said(done):
    """Status and standard error; there must be nothing on standard output."""
    assert done.stdout == b"", done
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help(runner, command):
    done = runner.call(*command, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert text.startswith("Usage: " + " ".join(["ermite-runner", *command])), text
    assert "--help" in text
    assert runner.call(*command, "-h").stdout == done.stdout


def test_version(runner):
    done = runner.call("--version")
    assert (done.returncode, done.stderr) == (0, b"")
    assert re.fullmatch(rb"ermite-runner \d+\.\d+\.\d+-\S+\n", done.stdout)


def test_output_that_cannot_be_written(runner):
    with open("/dev/full", "wb") as full:
        done = runner.call("--help", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"ermite-runner: write to standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ("", 2, 'no command given: see "ermite-runner --help"'),
        ("frobnicate", 2, 'unknown command "frobnicate": see "ermite-runner --help"'),
        ("image", 2, 'no command given: see "ermite-runner image --help"'),
        ("image frobnicate", 2, 'unknown command "frobnicate": see "ermite-runner image --help"'),
        ("--frobnicate", 2, 'unknown option --frobnicate: see "ermite-runner --help"'),
        ("ps --frobnicate", 2, 'unknown option --frobnicate: see "ermite-runner ps --help"'),
        ("ps extra", 2, 'ps does not take "extra": see "ermite-runner ps --help"'),
        ("ps --json=1", 2, "option --json takes no value"),
        ("reap extra", 2, 'reap does not take "extra": see "ermite-runner reap --help"'),
        ("reap --json --dry-runs", 2, 'unknown option --dry-runs: see "ermite-runner reap --help"'),
        ("run", 125, 'run needs [--] COMMAND [ARG...]: see "ermite-runner run --help"'),
        ("run --", 125, 'run needs [--] COMMAND [ARG...]: see "ermite-runner run --help"'),
        ("run --frobnicate -- true", 125, 'unknown option --frobnicate: see "ermite-runner run --help"'),
        ("run -x true", 125, 'unknown option -x: see "ermite-runner run --help"'),
        ("run --env", 125, "option --env needs a value"),
        ("run --env A -- true", 125, '--env: "A": there is no "=": NAME=VALUE is accepted'),
        (
            "run --env 1A=x -- true",
            125,
            '--env: "1A=x": what stands before "=" is not a name: letters, digits and "_" are '
            "accepted, no digit first",
        ),
        ("run --env-file /no/file -- true", 125, "--env-file: open /no/file: No such file or directory"),
        ("run --secret A -- true", 125, '--secret: there is no "=": NAME=VALUE is accepted'),
        (
            "run --timeout 5x -- true",
            125,
            '--timeout: ERMITE_RUNNER_JOB_TIMEOUT: "5x" is not accepted: a duration such as 90s, 30m, '
            "6h or 2d, or 0 for none",
        ),
        (
            "run --job-cpus 0 -- true",
            125,
            'ERMITE_RUNNER_JOB_CPUS: "0" is not accepted: a whole number from 1 to 128',
        ),
        (
            "run --job-memory 10M -- true",
            125,
            'ERMITE_RUNNER_JOB_MEMORY: "10M" is not accepted: a size of at least 256M',
        ),
        (
            "run --job-disk 100M -- true",
            125,
            'ERMITE_RUNNER_JOB_DISK: "100M" is not accepted: a size of at least 1G',
        ),
        (
            "run --isolation docker -- true",
            125,
            'ERMITE_RUNNER_ISOLATION: "docker" is not accepted: auto, vm, container or system',
        ),
        (
            "run --state-dir state -- true",
            125,
            'ERMITE_RUNNER_STATE_DIR: "state" is not accepted: an absolute path',
        ),
        (
            "run --network 10.0.0.1/16 -- true",
            125,
            'ERMITE_RUNNER_NETWORK: "10.0.0.1/16" is not accepted: an IPv4 prefix of at most /30 with '
            "no host bits set, such as 10.200.0.0/16",
        ),
        (
            "run --network-allow mirror.example:80 -- true",
            125,
            'ERMITE_RUNNER_NETWORK_ALLOW: "mirror.example:80" is not accepted: at most 32 IPv4 addresses, '
            "address:port or prefixes, with commas or blanks between them",
        ),
        (
            "run --guest-forge 1 -- true",
            125,
            "ERMITE_RUNNER_GUEST_FORGE: 1 needs the forge's URL in ERMITE_RUNNER_URL",
        ),
        (
            "run --guest-forge 1 --url https://192.0.2.7 -- true",
            125,
            'ERMITE_RUNNER_URL: "https://192.0.2.7" is not accepted: guest forge access needs a name, not an address',
        ),
        (
            "run --guest-forge 1 --url https://localhost/git -- true",
            125,
            'ERMITE_RUNNER_URL: "https://localhost/git" is not accepted: guest forge access takes no path, query or '
            "fragment in it",
        ),
        (
            "run --guest-forge 1 --url http://localhost -- true",
            125,
            'ERMITE_RUNNER_URL: "http://localhost" is not accepted: http:// needs ERMITE_RUNNER_INSECURE_HTTP=1',
        ),
        (
            "run --isolation vm --network-mode none -- true",
            125,
            "isolation vm is not part of this version: use system",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(runner, words, status, sentence):
    done = runner.call(*shlex.split(words))
    assert said(done) == (status, f"ermite-runner: {sentence}\n")


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("/no/such/dir/file", ": /no/such/dir/file: directory /no/such/dir/: No such file or directory"),
        ("/dev/null", " /dev/null: is there and not a regular file"),
    ],
)
def test_result_that_cannot_be_written_is_refused_before_anything_is_made(runner, file, sentence):
    done = runner.call("run", *runner.base, "--result", file, "--", "true")
    assert said(done) == (125, f"ermite-runner: --result{sentence}\n")


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("/no/such/dir/file", ": /no/such/dir/file: directory /no/such/dir/: No such file or directory"),
        ("/dev/null", " /dev/null: is there and not a regular file"),
        ("/tmp", " /tmp: Is a directory"),
    ],
)
def test_network_log_that_cannot_be_written_is_refused_before_anything_is_made(runner, file, sentence):
    done = runner.call("run", *runner.base, "--network-log", file, "--", "true")
    assert said(done) == (125, f"ermite-runner: --network-log{sentence}\n")


def test_network_log_without_a_network_is_empty(runner, tmp_path):
    log = tmp_path / "network.log"
    log.write_text("what was there before\n")
    job = runner.run("--network-log", log, "--", "true")
    assert job.status == 0, job
    assert log.read_text() == ""


def test_forge_that_this_host_does_not_resolve_is_refused(runner):
    words = ["--guest-forge", "1", "--url", "https://forge.invalid"]
    status, sentence = said(runner.call("run", "--isolation", "system", *words, "--", "true"))
    assert status == 125
    assert sentence.startswith("ermite-runner: ERMITE_RUNNER_URL: this host does not resolve forge.invalid: "), sentence


def test_options_end_at_the_command(runner):
    job = runner.run("sh", "-c", "echo $0 $@", "--env", "--user")
    assert job.stdout == b"--env --user\n", job
    job = runner.run("--", "echo", "--help", "--")
    assert job.stdout == b"--help --\n", job


def test_program_found_by_name_and_through_a_link(runner, tmp_path):
    (tmp_path / "er").symlink_to(PROGRAM)
    done = subprocess.run(["er", "--version"], env={"PATH": str(tmp_path)}, capture_output=True, check=True)
    assert done.stdout == runner.call("--version").stdout
    words = runner.command(runner.new_result_file(), ["--", "echo", "ran"])
    done = subprocess.run(["er", *words[1:]], env={"PATH": str(tmp_path)}, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done


def test_missing_image_is_said_with_the_remedy(runner, tmp_path):
    done = runner.call("run", *runner.base, "--image", tmp_path, "--", "true")
    assert said(done) == (
        125,
        "ermite-runner: isolation system cannot run on this host: "
        f"there is no image at {tmp_path} (ermite-runner image build)\n",
    )


def test_only_root_may(runner):
    words = ["run", *runner.base, "--", "true"]
    done = subprocess.run([PROGRAM, *words], user=65534, group=65534, extra_groups=[], capture_output=True, check=False)
    assert done.returncode == 125
    assert done.stdout == b""
    assert b"root is needed" in done.stderr


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o770, 0), (0o755, 1234)])
def test_state_directory_that_others_can_change_is_refused(runner, mode, owner):
    parent = runner.state / "parent"
    parent.mkdir()
    try:
        parent.chmod(mode)
        os.chown(parent, owner, 0)
        done = runner.call("run", *runner.base, "--state-dir", parent / "state", "--", "true")
        assert done.returncode == 125
        assert str(parent).encode() in done.stderr
        assert b"root" in done.stderr or b"group or others" in done.stderr, done.stderr
    finally:
        for path in sorted(parent.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        parent.rmdir()


def test_auto_says_what_was_passed_over(runner, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    words = runner.command(runner.new_result_file(), ["--isolation", "auto", "--log", "text", "--", "echo", "ran"])
    done = runner.call(*words[1:])
    assert (done.returncode, done.stdout) == (0, b"ran\n"), done
    lines = [line.split("ermite-runner: ", 1)[-1] for line in done.stderr.decode().splitlines()]
    assert [re.sub(r"^.*?(vm|container|isolation)", r"\1", line) for line in lines] == [
        "vm passed over: not part of this version",
        "container_sysbox passed over: Docker's daemon does not run: there is no socket at /nonexistent/docker.sock "
        "(apt install docker.io; systemctl start docker)",
        "isolation system chosen",
    ]


def test_log_lines_are_json_where_there_is_no_terminal(runner):
    words = runner.command(runner.new_result_file(), ["--isolation", "auto", "--", "true"])
    done = runner.call(*words[1:])
    lines = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert len(lines) == 3
    done = runner.call(*words[1:-2], "--log-level", "error", "--", "true")
    assert done.stderr == b""


# --- configuration --------------------------------------------------------------------------------------------------


def with_file(runner, tmp_path, text, words, **options):
    """Calls the program with this text as /etc/ermite-runner/runner.env, in a mount namespace that shows it."""
    folder = tmp_path / "etc" / "ermite-runner"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runner.env").write_text(text)
    script = 'mount -t overlay -o "lowerdir=$1:/etc" none /etc && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", tmp_path / "etc", PROGRAM, *words]
    return subprocess.run(
        [str(word) for word in command], capture_output=True, stdin=subprocess.DEVNULL, check=False, **options
    )


def test_configuration_file(runner, tmp_path):
    text = f"""# of this host
ERMITE_RUNNER_STATE_DIR={runner.state}
ERMITE_RUNNER_ISOLATION=System
ERMITE_RUNNER_NETWORK_MODE=none
ERMITE_RUNNER_IMAGE={IMAGE}

ERMITE_RUNNER_READY=now
ERMITE_RUNNER_JOB_DISK=1G
ERMITE_RUNNER_JOB_MEMORY= 300m
ERMITE_RUNNER_JOB_CPUS=1
"""
    show = ["--", "sh", "-c", "free -m | awk 'NR==2 {print $2}'; nproc"]
    done = with_file(runner, tmp_path, text, ["run", *show])
    assert (done.returncode, done.stdout) == (0, b"300\n1\n"), done
    # The environment wins over the file, an option over both.
    environment = {**os.environ, "ERMITE_RUNNER_JOB_MEMORY": "400M", "ERMITE_RUNNER_JOB_CPUS": "2"}
    done = with_file(runner, tmp_path, text, ["run", "--job-memory", "500M", *show], env=environment)
    assert (done.returncode, done.stdout) == (0, b"500\n2\n"), done


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "ERMITE_RUNNER_JOB_CPUS=2\nERMITE_RUNNER_JOB_CPU=2\n",
            ":2: ERMITE_RUNNER_JOB_CPU is not a name of the configuration",
        ),
        (
            "\n\nERMITE_RUNNER_JOB_MEMORY=lots\n",
            ':3: ERMITE_RUNNER_JOB_MEMORY: "lots" is not accepted: a size of at least 256M',
        ),
        ("nonsense\n", ":1: "),
    ],
)
def test_configuration_file_that_is_wrong(runner, tmp_path, text, sentence):
    done = with_file(runner, tmp_path, text, ["run", "--", "true"])
    status, error = said(done)
    assert status == 125
    assert error.startswith(f"ermite-runner: /etc/ermite-runner/runner.env{sentence}"), error
    done = with_file(runner, tmp_path, text, ["ps"])
    assert said(done)[0] == 2


def test_bad_value_in_the_environment(runner):
    done = runner.call("run", "--", "true", env={**os.environ, "ERMITE_RUNNER_CAPACITY": "abc"})
    assert said(done) == (
        125,
        'ermite-runner: ERMITE_RUNNER_CAPACITY: "abc" is not accepted: a whole number from 1 to 1024\n',
    )


# --- ps and image list ----------------------------------------------------------------------------------------------


def test_ps_with_nothing(runner):
    done = runner.call("ps", "--state-dir", runner.state)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split() == ["ID", "ISOLATION", "SLOT", "STATE", "AGE", "PID", "JOB"]
    assert runner.call("ps", "--json", "--state-dir", runner.state).stdout == b""


def test_ps(runner):
    jobs = [runner.start("--capacity", "2", "--job-id", f"job {n}", "--stdin", "--", "cat") for n in range(2)]
    found = sorted((job.wait_state("running") for job in jobs), key=lambda s: s["slot"])
    lines = runner.call("ps", "--state-dir", runner.state).stdout.decode().splitlines()
    assert len(lines) == 3
    for line, sandbox in zip(lines[1:], found, strict=True):
        words = line.split()
        assert words[:4] == [sandbox["id"], "system", str(sandbox["slot"]), "running"]
        assert re.fullmatch(r"\d+s", words[4])
        assert words[5] == str(sandbox["pid"])
        assert pathlib.Path(f"/proc/{words[5]}/comm").read_text() == "ermite-keeper\n"
        assert " ".join(words[6:]) == sandbox["job_id"]
    for job in jobs:
        job.close_stdin()
        assert job.wait().status == 0


def test_image_list(runner):
    done = runner.call("image", "list", "--image", IMAGE)
    assert (done.returncode, done.stderr) == (0, b""), done
    lines = done.stdout.decode().splitlines()
    assert any(str(IMAGE) in line or "image" in line for line in lines[1:]), done
    done = runner.call("image", "list", "--json", "--image", IMAGE)
    images = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert len(images) >= 1
    described = json.loads((IMAGE / "image.json").read_text())
    assert any(image.get("suite") == described["suite"] for image in images), images


def test_image_list_without_an_image(runner, tmp_path):
    done = runner.call("image", "list", "--state-dir", runner.state)
    assert done.returncode == 0, done
    assert str(runner.state) not in done.stdout.decode()
