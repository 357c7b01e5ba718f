"""How well rollout and training overlap at `sync_offset: 1`, with durations that are simulated.

python -m benchmarks.pipelining [--runs 3] [--json FILE]

The services are real, only the engine and the learner sleep instead of computing. The limit of a
step is the longer of the two durations.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.model_free_run import events_of, step_gaps
from benchmarks.table import Claim, print_claims
from tests.model_free.experiment import experiment_plan

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0))
"""Seconds of a rollout and of a train step."""
NUM_STEPS = 16
NUM_UNCOUNTED = 4
AIM = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/pipelining.json")
    arguments = parser.parse_args()
    claims = [_measure(rollout, train, arguments.runs) for rollout, train in DURATIONS]
    print_claims(claims)
    arguments.json.write_text(
        json.dumps({"claims": [claim.as_json() for claim in claims]}, indent=2) + "\n"
    )


def _measure(rollout: float, train: float, num_runs: int) -> Claim:
    ratios = []
    for run in range(num_runs):
        with tempfile.TemporaryDirectory() as directory:
            plan = experiment_plan(
                Path(directory),
                name=f"run-{run}",
                buffer={"total_steps": NUM_STEPS},
                synchronizer={"sync_interval": 1, "sync_offset": 1},
                trainer={"save_interval": 0},
            )
            events = asyncio.run(events_of(plan, run_seconds=rollout, step_seconds=train))
        gaps = step_gaps(events)[NUM_UNCOUNTED:]
        ratios.append(statistics.median(gaps) / max(rollout, train))
    name = f"step over the longer of rollout {rollout:g} s and training {train:g} s, sync_offset 1"
    return Claim(name, statistics.median(ratios), AIM, "<=")


if __name__ == "__main__":
    main()
