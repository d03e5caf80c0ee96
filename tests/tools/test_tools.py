"""Each check in tools/ must fail on a bad sample and pass on a good one."""

import pathlib
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import stages  # noqa: E402

GOOD_HEADER = """/*
 * A sample.
 */
#ifndef ERMITE_IO_A_H
#define ERMITE_IO_A_H

#include "base/err.h"

/* Says nothing. */
int a_one(void);
int a_two(int (*callback)(void *data), struct err *e);

static inline int a_three(void)
{
	return 3;
}

/* Long. */
[[nodiscard, gnu::format(printf, 2, 3)]] int a_four(struct err *e, const char *format,
						    ...);

#endif
"""


def make_tree(root, files):
    for name, text in {"src/base/err.h": "/*\n * Errors.\n */\n", "tests/x.c": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(tool, *arguments):
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=False)


def assert_refused(tool, root, *expected):
    result = run(tool, root)
    assert result.returncode == 1, result.stdout + result.stderr
    for text in expected:
        assert text in result.stdout


def test_good_tree_passes(tmp_path):
    make_tree(tmp_path, {"src/io/a.h": GOOD_HEADER, "src/io/a.c": '#include "io/a.h"\n#include <lxc.h>\n'})
    for tool in ("check-deps", "check-docs", "check-style"):
        result = run(tool, tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("src/base/a.c", '#include "io/a.h"', "base may not include io"),
        ("src/io/b.c", '#include "sys/x.h"', '"sys/x.h" is not there'),
        ("src/io/b.c", '#include "a.h"', "is not written from src/"),
        ("src/io/b.c", '  #  include "build-id.h"', "generated build-id.h"),
        ("src/keeper/b.c", "#include <lxc/lxccontainer.h>", "only be included in isolation/system/"),
        ("src/other/b.c", "", "folder other has no row"),
    ],
)
def test_deps(tmp_path, path, line, expected):
    make_tree(tmp_path, {"src/io/a.h": GOOD_HEADER, path: f"\n{line}\n"})
    assert_refused("check-deps", tmp_path, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD_HEADER.replace("/* Says nothing. */\n", ""), "a_one() has no comment"),
        (GOOD_HEADER.replace("/* Long. */\n", ""), "a_four() has no comment"),
        (GOOD_HEADER.replace("int a_two", "\nint a_two"), "a_two() has no comment"),
        (GOOD_HEADER.removeprefix("/*\n * A sample.\n */\n"), "does not begin with a paragraph"),
    ],
)
def test_docs(tmp_path, text, expected):
    make_tree(tmp_path, {"src/io/a.h": text})
    assert_refused("check-docs", tmp_path, expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("\tscoped_fd int fd;", "b.c:2: a scoped variable has no initialiser"),
        ("int a; // note", "b.c:2: a // comment"),
        ("\tstrcpy(a, b);", "b.c:2: a banned function"),
        ("\tr = sprintf (a, b);", "b.c:2: a banned function"),
        ("\tgoto out;", "b.c:2: goto"),
        ("void a(void)\n{\n#ifdef X\n#endif\n}", "b.c:4: #if inside braces"),
        ("\t\t\t\t" + "x" * 89, "b.c:2: more than 120 columns"),
        ("int a;" + "\n" * 800, "more than 800 lines"),
        ("/* TODO: later */", "b.c:2: a note to oneself"),
        ("int a; ", "b.c:2: blanks at the end"),
        ("\tfd = timerfd_create(CLOCK_REALTIME, 0);", "b.c:2: the wall clock"),
        ("\tdeadline = time(NULL) + 5;", "b.c:2: the wall clock"),
        ("\t(void)gettimeofday(&now, NULL);", "b.c:2: the wall clock"),
        ("\tdeadline_s = clock_wall_s() + 5;", "b.c:2: the wall clock"),
        ("\tpthread_cond_timedwait(&c, &m, &t);", "b.c:2: the wall clock"),
    ],
)
def test_style(tmp_path, line, expected):
    make_tree(tmp_path, {"src/io/b.c": f"\n{line}\n"})
    assert_refused("check-style", tmp_path, expected)


def test_style_main(tmp_path):
    make_tree(tmp_path, {"src/main/b.c": "\n" * 41})
    assert_refused("check-style", tmp_path, "more than 40 lines in src/main")


def test_style_leaves_other_text_alone(tmp_path):
    lines = (
        "\tscoped_fd int fd = -1;",
        '\tputs("http://x // system()");',
        "/* never call strcpy() // or system() */",
        "\tx->system(1); x.system(1); my_strcpy(a); strtok_r(a, b, c);",
        "#define scoped_fd __attribute__((cleanup(fd_close)))",
        "int b = 1'000'000; char c = '\"'; /* // */",
        "#if X\n#endif",
        "\tfd = timerfd_create(CLOCK_BOOTTIME, 0); set_time(fd, st.st_mtime);",
    )
    make_tree(tmp_path, {"src/io/b.c": "\n".join(lines) + "\n"})
    result = run("check-style", tmp_path)
    assert result.returncode == 0, result.stdout


