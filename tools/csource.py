"""C sources as the checks see them: which files there are, and their text with comments and literals blanked."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent

_TOKEN = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+' | \w+""",
    re.DOTALL | re.VERBOSE,
)


def sources(root, folders=("src", "tests"), suffixes=(".c", ".h")):
    """All C files below the folders, sorted."""
    found = []
    for folder in folders:
        found += [p for p in (root / folder).rglob("*") if p.suffix in suffixes and p.is_file()]
    return sorted(found)


def blank(text, keep_line_comments=False):
    """The text with comments and literals replaced by blanks; lines and columns stay what they were.

    Words are tokens too, so that the quotes in 1'000 begin no literal."""

    def replace(match):
        token = match.group(0)
        if token[0] not in "/\"'":
            return token
        if keep_line_comments and token.startswith("//"):
            return token
        return re.sub(r"[^\n]", " ", token)

    return _TOKEN.sub(replace, text)


def line_of(text, offset):
    """The number of the line that holds the offset."""
    return text.count("\n", 0, offset) + 1


def report(problems, what):
    """Prints the problems and returns the exit status."""
    for problem in problems:
        print(problem)
    print(f"{what}: {len(problems)} problem(s)" if problems else f"{what}: ok")
    return 1 if problems else 0
