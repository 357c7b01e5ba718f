"""A GRPO step through the services over the same calls in one process.

python -m benchmarks.overhead [--runs 3] [--models tiny big] [--json FILE]

Every contender does the same job with one thread a process, one after the other, so that all see
the same machine; the figures are medians over the steps of all runs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import through_services
from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps
from benchmarks.overhead.untrained_model import write_big_model
from benchmarks.table import PerformanceClaim, print_claims
from examples.addition.prepare import prepare
from examples.squares.model import save_model as save_vision_model
from examples.squares.prepare import prepare as prepare_squares

ROOT = Path(__file__).resolve().parents[2]
LIMIT = "one process, same calls"
OURS = {0: "services, sync_offset 0", 1: "services, sync_offset 1"}
AIMS = {0: 1.5, 1: 1.2}
AIM_WITH_IMAGES = 1.3
Contender = Callable[[OverheadJob, str], Steps]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--models", nargs="+", default=["tiny", "big", "images"], choices=["tiny", "big", "images"]
    )
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/overhead.json")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    claims: list[PerformanceClaim] = []
    with tempfile.TemporaryDirectory() as work:
        for model in arguments.models:
            measured = _measure(job_of(model, Path(work)), arguments.runs)
            _print_parts(model, measured)
            own = _claims(model, measured)
            _write(arguments.json, model, measured, own)
            claims += own
    print_claims(claims)


def _write(
    file: Path, model: str, measured: Mapping[str, Steps], claims: Sequence[PerformanceClaim]
) -> None:
    """A model's part of the record, as soon as it is known; those of others stay."""
    record = json.loads(file.read_text()) if file.exists() else {"claims": []}
    others = [claim for claim in record.pop("claims") if not claim["name"].startswith(f"{model}:")]
    record[model] = {
        name: {"seconds": steps.median, "parts": steps.median_parts()}
        for name, steps in measured.items()
    }
    record["claims"] = [*others, *(claim.as_json() for claim in claims)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=2) + "\n")


def job_of(model: str, root: Path) -> OverheadJob:
    """Makes a model and its tasks below a folder."""
    work = root / model
    if model == "images":
        return _images_job(work)
    prepare(work / "made", seed=1)
    data = work / "made/data/train.jsonl"
    if model == "tiny":
        directory, num_tasks, num_steps = work / "made/model", 32, 40
    else:
        directory, num_tasks, num_steps = write_big_model(work / "big"), 8, 14
    return OverheadJob(
        name=model,
        model=directory,
        data=data,
        num_tasks=num_tasks,
        repeat_times=8,
        num_steps=num_steps,
        work=work,
    )


def _images_job(work: Path) -> OverheadJob:
    """Counting squares, with a vision model of 28 million parameters."""
    prepare_squares(work / "made", seed=1)
    save_vision_model(work / "model", 1, width=448, layers=6, tower_layers=4)
    return OverheadJob(
        name="images",
        model=work / "model",
        data=work / "made/data/train.jsonl",
        num_tasks=16,
        repeat_times=8,
        num_steps=14,
        work=work,
        has_images=True,
    )


def _measure(job: OverheadJob, num_runs: int) -> dict[str, Steps]:
    contenders: dict[str, Contender] = {
        LIMIT: lambda job, _: in_process("benchmarks.overhead.one_process", job),
    }
    for offset, name in OURS.items():
        contenders[name] = lambda job, run, offset=offset: through_services.measure(  # type: ignore[misc]
            job, f"offset-{offset}-{run}", sync_offset=offset
        )
    runs: dict[str, list[Steps]] = {name: [] for name in contenders}
    for run in range(num_runs):
        for name, contender in contenders.items():
            runs[name].append(contender(job, str(run)))
            print(f"{job.name}, run {run + 1}: {name}: {runs[name][-1].median:.3f} s", flush=True)
    return {name: middle_run(steps) for name, steps in runs.items()}


def middle_run(runs: Sequence[Steps]) -> Steps:
    """The run whose median is the median of all."""
    return sorted(runs, key=lambda steps: steps.median)[len(runs) // 2]


def in_process(module: str, job: OverheadJob, packages: Path | None = None) -> Steps:
    """Measures in another process, which also finds the packages in a folder."""
    arguments = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(job).items()}
    done = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        cwd=ROOT,
        env={**os.environ, **({"PYTHONPATH": str(packages)} if packages else {})},
        stdout=subprocess.PIPE,
        stderr=(job.work / f"{module}.log").open("wb"),
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module}: {(job.work / f'{module}.log').read_text()[-2000:]}")
    return Steps.from_json(done.stdout.strip().splitlines()[-1])


def _print_parts(model: str, measured: dict[str, Steps]) -> None:
    table = Table("step", "seconds", "x limit", "where the time goes", title=model)
    for name, steps in measured.items():
        parts = "  ".join(f"{part} {value:.3f}" for part, value in steps.median_parts().items())
        table.add_row(
            name,
            f"{steps.median:.3f}",
            f"{steps.median / measured[LIMIT].median:.2f}",
            parts,
        )
    Console(width=160).print(table)


def _claims(model: str, measured: dict[str, Steps]) -> list[PerformanceClaim]:
    limit = measured[LIMIT].median
    return [
        PerformanceClaim(
            f"{model}: {name} over {LIMIT}",
            measured[name].median / limit,
            AIM_WITH_IMAGES if model == "images" else AIMS[offset],
            "<=",
        )
        for offset, name in OURS.items()
    ]


if __name__ == "__main__":
    main()
