"""The squares example and its control: held-out accuracy, with pictures and with shuffled ones.

python -m benchmarks.squares [--json benchmarks/results/squares.json]

Prepares and runs each as a user would, one after the other. The aim is for two quiet cores; with
other work on the machine, the processor time tells how long a run would take.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
CHANCE = 1 / 6
AIM, AIM_SECONDS = 0.95, 600
OWN, CONTROL = "pictures", "shuffled pictures"
OPTIONS: dict[str, tuple[str, ...]] = {OWN: (), CONTROL: ("--shuffled",)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/squares.json")
    arguments = parser.parse_args()
    record: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as work:
        for name, options in OPTIONS.items():
            record[name] = executed(Path(work) / name.replace(" ", "-"), options)
    print_claims(write(arguments.json, record))


def executed(folder: Path, options: tuple[str, ...]) -> dict[str, object]:
    """Runs the example in a folder; returns its figures."""
    os.environ["TRINITY_SQUARES_WORK"] = str(folder / "work")
    os.environ["TRINITY_CHECKPOINT_ROOT_DIR"] = str(folder / "checkpoints")
    before = _processor_seconds()
    prepare = ["examples.squares.prepare", "--work", str(folder / "work"), *options]
    run = ["trinity.cli.main", "run", "--config", "examples/squares/squares.yaml"]
    for command in (prepare, run):
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
    return figures(folder / "checkpoints/examples/squares", _processor_seconds() - before)


def figures(job_dir: Path, processor_seconds: float) -> dict[str, object]:
    """Returns the record of a finished run."""
    summary = json.loads((job_dir / "summary.json").read_text())
    rft = summary["stages"][-1]
    return {
        "seconds": summary["seconds"],
        "processor_seconds": processor_seconds,
        "held_out": {
            str(shown["version"]): shown["metrics"]["accuracy"]["mean"]
            for shown in rft["evaluations"]
        },
        "num_held_out": summary["final_evaluation"]["num_tasks"],
        "rewards": rft["rewards"],
    }


def write(file: Path, record: dict[str, dict[str, object]]) -> list[PerformanceClaim]:
    """Writes the figures with the claims that follow, and returns these."""
    claims = list(_claims(record))
    written = {**record, "claims": [claim.as_json() for claim in claims]}
    file.write_text(json.dumps(written, indent=2) + "\n")
    return claims


def _claims(record: dict[str, dict[str, object]]) -> list[PerformanceClaim]:
    own, control = record[OWN], record[CONTROL]
    num_held_out = int(str(control["num_held_out"]))
    error = math.sqrt(CHANCE * (1 - CHANCE) / num_held_out)
    return [
        PerformanceClaim("held-out accuracy", _last(own), AIM, ">="),
        PerformanceClaim(
            "processor seconds over two cores' ten minutes",
            float(str(own["processor_seconds"])),
            2 * AIM_SECONDS,
            "<=",
        ),
        PerformanceClaim(
            "control: standard errors from chance", abs(_last(control) - CHANCE) / error, 3, "<="
        ),
    ]


def _last(of_run: dict[str, object]) -> float:
    held_out = of_run["held_out"]
    assert isinstance(held_out, dict)
    return float(list(held_out.values())[-1])


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
