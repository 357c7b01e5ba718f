"""Runs all parts on this machine and reports each, whatever comes of the others.

python -m benchmarks.acceptance [--size 0.5b] [--folder build/gpu-acceptance] [--only turns ...]

Writes `acceptance.json`, `acceptance.md` and a log of each part into the folder. Ends with 0 if no
part has failed; parts that need more GPUs than there are, or than torch can use, say so and have
not failed.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.acceptance.outcome import (
    PartOutcome,
    PartState,
    last_words,
    not_run,
    obstacle_to,
    page_of,
)
from benchmarks.acceptance.parts import ROOT, AcceptancePart, parts_of
from benchmarks.gpu.sizes import SIZES

MIB_SECONDS = 0.2
"""Between looks at the memory in use."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(SIZES), default="0.5b")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu-acceptance")
    parser.add_argument("--only", nargs="*", default=[], help="names of parts")
    given = parser.parse_args(words)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        part for part in parts_of(given.size, folder) if part.name in given.only or not given.only
    ]
    devices = gpu_names()
    usable = min(len(devices), gpus_of_torch()) if devices else 0
    outcomes = []
    for part in wanted:
        obstacle = obstacle_to(part, num_gpus=len(devices), num_usable=usable)
        outcomes.append(not_run(part, obstacle) if obstacle else outcome_of(part, folder))
        print(f"{part.name}: {outcomes[-1].state} {outcomes[-1].reason}", flush=True)
    report(folder, outcomes, devices)
    return int(any(outcome.state is PartState.FAILED for outcome in outcomes))


def gpu_names() -> list[str]:
    """Returns the GPUs of this machine by the driver's own words; none without a driver."""
    return _ask_driver("name")


def gpus_of_torch() -> int:
    """Returns the GPUs that torch can use: none where it was built for processors."""
    import torch

    return int(torch.cuda.device_count())


def outcome_of(part: AcceptancePart, folder: Path) -> PartOutcome:
    """Runs a part in a process of its own; an error of any kind is its outcome."""
    begun = time.monotonic()
    with MemoryPeak(enabled=part.measures_memory) as peak:
        reason = failure_of(part, folder)
    try:
        figures = json.loads((folder / part.figures).read_text()) if part.figures else {}
    except (OSError, ValueError) as error:
        figures, reason = {}, reason or f"it left no figures: {error}"
    return PartOutcome(
        name=part.name,
        promise=part.promise,
        state=PartState.FAILED if reason else PartState.PASSED,
        reason=reason,
        seconds=round(time.monotonic() - begun, 1),
        peak_memory_mib=peak.mib,
        figures=figures,
    )


def failure_of(part: AcceptancePart, folder: Path) -> str:
    """Runs the command of a part; returns why it failed, or an empty text."""
    log = folder / f"{part.name}.log"
    try:
        with log.open("wb") as file:
            done = subprocess.run(
                part.argv,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=60 * part.minutes,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return f"not over after {part.minutes:g} minutes; its log is {log}"
    except OSError as error:
        return f"it could not be started: {error}"
    if done.returncode == 0:
        return ""
    return f"exit code {done.returncode}: {last_words(log.read_text(errors='replace'))}"


def report(folder: Path, outcomes: Sequence[PartOutcome], devices: Sequence[str]) -> None:
    """Writes the JSON and the page, and prints the page."""
    machine = ", ".join(devices) or f"no GPU ({platform.machine()})"
    record = {"machine": machine, "parts": [outcome.as_json() for outcome in outcomes]}
    (folder / "acceptance.json").write_text(json.dumps(record, indent=2) + "\n")
    page = page_of(outcomes, machine=machine)
    (folder / "acceptance.md").write_text(page)
    print(f"\n{page}")


class MemoryPeak:
    """Looks at the memory in use on the first GPU while a block runs."""

    def __init__(self, *, enabled: bool) -> None:
        self.mib: int | None = None
        self._enabled = enabled
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryPeak":
        if self._enabled:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._enabled:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(MIB_SECONDS):
            used = [int(text) for text in _ask_driver("memory.used")[:1] if text.isdigit()]
            self.mib = max([self.mib or 0, *used]) if used else self.mib


def _ask_driver(field: str) -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    argv = [program, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
