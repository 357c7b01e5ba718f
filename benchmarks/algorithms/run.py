"""Train a small model from one warm start with every algorithm, and say which ones learn.

python -m benchmarks.algorithms [--task carries] [--only grpo ppo] [--seeds 1 2 3] [--lags 0 4]

Without `--task` it is the example's addition: a finished run is a line of
benchmarks/results/algorithms.jsonl and is not done again. Trials that do not learn at lag 4 are
then run at 1, 2 and 8 as well. The three tasks have a file each, `algorithms_<task>.jsonl`; there
losses with a ratio are run at lags 1 and 8 in any case, and the figure is the area under the
held-out curve. With `--report` nothing is run. The start is trained on the machine and has its
bits: runs of another machine go into another file, with `--results`.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.algorithms.judge import HARD_LAG, LAGS, verdicts
from benchmarks.algorithms.outcome import NUM_ROWS, NUM_STEPS, TrialRun
from benchmarks.algorithms.report import report, report_areas
from benchmarks.algorithms.results import Key, Results
from benchmarks.algorithms.tasks import TASKS, BenchTask
from benchmarks.algorithms.trials import Trial, all_trials, trials_of

ROOT = Path(__file__).resolve().parents[2]
RATIO_LAGS = (1, 8)


def main() -> None:
    arguments = _arguments()
    task = TASKS.get(arguments.task)
    known = all_trials() if task is None else trials_of(task.name, first=next(iter(TASKS)))
    trials = [all_trials()[name] for name in arguments.only or known]
    suffix = "" if task is None else f"_{task.name}"
    path = arguments.results or ROOT / f"benchmarks/results/algorithms{suffix}.jsonl"
    work = arguments.work or ROOT / f"build/algorithms{suffix}"
    results = Results(path)
    if not arguments.report:
        os.environ["OMP_NUM_THREADS"] = "1"
        bench = Bench(work=work, results=results, num_steps=arguments.steps, task=task)
        bench.run(trials, list(wanted(trials, arguments.lags, arguments.seeds)))
        if task is not None and HARD_LAG in arguments.lags:
            with_ratio = [trial for trial in trials if trial.has_ratio]
            bench.run(trials, list(wanted(with_ratio, RATIO_LAGS, arguments.seeds)))
        elif HARD_LAG in arguments.lags:
            bench.run(trials, further(trials, results, arguments.seeds))
    if task is None:
        report(results, path.with_suffix(".json"), arguments.picture)
    else:
        report_areas(task, results, path.with_suffix(".json"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", choices=["addition", *TASKS], default="addition")
    parser.add_argument("--only", nargs="+", choices=all_trials(), metavar="TRIAL")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--lags", nargs="+", type=int, default=[0, HARD_LAG])
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    parser.add_argument("--report", action="store_true", help="only write what there is")
    parser.add_argument("--work", type=Path, help="else build/algorithms, by task")
    parser.add_argument("--results", type=Path, help="else in benchmarks/results, by task")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/algorithms.png")
    return parser.parse_args()


def wanted(trials: Sequence[Trial], lags: Sequence[int], seeds: Sequence[int]) -> Iterator[Key]:
    """Seed by seed, so that a part of them is a table already; data knows no lag."""
    for seed in seeds:
        for lag in lags:
            for trial in trials:
                if lag in trial.lags(lags):
                    yield trial.name, lag, seed


def further(trials: Sequence[Trial], results: Results, seeds: Sequence[int]) -> list[Key]:
    """The other lags of those that do not learn at the hard one."""
    found = verdicts(results.runs.values())
    failed = [
        trial
        for trial in trials
        if (trial.name, HARD_LAG) in found and not found[trial.name, HARD_LAG].learns
    ]
    return list(wanted(failed, [lag for lag in LAGS if lag], seeds))


class Bench:
    """Runs the trials without a result."""

    def __init__(
        self, *, work: Path, results: Results, num_steps: int, task: BenchTask | None = None
    ) -> None:
        from benchmarks.gang import join_alone

        ranks = join_alone()
        from benchmarks.algorithms.data import DataTrainer
        from benchmarks.algorithms.job import TrialJob
        from benchmarks.algorithms.train import TrialTrainer

        job = TrialJob.prepared(work.resolve(), task)
        num_rows = NUM_ROWS if task is None else task.num_rows
        self._trainer = TrialTrainer(job=job, ranks=ranks, num_rows=num_rows)
        self._data_trainer = DataTrainer(job=job, ranks=ranks)
        self._results = results
        self._num_steps = num_steps

    def run(self, trials: Sequence[Trial], keys: Sequence[Key]) -> None:
        """Runs the keys that are missing, in their order."""
        from benchmarks.algorithms.start import make_start, make_teacher

        by_name = {trial.name: trial for trial in trials}
        missing = [key for key in keys if key not in self._results.runs]
        make_start(self._trainer)
        if any(by_name[name].has_teacher for name, _, _ in missing):
            make_teacher(self._trainer)
        for number, (name, lag, seed) in enumerate(missing, start=1):
            run = self._one(by_name[name], lag, seed)
            self._results.add(run)
            print(
                f"{number}/{len(missing)} {name}, lag {lag}, seed {seed}: {_told(run)}", flush=True
            )

    def _one(self, trial: Trial, lag: int, seed: int) -> TrialRun:
        if trial.is_on_data:
            return self._data_trainer.run(trial, seed=seed, num_steps=self._num_steps)
        return self._trainer.run(trial, seed=seed, lag=lag, num_steps=self._num_steps)


def _told(run: TrialRun) -> str:
    seconds = f"{run.seconds:.0f} s"
    if run.losses:
        return f"loss {run.losses[0]:.3f} -> {run.losses[run.num_steps]:.3f}, {seconds}"
    return f"accuracy {run.start:.3f} -> {run.end:.3f}, area {run.area:.3f}, {seconds}"
