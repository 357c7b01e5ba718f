"""A GRPO step through the services, as they are launched, over one of TRL's GRPOTrainer.

python -m benchmarks.overhead.beside_trl [--runs 3] [--models tiny big] [--json FILE]

Both do the same job: the model, the tasks, 8 rollouts of each and one update a step; TRL generates
by transformers, in one process, as it does without a server. Each has the threads that it takes by
itself on this machine: at `sync_offset: 0` rollout and training take turns, and each has all of it;
at 1 and fully asynchronous they share it.
Contenders take turns too, and a figure is the median of the steps of the middle run. TRL goes into
build/peers/trl, apart from the packages of this project.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.overhead import through_services
from benchmarks.overhead.__main__ import in_process, job_of, middle_run
from benchmarks.overhead.steps import Steps
from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parents[2]
TRL = "trl==1.16.0"
OFFSET_0, OFFSET_1, ASYNC = "sync_offset 0", "sync_offset 1", "fully async"
STYLES: Mapping[str, Mapping[str, object]] = {
    OFFSET_0: {"sync_offset": 0},
    OFFSET_1: {"sync_offset": 1},
    ASYNC: {"sync_style": "fully_async"},
}
AIMS = {"tiny": {OFFSET_0: 2.0, ASYNC: 1.8}, "big": {OFFSET_0: 1.05, ASYNC: 0.8}}
"""For the addition model, and for one of 76 million parameters; fully async no slower than 1."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(AIMS), choices=AIMS)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/beside_trl.json")
    arguments = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    folder = installed(ROOT / "build/peers/trl")
    record: dict[str, object] = {"trl": TRL}
    claims = []
    with tempfile.TemporaryDirectory() as work:
        for model in arguments.models:
            ours, peer = _measured(model, Path(work), folder, arguments.runs)
            claims += _claims(model, ours, middle_run(peer).median)
            record[model] = {
                "services": {style: [run.median for run in runs] for style, runs in ours.items()},
                "parts": {style: middle_run(runs).median_parts() for style, runs in ours.items()},
                "trl": [run.median for run in peer],
            }
            record["claims"] = [claim.as_json() for claim in claims]
            arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    print_claims(claims)


def installed(folder: Path) -> Path:
    """Puts TRL alone into a folder, if it is not there yet: its dependencies are here."""
    if not (folder / "trl").is_dir():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install")
        subprocess.run((*pip, "--no-deps", "--target", str(folder), TRL), check=True)
    return folder


def _measured(
    model: str, work: Path, folder: Path, num_runs: int
) -> tuple[Mapping[str, Sequence[Steps]], Sequence[Steps]]:
    job = job_of(model, work)
    ours: dict[str, list[Steps]] = {style: [] for style in STYLES}
    peer: list[Steps] = []
    for run in range(num_runs):
        peer.append(in_process("benchmarks.overhead.trl_loop", job, packages=folder))
        print(f"{model}, run {run + 1}: TRL {peer[-1].median:.3f} s", flush=True)
        for number, (style, synchronizer) in enumerate(STYLES.items()):
            steps = through_services.measure(job, f"trl-{run}-{number}", **synchronizer)
            ours[style].append(steps)
            print(f"{model}, run {run + 1}: {style} {steps.median:.3f} s", flush=True)
    return ours, peer


def _claims(model: str, ours: Mapping[str, Sequence[Steps]], peer: float) -> list[PerformanceClaim]:
    seconds = {style: middle_run(runs).median for style, runs in ours.items()}
    ratios = [
        PerformanceClaim(f"{model}: services at {style} over TRL", seconds[style] / peer, aim, "<=")
        for style, aim in AIMS[model].items()
    ]
    what = f"{model}: services at {ASYNC} over those at {OFFSET_1}"
    return [*ratios, PerformanceClaim(what, seconds[ASYNC] / seconds[OFFSET_1], 1.0, "<=")]


if __name__ == "__main__":
    main()
