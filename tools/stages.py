"""Running the stages of tools/check: what each counts, what is shown meanwhile, and the one line at the end."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import csource

LOGS = csource.ROOT / "build" / "check"
TAIL_LINES = 40  # of what failed that are shown
REASON_LINES = 12  # of one failed test that are said again at the end
PLAIN_EVERY_S = 60  # a sign of life where there is no terminal


@dataclasses.dataclass
class Count:
    """What a stage found: numbers of tests, the names of those that failed or were skipped, and why they failed."""

    passed: int = 0
    failed: list = dataclasses.field(default_factory=list)
    skipped: list = dataclasses.field(default_factory=list)
    reasons: list = dataclasses.field(default_factory=list)

    def add(self, name, ok):
        if ok:
            self.passed += 1
        else:
            self.failed.append(name)

    def merge(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += other.reasons


class Stage:
    """One stage while it runs: its log, and the line on the terminal."""

    def __init__(self, number, total, name):
        self.name = name
        self.title = f"[{number:2}/{total}] {name}"
        self.count = Count()
        self.tails = []  # of what failed, when that is known
        self.began = time.monotonic()
        self.spoke = self.began
        self.log = LOGS / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".log")
        self.log.write_text("")

    def elapsed(self):
        return time.monotonic() - self.began

    def last_line(self):
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 400))
            lines = log.read().decode(errors="replace").split("\n")
        lines = [re.sub(r"[^ -~]", "", line).strip() for line in lines]
        return next((line for line in reversed(lines) if line), "")

    def show(self):
        """Where the stage is: one line written over on a terminal, now and then a line elsewhere."""
        if sys.stdout.isatty():
            columns = os.get_terminal_size().columns
            line = f"{self.title}  {self.elapsed():.0f} s  {self.last_line()}"
            print(f"\r{line[: columns - 1]}\033[K", end="", flush=True)
        elif time.monotonic() - self.spoke >= PLAIN_EVERY_S:
            self.spoke = time.monotonic()
            print(f"{self.title}  {self.elapsed():.0f} s  {self.last_line()[:80]}", flush=True)

    def start(self, command, **options):
        """Starts a program whose output goes to the log, in a process group of its own."""
        with self.log.open("a") as log:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            return subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=csource.ROOT,
                process_group=0,
                **options,
            )

    def wait(self, process, limit_s):
        """Waits for a program. Returns its exit status, or -1 when it had to be stopped at the limit."""
        deadline = time.monotonic() + limit_s
        while process.poll() is None:
            try:
                process.wait(1)
            except subprocess.TimeoutExpired:
                self.show()
            except KeyboardInterrupt:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                with self.log.open("a") as log:
                    log.write(f"stopped after {limit_s} s\n")
                return -1
        return process.returncode

    def run(self, *command, limit_s=600, env=None):
        """Runs a program to its end and returns its exit status."""
        return self.wait(self.start(command, env={**os.environ, **(env or {})}), limit_s)

    def check(self, name, *command, **options):
        """Runs a program that counts as one test."""
        before = self.log.stat().st_size
        ok = self.run(*command, **options) == 0
        self.count.add(name, ok)
        if not ok:
            self.tails.append(self.log.read_bytes()[before:].decode(errors="replace"))
        return ok

    def finish(self):
        count = self.count
        text = f"{count.passed} passed"
        text += f", {len(count.failed)} failed" if count.failed else ""
        text += f", {len(count.skipped)} skipped" if count.skipped else ""
        start = "\r\033[K" if sys.stdout.isatty() else ""
        print(f"{start}{self.title}: {text} ({self.elapsed():.0f} s)", flush=True)
        if not count.failed:
            return
        for text in self.tails or [self.log.read_text(errors="replace")]:
            print("\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:]))
        print(f"    failed: {', '.join(count.failed)}\n    log: {self.log}", flush=True)


def meson_count(build):
    """The results of `meson test`; a test program that uses cmocka counts with each of its cases."""
    count = Count()
    log = build / "meson-logs" / "testlog.json"
    for line in log.read_text().splitlines() if log.exists() else ():
        test = json.loads(line)
        output = (test.get("stdout") or "") + (test.get("stderr") or "")  # cmocka sums up on standard error
        cases = {
            word: sum(map(int, re.findall(rf"^\[  {word} \] (\d+) test\(s\)", output, re.MULTILINE)))
            for word in ("PASSED ", "FAILED ", "SKIPPED")
        }
        name = test["name"]
        if test["result"] == "SKIP":
            count.skipped.append(name)
        elif test["result"] not in ("OK", "EXPECTEDFAIL") or cases["FAILED "]:
            count.passed += cases["PASSED "]
            count.failed += [name] * max(1, cases["FAILED "])
            wrong = [line for line in output.splitlines() if not re.match(r"\[ *(RUN|OK|PASSED)? *\]|\[=+\]", line)]
            count.reasons.append("\n".join([f"{name}:", *wrong[-REASON_LINES:]]))
        else:
            count.passed += max(1, cases["PASSED "])
            count.skipped += [name] * cases["SKIPPED"]
    return count


def junit_count(path):
    """The results of pytest."""
    count = Count()
    for case in xml.etree.ElementTree.parse(path).iter("testcase") if path.exists() else ():
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("skipped") is not None:
            count.skipped.append(name)
            continue
        wrong = next((found for kind in ("failure", "error") if (found := case.find(kind)) is not None), None)
        count.add(name, wrong is None)
        if wrong is not None:
            said = [line for line in (wrong.text or "").splitlines() if re.match(r"E |\S+:\d+:", line)]
            count.reasons.append("\n".join([f"{name}:", *said[-REASON_LINES:]]))
    return count


def permitted_skips(path):
    """The names in a list of tests that may be skipped: one a line, # begins a comment."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split("#")[0].strip() for line in lines} - {""}
