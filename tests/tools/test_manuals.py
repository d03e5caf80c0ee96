"""runner.env(5) must have every name of the configuration's table, with its default, and no other."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

NAME = re.compile(r'NAMES\("([A-Z_]+)", "[a-z-]+"\)')
DEFAULT = re.compile(r'\bDEFAULT\("([^"]*)"\)')


def table():
    """Names of the table in config.c with the default, or None where that is said in words."""
    text = (ROOT / "src" / "spec" / "config.c").read_text()
    text = text[text.index("items[] = {") :]
    starts = list(NAME.finditer(text))
    ends = [m.start() for m in starts[1:]] + [len(text)]
    for match, end in zip(starts, ends):
        default = DEFAULT.search(text[match.end() : end])
        yield f"ERMITE_RUNNER_{match.group(1)}", default.group(1) if default else None


def manual():
    """Names of the manual, each with the lines about it."""
    text = (ROOT / "man" / "runner.env.5").read_text()
    parts = re.split(r"^\.It Ev (ERMITE_RUNNER_\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def test_manual_has_the_names_of_the_table():
    names = [name for name, _ in table()]
    assert len(names) > 30
    assert sorted(manual()) == sorted(names)


def test_manual_has_the_defaults_of_the_table():
    said = manual()
    wrong = [name for name, default in table() if default is not None and f"Default: {default}.\n" not in said[name]]
    assert wrong == []
