"""Tells what it was started with: python -m tests.support.telling [words...]

The word `below` has it start itself twice, as `subprocess` and as a supervisor does; `spawn` has
multiprocessing start a process that tells.
"""

import io
import json
import multiprocessing
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
        "process": multiprocessing.current_process().name,
        "folder": str(Path.cwd()),
        "given": os.environ.get("GIVEN"),
        "has home": "HOME" in os.environ,
        "path": sys.path,
        "read": sys.stdin.read(),
        "has first streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
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


def spawn() -> None:
    """Has multiprocessing start a process, as vLLM does for its engine."""
    process = multiprocessing.get_context("spawn").Process(target=tell, name="the engine")
    process.start()
    process.join()
    assert process.exitcode == 0


def tell() -> None:
    """Prints a line of JSON: what it was started with, and who it is."""
    is_forked = IMPORTED_BEFORE in sys.modules
    who = {"forked": is_forked, "of": os.getppid(), "is": os.getpid()}
    sys.stdout.write(json.dumps([told(), who]) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Tells; further words say what it does then."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(errors="replace")  # as `trinity` does
    tell()
    if "below" in sys.argv:
        start_below()
    if "spawn" in sys.argv:
        spawn()
    if "raise" in sys.argv:
        raise ValueError("meant")
    if "wait" in sys.argv:
        time.sleep(60)
    return CODE


if __name__ == "__main__":
    sys.exit(main())
