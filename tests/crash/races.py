"""Two things at once, for tests/crash/sweep: each function plays one round and returns what was wrong. Whether all is
as before is for the sweep to see."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

WHOLE_S = 0.25  # about as long as a run takes
REAP_S = 0.02
EXEC_S = 0.01
CANCELLED = 130
LIMIT_S = 60
SLEEPER = ("--", "sh", "-c", "echo started; exec sleep 1000")
N_FILES = 40
FILES = f"echo done >out; mkdir files; cd files; for i in $(seq {N_FILES}); do echo done >$i; done; echo ended"
REASONS = {0: ("exited",), CANCELLED: ("cancelled",)}  # with 125 there are many

PID_MAX = 420  # numbers up to 300 are not given out a second time
N_INNOCENTS = 25


def start(runner, *words):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(runner.program), *words], text=True, **pipes)


def start_run(runner, *words):
    return start(runner, "run", *runner.options("nat"), *words)


def sleeper(runner):
    """A job that goes on, and what its record says of processes, as (pid, start time)."""
    job = start_run(runner, *SLEEPER)
    assert job.stdout.readline() == "started\n", job.communicate()
    runner.see()
    records = [text_of(runner.state / "sandboxes" / s["id"] / "record") for s in runner.sandboxes()]
    record = next(r for r in records if re.search(rf"^keeper keeper {keeper_of(job.pid)} ", r, re.MULTILINE))
    words = [line.split() for line in record.splitlines()]
    return job, [(int(w[2]), w[3]) for w in words if len(w) == 4 and w[0] in ("keeper", "process")]


def leftover(runner):
    """A sandbox whose keeper was killed. Returns what its record says of processes."""
    job, numbers = sleeper(runner)
    os.kill(numbers[0][0], signal.SIGKILL)
    job.communicate(timeout=LIMIT_S)
    return numbers


def text_of(path):
    try:
        return path.read_text()
    except OSError:
        return ""


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


def new_result(runner):
    """A file for --result that is not there yet."""
    result = runner.work / "result.json"
    result.unlink(missing_ok=True)
    return result


def contradictions(job, result):
    """What the result says otherwise than the status; it is whole, or there is none because the program was at its end
    when the signal came."""
    if not result.exists():
        return [] if job.returncode in (-signal.SIGTERM, 125) else [f"status {job.returncode} and no result"]
    reason = json.loads(result.read_text())["reason"]
    legal = REASONS.get(job.returncode, (reason,))
    return [] if reason in legal else [f"status {job.returncode}, result {reason}"]


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
    result = new_result(runner)
    job = start_run(runner, "--result", str(result), "--", "sh", "-c", "echo done >out; echo started; sleep 0.02")
    job.stdout.readline()
    pause(chance, 0.1)
    job.send_signal(signal.SIGTERM)
    return ended(job, (0, CANCELLED, -signal.SIGTERM)) + contradictions(job, result)


def cancel_and_result(runner, chance):
    """A job that has ended is cancelled while its outputs are fetched, its sandbox goes and its result is written. What
    succeeded is there in whole."""
    result = new_result(runner)
    files = runner.work / "files"
    shutil.rmtree(files, ignore_errors=True)
    job = start_run(runner, "--output", f"files:{files}", "--result", str(result), "--", "sh", "-c", FILES)
    job.stdout.readline()
    pause(chance, WHOLE_S)
    job.send_signal(signal.SIGTERM)
    found = ended(job, (0, CANCELLED, -signal.SIGTERM)) + contradictions(job, result)
    content = [file.read_text() for file in files.glob("*")]
    if job.returncode == 0 and content != ["done\n"] * N_FILES:
        found.append(f"status 0 and {len(content)} of {N_FILES} files: {set(content)}")
    return found


def stop_and_exec(runner, chance):
    """The run is cancelled, or its keeper told to stop, in the instant in which the job is started inside."""
    result = new_result(runner)
    job = start_run(runner, "--result", str(result), "--", "sh", "-c", "echo done >out")
    state = f"state {chance.choice(('waiting', 'ready', 'running'))}\n"
    while job.poll() is None and not any(state in text_of(r) for r in runner.state.glob("sandboxes/er*/record")):
        time.sleep(0.001)
    pause(chance, EXEC_S)
    keeper = keeper_of(job.pid)
    if keeper and chance.random() < 0.5:
        os.kill(keeper, signal.SIGTERM)
    else:
        job.send_signal(signal.SIGTERM)
    return ended(job, (0, 125, CANCELLED, -signal.SIGTERM)) + contradictions(job, result)


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


def stopped(runner):
    """A sandbox that its keeper took down. Returns what its record said of processes."""
    job, numbers = sleeper(runner)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=LIMIT_S)
    return numbers


def numbers_again(runner, chance):
    """The numbers of a dead sandbox's processes are others' when it is reaped, and while another is stopped in order:
    those are left alone."""
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
        stopped(runner)
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


# Each with its number of rounds.
RACES = {
    two_reapers: 1000,
    reap_and_start: 1000,
    cancel_and_exit: 1000,
    cancel_and_result: 1000,
    stop_and_start: 1000,
    stop_and_exec: 1000,
}
NUMBERS = {numbers_again: 2000}
