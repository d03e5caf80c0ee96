#!/usr/bin/python3
"""Prints a secret in the ways in which a job may do it by accident, and looks whether it came through.

masktest.py emit                in a job, with the variable SECRET set
masktest.py check SECRET < LOG  afterwards: prints the forms that stand in the log, exits with 1 if there are any"""

import base64
import html
import json
import os
import sys
import time
import urllib.parse

SHORTEST = 6  # a form of fewer bytes may stand in a log by chance


def base64_forms(secret):
    """The part of its base64 that is the same whatever stands before and behind it, at each of the three shifts."""
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret).decode()
        first = -(-shift * 8 // 6)
        last = (shift + len(secret)) * 8 // 6
        yield f"base64 shifted by {shift}", encoded[first:last]
        yield f"URL base64 shifted by {shift}", encoded[first:last].translate(str.maketrans("+/", "-_"))


def forms(secret):
    """Names and texts of what must not be seen."""
    raw = secret.encode()
    found = {
        "plain": secret,
        "trimmed": secret.strip(),
        "hex": raw.hex(),
        "upper case hex": raw.hex().upper(),
        "URL": urllib.parse.quote(secret, safe=""),
        "JSON": json.dumps(secret, ensure_ascii=False)[1:-1],
        "shell": secret.replace("'", "'\\''"),
        "XML": html.escape(secret, quote=False).replace('"', "&quot;"),
        **dict(base64_forms(raw)),
    }
    found.update({f"line {number}": line for number, line in enumerate(secret.splitlines(), 1)})
    return {name: text for name, text in found.items() if len(text.strip()) >= SHORTEST}


def write(text, pause_s=0.0, stream=sys.stdout):
    stream.write(text)
    stream.flush()
    time.sleep(pause_s)


def emit(secret):
    half = len(secret) // 2
    for name, text in forms(secret).items():
        write(f"{name}: {text}\n")
        write(f"{name}: <{text}>\n", stream=sys.stderr)
    for character in secret:
        write(character, 0.005)
    write("\n")
    # A pause must not let go of what may still become the secret.
    write(secret[:half], 1.2)
    write(f"{secret[half:]}\n")
    # The two streams are one output for whoever reads it, and each is masked by itself.
    write(secret[:half])
    write(f"{secret}\n", stream=sys.stderr)
    write(f"{secret[half:]}\n")
    for size in (4096, 65536, 1 << 20):
        for before in range(size - len(secret) - 1, size + 2, max(1, len(secret) // 3)):
            write(f"{'.' * before}{secret}\n")
    write(f"{secret * 50}\n{secret[:-1] * 3}{secret}\n{secret[1:]}{secret}{secret[:half]}{secret}\n")
    write(f"\x1b[31m{secret}\x1b[0m\r{secret}\r\n\0{secret}\0")
    write(secret, stream=sys.stderr)
    write(secret)


def check(secret):
    log = sys.stdin.buffer.read()
    seen = [name for name, text in forms(secret).items() if text.encode() in log]
    print(f"seen: {', '.join(seen)}" if seen else "clean")
    return 1 if seen else 0


def main():
    if sys.argv[1:] == ["emit"]:
        emit(os.environ["SECRET"])
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        sys.exit(check(sys.argv[2]))
    else:
        sys.exit(__doc__)


main()
