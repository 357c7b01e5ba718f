"""Measures how rollout and training overlap at `sync_offset: 1`, with simulated durations.

python -m benchmarks.pipelining [--runs 3] [--json FILE]

The services are real, only the engine and the learner sleep instead of computing. The limit of a
step is the longer of the two durations. Handing weights and rows over takes about the same time
however long they are: it is printed beside, and short steps show how much it can be of a step.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.model_free_run import events_of, step_gaps
from benchmarks.table import PerformanceClaim, print_claims
from tests.support.model_free.experiment import experiment_plan

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = ((3.0, 3.0), (3.0, 1.5), (1.5, 3.0))
"""Seconds of a rollout and of a train step; those of small models are longer."""
SHORT_DURATIONS = ((1.0, 1.0),)
"""Without an aim."""
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
    claims: list[PerformanceClaim] = []
    others: list[dict[str, object]] = []
    for rollout, train in (*DURATIONS, *SHORT_DURATIONS):
        beyond = statistics.median(
            _step_seconds(rollout, train, run) - max(rollout, train)
            for run in range(arguments.runs)
        )
        name = (
            f"step over the longer of rollout {rollout:g} s and training {train:g} s, sync_offset 1"
        )
        ratio = 1 + beyond / max(rollout, train)
        print(f"{name}: {ratio:.3f}, {1000 * beyond:.0f} ms beyond it", flush=True)
        others.append({"name": name, "ratio": ratio, "seconds_beyond": beyond})
        if (rollout, train) in DURATIONS:
            claims.append(PerformanceClaim(name, ratio, AIM, "<="))
    print_claims(claims)
    record = {"claims": [claim.as_json() for claim in claims], "measured": others}
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def _step_seconds(rollout: float, train: float, run: int) -> float:
    """Returns the seconds between reports: the median of the steps that count."""
    with tempfile.TemporaryDirectory() as directory:
        plan = experiment_plan(
            Path(directory),
            name=f"run-{run}",
            buffer={"total_steps": NUM_STEPS},
            synchronizer={"sync_interval": 1, "sync_offset": 1},
            trainer={"save_interval": 0},
        )
        events = asyncio.run(events_of(plan, run_seconds=rollout, step_seconds=train))
    return statistics.median(step_gaps(events)[NUM_UNCOUNTED:])


if __name__ == "__main__":
    main()
