#!/usr/bin/python3
"""Runs inside a sandbox: one JSON list of words in, one JSON list [status, output, errors] out, line by line."""

import json
import subprocess
import sys

for line in sys.stdin:
    done = subprocess.run(json.loads(line), stdin=subprocess.DEVNULL, capture_output=True)
    print(json.dumps([done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")]), flush=True)
