"""The file of finished runs, one line of JSON each: those in it are not run again."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.algorithms.outcome import TrialRun
from trinity.errors import UserError

Key = tuple[str, int, int]
"""Trial, lag and seed."""


class Results:
    """Lines are only ever added.

    results = Results(path)
    if ("grpo", 0, 1) not in results.runs:
        results.add(run)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.runs: dict[Key, TrialRun] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            run = _run(line)
            self.runs[run.trial, run.lag, run.seed] = run

    def add(self, run: TrialRun) -> None:
        """Note a finished run.

        Raises: UserError where those before are of other weights, or of other lengths.
        """
        of_run = (run.start, run.num_steps)
        if any((run.start, run.num_steps) != of_run for run in self.runs.values()):
            raise UserError(
                f"{self._path} has runs that begin or end differently from {run.trial} at "
                f"{run.start:.3f}, {run.num_steps} steps: give another file with `--results`"
            )
        self.runs[run.trial, run.lag, run.seed] = run
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")


def _run(line: str) -> TrialRun:
    values = json.loads(line)
    for name in ("accuracies", "losses", "training_seconds"):
        values[name] = {int(step): value for step, value in values.get(name, {}).items()}
    return TrialRun(**values)
