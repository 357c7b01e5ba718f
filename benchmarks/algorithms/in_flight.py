"""Learning from answers in which weights change, beside answers of the newest weights.

python -m benchmarks.algorithms.in_flight [--seeds 1 2 3 4 5] [--report]

An answer begins with weights four steps old and ends with the newest ones, on `carries`; the other
runs have the same seeds, problems and numbers of answers. A pair's figure is the ratio of the areas
under their held-out curves. Finished runs are lines of algorithms_in_flight.jsonl; lag 4 there is
the largest one.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from benchmarks.algorithms.judge import HARD_LAG
from benchmarks.algorithms.results import Results
from benchmarks.algorithms.tasks import TASKS
from benchmarks.algorithms.trials import all_trials
from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/algorithms_in_flight.jsonl"
TASK = TASKS["carries"]
TRIAL = "grpo"
"""Its ratio is between the trained policy and the weights that drew each token."""
NUM_STEPS = 40
LAGS = (0, HARD_LAG)
AIM = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--report", action="store_true", help="only write what there is")
    parser.add_argument("--work", type=Path, default=ROOT / "build/algorithms_carries")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = Results(given.results)
    if not given.report:
        train_missing(results, given.work, given.seeds)
    report(results, given.results.with_suffix(".json"))


def train_missing(results: Results, work: Path, seeds: Sequence[int]) -> None:
    """Trains what is not there yet, pair by pair."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from benchmarks.gang import join_alone

    ranks = join_alone()
    from benchmarks.algorithms.job import TrialJob
    from benchmarks.algorithms.start import make_start
    from benchmarks.algorithms.train import TrialTrainer

    job = TrialJob.prepared(work.resolve(), TASK)
    plain = TrialTrainer(job=job, ranks=ranks, num_rows=TASK.num_rows)
    changing = replace(plain, changes_amid_answers=True)
    make_start(plain)
    for lag, seed in ((lag, seed) for seed in seeds for lag in LAGS):
        if (TRIAL, lag, seed) in results.runs:
            continue
        trainer = changing if lag else plain
        run = trainer.run(all_trials()[TRIAL], seed=seed, lag=lag, num_steps=NUM_STEPS)
        results.add(run)
        print(f"lag {lag}, seed {seed}: area {run.area:.3f}, {run.seconds:.0f} s", flush=True)


def report(results: Results, summary: Path) -> None:
    """Prints and writes the ratios of areas, and the mean curves."""
    seeds = sorted({seed for _, _, seed in results.runs})
    pairs = [[results.runs[TRIAL, lag, seed] for lag in LAGS] for seed in seeds]
    ratios = [amid.area / fresh.area for fresh, amid in pairs]
    curves = {
        f"lag {lag}": {0: found[0].start}
        | {step: fmean(run.accuracies[step] for run in found) for step in found[0].accuracies}
        for lag, found in zip(LAGS, zip(*pairs, strict=True), strict=True)
    }
    what = f"{TRIAL}: area with weights that change amid answers, over that on policy"
    claims = [PerformanceClaim(what, median(ratios), AIM, ">=")]
    print_claims(claims)
    record = {"ratios": ratios, "curves": curves, "claims": [claim.as_json() for claim in claims]}
    summary.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
