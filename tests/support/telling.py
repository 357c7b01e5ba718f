"""Tells what it was started with: python -m tests.support.telling [words...]

The word `below` has it start itself twice, as `subprocess` and as a supervisor does.
"""

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CODE = 7
IMPORTED_BEFORE = "colorsys"
"""A module that it does not import."""


def told() -> dict[str, Any]:
    """Returns what it was started with."""
    shown = Path("/proc/self/environ").read_bytes().split(b"\0")
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return {
        "words": sys.argv[1:],
        "name": __name__,
        "folder": str(Path.cwd()),
        "given": os.environ.get("GIVEN"),
        "has home": "HOME" in os.environ,
        "path": sys.path,
        "read": sys.stdin.read(),
        "leads session": os.getsid(0) == os.getpid(),
        "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:4],
        "shows variables": [os.fsdecode(pair) for pair in shown if pair.startswith(b"GIVEN=")],
        "shows words": [os.fsdecode(word) for word in words if word],
    }


def start_below() -> None:
    """Starts itself, and passes on what that says."""
    command = [sys.executable, "-P", "-m", "tests.support.telling", "further"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    sys.stdout.write(done.stdout)
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    sys.stdout.flush()
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[null], setsid=True)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == CODE


def main() -> int:
    """Prints a line of JSON for each of these processes, and who they are."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(errors="replace")  # as `trinity` does
    is_forked = IMPORTED_BEFORE in sys.modules
    who = {"forked": is_forked, "of": os.getppid(), "is": os.getpid()}
    sys.stdout.write(json.dumps([told(), who]) + "\n")
    sys.stdout.flush()
    if "below" in sys.argv:
        start_below()
    if "raise" in sys.argv:
        raise ValueError("meant")
    if "wait" in sys.argv:
        time.sleep(60)
    return CODE


if __name__ == "__main__":
    sys.exit(main())