SAMPLE_C = """#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
	char text[64];
	snprintf(text, (size_t)argc, "%s", argv[0]);
	return (int)strlen(text);
}
"""

HARD = "-O2 -fPIE -pie -fstack-protector-strong -D_FORTIFY_SOURCE=2 -Wl,-z,relro,-z,now,-z,noexecstack".split()


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ([], None),
        (["-no-pie"], "not position independent"),
        (["-Wl,-z,lazy"], "symbols are bound lazily"),
        (["-Wl,-z,norelro"], "no RELRO"),
        (["-Wl,-z,execstack"], "the stack is executable"),
        (["-fno-stack-protector"], "no stack protector"),
        (["-U_FORTIFY_SOURCE"], "no fortified calls"),
        (["-Wl,-rpath,/x"], "has a path for libraries of its own"),
        (["-static-pie"], "has no dynamic linker"),
    ],
)
def test_hardening(tmp_path, extra, expected):
    source, program = tmp_path / "a.c", tmp_path / "a"
    source.write_text(SAMPLE_C)
    subprocess.run(["gcc", *HARD, *extra, "-o", program, source], check=True)
    result = run("check-hardening", program)
    assert result.returncode == (1 if expected else 0), result.stdout
    assert not expected or expected in result.stdout
    if "-static-pie" in extra:
        assert run("check-hardening", "--static", program).returncode == 0
    elif not expected:
        assert "needs a dynamic linker" in run("check-hardening", "--static", program).stdout


PROGRAM = """#!/bin/sh
case $1 in
run) printf 'Usage: p run\\n\\nOptions:\\n      --env K=V   Set it.\\n  -t, --terminal   A terminal.\\n' ;;
*) printf 'Usage: p COMMAND\\n\\nCommands:\\n  run        Run it.\\n\\nOptions:\\n  -h, --help   Help.\\n' ;;
esac
"""

MANUAL = """.Dd January 1, 2026
.Dt P 1
.Os
.Sh NAME
.Nm p
.Nd a sample
.Sh DESCRIPTION
.Nm Cm run
.Bl -tag -width x
.It Fl -env Ar K=V
.It Fl t , Fl -terminal
.It Fl -help
.El
"""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("", ""), None),
        ((".It Fl -env Ar K=V\n", ""), "the manual does not have --env"),
        ((".It Fl -help\n", ".It Fl -help\n.It Fl -old\n"), "the manual has --old"),
        (("Cm run", "Cm walk"), "the manual does not have the command run"),
    ],
)
def test_help(tmp_path, change, expected):
    program, manual = tmp_path / "p", tmp_path / "p.1"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    manual.write_text(MANUAL.replace(*change))
    result = run("check-help", program, manual)
    assert result.returncode == (1 if expected else 0), result.stdout + result.stderr
    assert not expected or expected in result.stdout


def test_counting_meson(tmp_path):
    (tmp_path / "meson-logs").mkdir()
    (tmp_path / "meson-logs" / "testlog.json").write_text(
        '{"name": "a", "result": "OK", "stdout": "[  PASSED  ] 8 test(s).\\n"}\n'
        '{"name": "b", "result": "FAIL", "stdout": "[  PASSED  ] 7 test(s).\\n[  FAILED  ] 2 test(s), listed:\\n"}\n'
        '{"name": "c", "result": "TIMEOUT", "stdout": null}\n'
        '{"name": "d", "result": "SKIP", "stdout": ""}\n'
        '{"name": "e", "result": "OK", "stdout": "fine"}\n'
        '{"name": "f", "result": "OK", "stdout": "[  PASSED  ] 1 test(s).\\n[  SKIPPED ] 1 test(s), listed:\\n"}\n'
    )
    count = stages.meson_count(tmp_path)
    assert (count.passed, count.failed, count.skipped) == (17, ["b", "b", "c"], ["d", "f"])


def test_counting_pytest(tmp_path):
    result = tmp_path / "a.xml"
    result.write_text(
        '<testsuites><testsuite><testcase classname="t" name="a"/><testcase classname="t" name="b"><failure/></testcase>'
        '<testcase classname="t" name="c"><skipped/></testcase><testcase classname="t" name="d"><error/></testcase>'
        "</testsuite></testsuites>"
    )
    count = stages.junit_count(result)
    assert (count.passed, count.failed, count.skipped) == (1, ["t.b", "t.d"], ["t.c"])
    assert stages.junit_count(tmp_path / "none.xml") == stages.Count()


def test_permitted_skips(tmp_path):
    path = tmp_path / "skips.txt"
    path.write_text("# a comment\n\na.b # why\n")
    assert stages.permitted_skips(path) == {"a.b"}
