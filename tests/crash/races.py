"""Two things at once, for tests/crash/sweep: each function plays one round and returns what was wrong. Whether all is
as before is for the sweep to see."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

WHOLE_S = 0.25  # about as long as a run takes
REAP_S = 0.02
CANCELLED = 130
LIMIT_S = 60
SLEEPER = ("--", "sh", "-c", "echo started; exec sleep 1000")

PID_MAX = 420  # numbers up to 300 are not given out a second time
N_INNOCENTS = 25


def start(runner, *words):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(runner.program), *words], text=True, **pipes)


def start_run(runner, *words):
    return start(runner, "run", *runner.options("nat"), *words)


def leftover(runner):
    """A sandbox whose keeper was killed. Returns what its record says of processes, as (pid, start time)."""
    job = start_run(runner, *SLEEPER)
    assert job.stdout.readline() == "started\n", job.communicate()
    runner.see()
    sandbox = next(s for s in runner.sandboxes() if s["state"] != "leftover")
    record = (runner.state / "sandboxes" / sandbox["id"] / "record").read_text()
    os.kill(sandbox["pid"], signal.SIGKILL)
    job.communicate(timeout=LIMIT_S)
    words = [line.split() for line in record.splitlines()]
    return [(int(w[2]), w[3]) for w in words if len(w) == 4 and w[0] in ("keeper", "process")]


def keeper_of(pid):
    """The keeper that a client has started, None before and afterwards."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def pause(chance, most_s):
    time.sleep(chance.uniform(0, most_s))


def ended(process, statuses):
    """Waits for the end, which has one of these statuses; with 125 there is a reason."""
    try:
        output, errors = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return [f"no end within {LIMIT_S} s: {process.args}"]
    if process.returncode not in statuses or process.returncode == 125 and not errors:
        return [f"status {process.returncode}: {process.args[1]}: {output}{errors}"]
    return []


def two_reapers(runner, chance):
    """Of a leftover: one of them removes it."""
    leftover(runner)
    reapers = []
    for _ in range(2):
        reapers.append(start(runner, "reap", "--json", *runner.place))
        pause(chance, REAP_S)
    told = [reaper.communicate(timeout=LIMIT_S) for reaper in reapers]
    things = [json.loads(line)["kind"] for output, _ in told for line in output.splitlines()]
    if [r.returncode for r in reapers] != [0, 0] or things != ["sandbox"]:
        return [f"two reapers: {told}"]
    return []


def reap_and_start(runner, chance):
    """The start works, whoever removes the leftover beside it."""
    leftover(runner)
    first = chance.random() < 0.5
    reaper = start(runner, "reap", *runner.place) if first else None
    pause(chance, REAP_S)
    job = start_run(runner, "--", "sh", "-c", "echo done >out")
    if not first:
        pause(chance, WHOLE_S)
        reaper = start(runner, "reap", *runner.place)
    return ended(reaper, (0,)) + ended(job, (0,))


def cancel_and_exit(runner, chance):
    """A job ends by itself or is cancelled, and the result says the same as the status."""
    result = runner.work / "result.json"
    result.unlink(missing_ok=True)
    job = start_run(runner, "--result", str(result), "--", "sh", "-c", "echo done >out; echo started; sleep 0.02")
    job.stdout.readline()
    pause(chance, 0.1)
    job.send_signal(signal.SIGTERM)
    found = ended(job, (0, CANCELLED, -signal.SIGTERM))
    if found or job.returncode == -signal.SIGTERM:  # the program was at its end
        return found
    reason = json.loads(result.read_text())["reason"]
    legal = {0: "exited", CANCELLED: "cancelled"}
    return [] if reason == legal[job.returncode] else [f"status {job.returncode}, result {reason}"]


def stop_and_start(runner, chance):
    """The keeper is told to stop at some time: while it makes the sandbox, starts the job, or takes all down."""
    job = start_run(runner, "--", "sh", "-c", "echo done >out")
    pause(chance, WHOLE_S)
    keeper = keeper_of(job.pid)
    if keeper:
        os.kill(keeper, signal.SIGTERM)
    return ended(job, (0, 125, CANCELLED))


def innocents():
    """Processes that come and go, so that numbers are used again; tells how many were ended by a signal."""
    running = set()
    n_signalled = 0
    os.set_blocking(0, False)
    while True:
        while len(running) < N_INNOCENTS:
            running.add(os.posix_spawn("/bin/sleep", ["sleep", "0.05"], {}))
        pid, status = os.wait()
        running.discard(pid)
        n_signalled += os.WIFSIGNALED(status)
        try:
            if os.read(0, 1) == b"":
                break
        except BlockingIOError:
            pass
    for pid in running:
        n_signalled += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    print(n_signalled)


def start_time(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def numbers_again(runner, chance):
    """The numbers of a dead sandbox's processes are others' when it is reaped: those are left alone."""
    release = tuple(int(n) for n in re.findall(r"\d+", os.uname().release)[:2])
    if release < (6, 14):
        return []  # there it is not of this process namespace but of the host
    pid_max = pathlib.Path("/proc/sys/kernel/pid_max")
    usual = pid_max.read_text()
    pid_max.write_text(str(PID_MAX))
    words = [sys.executable, "-B", "-c", "import races; races.innocents()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    others = subprocess.Popen(words, cwd=pathlib.Path(__file__).parent, text=True, **pipes)
    try:
        numbers = leftover(runner)
        end = time.monotonic() + 2
        while not (used := [p for p, began in numbers if start_time(p) not in (None, began)]):
            if time.monotonic() > end:
                break
            time.sleep(0.001)
        runner.notes["numbers used again when reaped"] += len(used)
        pause(chance, 0.02)
        found = ended(start(runner, "reap", *runner.place), (0,))
    finally:
        output, _ = others.communicate(timeout=LIMIT_S)
        pid_max.write_text(usual)
    return found + ([] if output == "0\n" else [f"innocent processes that were signalled: {output}"])


RACES = (two_reapers, reap_and_start, cancel_and_exit, stop_and_start, numbers_again)
