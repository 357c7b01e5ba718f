"""Seconds from `trinity debug --module workflow` to its first transcript, with the engine up.

python -m benchmarks.debug_start [--runs 10] [--json FILE]

The engine of the addition example is started once, by `trinity debug --module inference_model`, as
a user would; then the second command is run again and again, as a whole process. Beside it stands
the start of Python alone, in the same turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
FILE = "examples/addition/addition.yaml"
DEBUG = (sys.executable, "-m", "trinity.cli.main", "debug", "--config", FILE, "--module")
AIM_SECONDS = 3.0
ENGINE_SECONDS = 180.0
IS_UP, TRANSCRIPT = b"the engine is up", b"reward "


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/debug_start.json")
    arguments = parser.parse_args()
    subprocess.run((sys.executable, "-m", "examples.addition.prepare"), cwd=ROOT, check=True)
    first, nothing = [], []
    with _engine():
        for turn in range(arguments.runs + 1):
            seconds, python = _seconds_to_transcript(), _seconds_of_python()
            if turn:  # the first makes bytecode
                first.append(round(seconds, 3))
                nothing.append(round(python, 3))
    median = statistics.median(first)
    claim = PerformanceClaim("to the first transcript, wall seconds", median, AIM_SECONDS, "<=")
    print_claims([claim])
    record = {
        "seconds": first,
        "python_alone_seconds": nothing,
        "load_average": os.getloadavg()[0],
        "claims": [claim.as_json()],
    }
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


@contextmanager
def _engine() -> Iterator[None]:
    """The first command, until it says that the engine is up."""
    with tempfile.TemporaryFile() as output:
        command = (*DEBUG, "inference_model")
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + ENGINE_SECONDS
            while IS_UP not in (said := os.pread(output.fileno(), 1 << 20, 0)):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"the engine did not start: {said.decode(errors='replace')[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            process.wait()


def _seconds_to_transcript() -> float:
    start = time.perf_counter()
    with subprocess.Popen(
        (*DEBUG, "workflow"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(TRANSCRIPT):
                seconds = time.perf_counter() - start
                process.stdout.read()
                return seconds
    sys.exit("`trinity debug --module workflow` showed no transcript")


def _seconds_of_python() -> float:
    start = time.perf_counter()
    subprocess.run((sys.executable, "-c", "pass"), check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
