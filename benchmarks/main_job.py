"""The addition example end to end: time, accuracy, repeatability, memory.

python -m benchmarks.main_job [--seeds 1 2 3] [--json benchmarks/results/main_job.json]

Runs `trinity run` as a user would: once a seed, then the first seed again, then again with the
trainer killed in the middle and once more with the whole run killed and resumed. Prints each figure
beside the limit it is held against.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.addition_run import AdditionResult, AdditionRun
from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
KILL_AT_STEP = 30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/main_job.json")
    parser.add_argument("--work", type=Path, help="keep what the runs leave in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        outcomes = measure(work, arguments.seeds)
    claims = judge(outcomes, arguments.seeds)
    print_claims(claims)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "claims": [claim.as_json() for claim in claims],
        "runs": {name: outcome.as_json() for name, outcome in outcomes.items()},
    }
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def measure(work: Path, seeds: list[int]) -> dict[str, AdditionResult]:
    """All runs, by name."""
    first = seeds[0]
    outcomes = {
        f"seed {seed}": AdditionRun(ROOT, work, f"seed-{seed}", seed).execute() for seed in seeds
    }
    outcomes["same seed again"] = AdditionRun(ROOT, work, "again", first).execute()
    outcomes["trainer killed"] = AdditionRun(ROOT, work, "trainer-killed", first).execute(
        kill_rank_at=KILL_AT_STEP
    )
    outcomes["run killed"] = AdditionRun(ROOT, work, "run-killed", first).execute(
        kill_run_at=KILL_AT_STEP
    )
    return outcomes


def judge(outcomes: dict[str, AdditionResult], seeds: list[int]) -> list[PerformanceClaim]:
    """The figures beside their limits."""
    plain = [outcomes[f"seed {seed}"] for seed in seeds]
    reference = plain[0]
    claims = [
        PerformanceClaim(
            "both stages, seconds (median)", _median(o.seconds_total for o in plain), 300, "<="
        ),
        PerformanceClaim(
            "stack without engines, seconds", _median(o.seconds_start for o in plain), 5, "<="
        ),
        PerformanceClaim(
            "first rollout after the stage starts, seconds",
            max(o.seconds_to_first_batch for o in plain),
            45,
            "<=",
        ),
        PerformanceClaim("memory of the buffer, MB", max(o.buffer_mb for o in plain), 250, "<="),
    ]
    for seed, outcome in zip(seeds, plain, strict=True):
        claims.append(
            PerformanceClaim(f"accuracy at start, seed {seed}", outcome.first_accuracy, 0.5, ">=")
        )
        claims.append(
            PerformanceClaim(f"accuracy at start, seed {seed}", outcome.first_accuracy, 0.75, "<=")
        )
        claims.append(
            PerformanceClaim(f"accuracy at end, seed {seed}", outcome.final_accuracy, 0.85, ">=")
        )
    for name in ("same seed again", "trainer killed", "run killed"):
        other = outcomes[name]
        same_weights = float(other.weights_sha256 == reference.weights_sha256)
        same_rewards = float(other.rewards == reference.rewards)
        claims.append(PerformanceClaim(f"same weights: {name}", same_weights, 1, ">="))
        claims.append(PerformanceClaim(f"same reward curve: {name}", same_rewards, 1, ">="))
    return claims


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
