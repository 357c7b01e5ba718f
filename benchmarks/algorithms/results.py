"""The file of finished runs, one line of JSON each: what is in it need not be done again."""

import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.algorithms.outcome import Run

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
        self.runs: dict[Key, Run] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            run = _run(line)
            self.runs[run.trial, run.lag, run.seed] = run

    def add(self, run: Run) -> None:
        """Note a finished run."""
        self.runs[run.trial, run.lag, run.seed] = run
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")


def _run(line: str) -> Run:
    values = json.loads(line)
    for name in ("accuracies", "losses"):
        values[name] = {int(step): value for step, value in values[name].items()}
    return Run(**values)
