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
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.gpu.sizes import SIZES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/addition/addition.yaml"
ON_ONE_GPU = ("cluster.node_num=1", "cluster.gpu_per_node=1", "stages[1].mode=colocate")
ON_TWO_GPUS = ("cluster.node_num=1", "cluster.gpu_per_node=2")
MAX_REASON = 300
NO_CUDA = (
    "torch of this environment uses no GPU, as that of `make setup`: name the programs of one with "
    "CUDA builds of torch, vllm and verl, as in `make gpu-acceptance BIN=/opt/cuda-env/bin`"
)
MIB_SECONDS = 0.2
"""Between looks at the memory in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptancePart:
    """One promise, and the command that shows it on this machine."""

    name: str
    promise: str
    argv: tuple[str, ...]
    num_gpus: int = 1
    minutes: float = 20.0
    """Longest time; then it has failed."""
    measures_memory: bool = False
    """True if the peak of the GPU's memory is a figure of it."""
    figures: Path | None = None
    """JSON that the command leaves, relative to the folder of the results."""


def parts_of(size: str, folder: Path) -> tuple[AcceptancePart, ...]:
    """Returns all parts, in order; `folder` takes their files."""
    return (*_tested_parts(), *_run_parts(size, folder))


def _tested_parts() -> tuple[AcceptancePart, ...]:
    """Returns the parts that tests of the repository show."""
    return (
        _tests(
            "engine",
            "the engine generates, scores, repeats draws and takes weights, as on a processor",
            "tests/integration/explorer/test_engine.py",
        ),
        _tests(
            "attention",
            "packed rows and shared prompts give the outputs and gradients of padded, whole ones",
            "tests/integration/trainer/test_packed_rows.py",
            "tests/integration/trainer/test_shared_prompts.py",
            "tests/integration/trainer/test_gpu_attention.py",
        ),
        _tests(
            "head",
            "the head in chunks gives the loss and gradients of the whole head",
            "tests/integration/trainer/test_chunked_head.py",
        ),
        _tests(
            "experts",
            "the experts that the engine told are chosen again in training",
            "tests/integration/trainer/test_routed_experts.py",
        ),
        _tests(
            "sequences",
            "two ranks that share sequences compute what one rank does",
            "tests/integration/trainer/test_two_ranks.py",
            num_gpus=2,
        ),
    )


def _run_parts(size: str, folder: Path) -> tuple[AcceptancePart, ...]:
    """Returns the parts that run the system."""
    return (
        AcceptancePart(
            name="turns",
            promise="engine and trainer use one GPU by turns; the peak of its memory is measured",
            argv=_run(folder, "turns", *ON_ONE_GPU, steps=3),
            measures_memory=True,
        ),
        AcceptancePart(
            name="transfer",
            promise="weights go from the trainer's memory to the engine by NCCL",
            argv=_run(folder, "transfer", *ON_TWO_GPUS, "synchronizer.sync_method=nccl", steps=3),
            num_gpus=2,
        ),
        AcceptancePart(
            name="learning",
            promise="a model that is made here learns to add; the whole example, by turns",
            argv=_run(folder, "learning", *ON_ONE_GPU),
            minutes=60.0,
        ),
        AcceptancePart(
            name="speed",
            promise="tokens a second, MFU and weight sync beside the device's own limits",
            argv=(
                *(sys.executable, "-m", "benchmarks.gpu", "--size", size),
                *("--json", str(folder / "speed.json")),
            ),
            minutes=30.0,
            measures_memory=True,
            figures=Path("speed.json"),
        ),
    )


def _tests(name: str, promise: str, *paths: str, num_gpus: int = 1) -> AcceptancePart:
    """Returns a part that is tests which pass on processors, run where there is a GPU.

    Warnings are no failures there: those of libraries for GPUs are others than the suite knows.
    """
    options = ("-n", "0", "-q", "-W", "ignore", "-p", "no:cacheprovider")
    argv = (sys.executable, "-m", "pytest", *options, *paths)
    return AcceptancePart(name=name, promise=promise, argv=argv, num_gpus=num_gpus)


def _run(folder: Path, name: str, *overrides: str, steps: int | None = None) -> tuple[str, ...]:
    """Returns a run of the addition example in its own folder."""
    limit: Sequence[str] = () if steps is None else ("--max-steps", str(steps))
    place = f"checkpoint_root_dir={folder / name}"
    return (sys.executable, "-m", "trinity", "run", EXAMPLE, *limit, place, *overrides)


class PartState(StrEnum):
    """The ways in which a part ends."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOutcome:
    """A part, its outcome, and its figures."""

    name: str
    promise: str
    state: PartState
    reason: str = ""
    """Why it failed or was not run."""
    seconds: float = 0.0
    peak_memory_mib: int | None = None
    """The most memory of the GPU in use, by its driver; None where it is not measured."""
    figures: dict[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Returns it for the committed results."""
        return asdict(self)


def not_run(part: AcceptancePart, reason: str) -> PartOutcome:
    """Returns the outcome of a part that cannot run here."""
    return PartOutcome(name=part.name, promise=part.promise, state=PartState.NOT_RUN, reason=reason)


def obstacle_to(part: AcceptancePart, *, num_gpus: int, num_usable: int) -> str:
    """Returns why a part cannot run with the GPUs that torch can use, of those that are there."""
    if part.num_gpus <= num_usable:
        return ""
    if num_gpus and not num_usable:
        return NO_CUDA
    have = {0: "no GPU", 1: "one GPU"}.get(num_usable, f"{num_usable} GPUs")
    wants = "" if num_usable == 0 else f", and the part needs {part.num_gpus}"
    return f"{have} on this machine{wants}"


def page_of(outcomes: Sequence[PartOutcome], *, machine: str) -> str:
    """Returns the page: one line a part, then why parts failed or were not run."""
    counts = {state: sum(part.state is state for part in outcomes) for state in PartState}
    counted = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [
        "# Acceptance on a GPU",
        "",
        f"{machine}: {counted}.",
        "",
        "| part | outcome | seconds | peak MiB | promise |",
        "|---|---|---|---|---|",
        *(_row(part) for part in outcomes),
    ]
    reasons = [f"- **{part.name}**: {part.reason}" for part in outcomes if part.reason]
    return "\n".join([*lines, *(["", *reasons] if reasons else []), ""])


def _row(part: PartOutcome) -> str:
    seconds = f"{part.seconds:.0f}" if part.seconds else "-"
    peak = "-" if part.peak_memory_mib is None else f"{part.peak_memory_mib:,}"
    return f"| {part.name} | {part.state} | {seconds} | {peak} | {part.promise} |"


def last_words(text: str) -> str:
    """Returns the end of a command's output, on one line."""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(said[-3:])[-MAX_REASON:]


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
    """Runs a part in a separate process; an error of any kind is its outcome."""
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
