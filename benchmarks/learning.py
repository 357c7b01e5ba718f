"""Examples that learn: held-out scores of whole runs, and of a control.

python -m benchmarks.learning squares    # pictures, and shuffled ones
python -m benchmarks.learning hubs       # environments of verifiers and OpenEnv; installs the hubs

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
CHANCE = 1 / 6
AIM, AIM_SECONDS = 0.95, 600
OWN, CONTROL = "pictures", "shuffled pictures"
RISE_ERRORS = 5
"""Standard errors that a held-out score of a hub must rise by: noise does not."""


@dataclass(frozen=True, slots=True)
class LearningRun:
    """An example, what it prepares, and what it installs."""

    example: str
    prepares: str
    options: tuple[str, ...] = ()
    hub: str = ""


RECORDS: Mapping[str, Mapping[str, LearningRun]] = {
    "squares": {
        OWN: LearningRun("squares", "squares"),
        CONTROL: LearningRun("squares", "squares", ("--shuffled",)),
    },
    "hubs": {hub: LearningRun(hub, "addition", hub=hub) for hub in ("verifiers", "openenv")},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", choices=RECORDS)
    parser.add_argument("--json", type=Path, help="default: in benchmarks/results")
    arguments = parser.parse_args()
    record: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as work:
        for name, run in RECORDS[arguments.record].items():
            record[name] = executed(Path(work) / name.replace(" ", "-"), run)
    file = arguments.json or ROOT / f"benchmarks/results/{arguments.record}.json"
    claims = list(CLAIMS[arguments.record](record))
    written = {**record, "claims": [claim.as_json() for claim in claims]}
    file.write_text(json.dumps(written, indent=2) + "\n")
    print_claims(claims)


def executed(folder: Path, run: LearningRun) -> dict[str, Any]:
    """Runs the example in a folder; returns its figures."""
    if run.hub:
        _command("trinity.cli.main", "setup", "hub", run.hub)
    os.environ[f"TRINITY_{run.prepares.upper()}_WORK"] = str(folder / "work")
    os.environ["TRINITY_CHECKPOINT_ROOT_DIR"] = str(folder / "checkpoints")
    before = _processor_seconds()
    _command(f"examples.{run.prepares}.prepare", "--work", str(folder / "work"), *run.options)
    config = f"examples/{run.example}/{run.example}.yaml"
    _command("trinity.cli.main", "run", "--config", config)
    job_dir = folder / "checkpoints/examples" / run.example
    return figures(job_dir, _processor_seconds() - before)


def _command(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=True)


def figures(job_dir: Path, processor_seconds: float) -> dict[str, Any]:
    """Returns the record of a finished run."""
    summary = json.loads((job_dir / "summary.json").read_text())
    rft = summary["stages"][-1]
    return {
        "seconds": summary["seconds"],
        "processor_seconds": processor_seconds,
        "held_out": {str(shown["version"]): _score(shown) for shown in rft["evaluations"]},
        "num_held_out": summary["final_evaluation"]["num_tasks"],
        "rewards": rft["rewards"],
    }


def _score(evaluation: Mapping[str, Any]) -> float:
    metrics = evaluation["metrics"]
    return float(metrics.get("accuracy", metrics["reward"])["mean"])


def _claims_of_squares(record: Mapping[str, Mapping[str, Any]]) -> Iterator[PerformanceClaim]:
    own, control = record[OWN], record[CONTROL]
    error = math.sqrt(_variance(CHANCE, control))
    yield PerformanceClaim("held-out accuracy", _ends(own)[1], AIM, ">=")
    yield PerformanceClaim(
        "processor seconds over two cores' ten minutes",
        own["processor_seconds"],
        2 * AIM_SECONDS,
        "<=",
    )
    yield PerformanceClaim(
        "control: standard errors from chance", abs(_ends(control)[1] - CHANCE) / error, 3, "<="
    )


def _claims_of_hubs(record: Mapping[str, Mapping[str, Any]]) -> Iterator[PerformanceClaim]:
    for hub, run in record.items():
        first, last = _ends(run)
        error = math.sqrt(_variance(first, run) + _variance(last, run))
        rise = (last - first) / error
        yield PerformanceClaim(f"{hub}: standard errors of its rise", rise, RISE_ERRORS, ">=")


CLAIMS = {"squares": _claims_of_squares, "hubs": _claims_of_hubs}


def _variance(share: float, run: Mapping[str, Any]) -> float:
    """Returns that of a mean of zeros and ones: of scores in between it is no larger."""
    return share * (1 - share) / int(run["num_held_out"])


def _ends(run: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the first held-out score and the last."""
    held_out = [*run["held_out"].values()]
    return held_out[0], held_out[-1]


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
