"""What the runs of a task say: areas under held-out curves, their intervals, and equal curves.

A trial learns where its area is above the start by more than the interval over the seeds, which is
Student's at 95 %. Trials whose curves are the same in all bits are one line.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.algorithms.outcome import NUM_ROWS, TrialRun
from benchmarks.algorithms.results import Results
from benchmarks.algorithms.tasks import BenchTask

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""The 97.5 % quantile, by the number of seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveArea:
    """Of a trial at one lag, or of several whose curves are the same."""

    trials: tuple[str, ...]
    lag: int
    areas: tuple[float, ...]
    """By seed."""
    start: float

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.areas))

    @property
    def half_width(self) -> float | None:
        """Of the interval; None for a single seed, which has none."""
        if len(self.areas) < min(STUDENT):
            return None
        spread = float(np.std(self.areas, ddof=1))
        return STUDENT[len(self.areas)] * spread / float(np.sqrt(len(self.areas)))

    @property
    def learns(self) -> bool | None:
        """None where one seed cannot tell."""
        width = self.half_width
        return None if width is None else self.mean - width > self.start


def areas_of(runs: Sequence[TrialRun]) -> list[CurveArea]:
    """In the order of the runs; a trial joins the first one that has the same curves."""
    by_key: dict[tuple[str, int], list[TrialRun]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        by_key.setdefault((run.trial, run.lag), []).append(run)
    names: dict[tuple[object, ...], list[str]] = {}
    first: dict[tuple[object, ...], list[TrialRun]] = {}
    for (trial, lag), of_key in by_key.items():
        curves = (lag, *((run.seed, run.curve) for run in of_key))
        names.setdefault(curves, []).append(trial)
        first.setdefault(curves, of_key)
    return [
        CurveArea(
            trials=tuple(names[curves]),
            lag=of_key[0].lag,
            areas=tuple(round(run.area, 6) for run in of_key),
            start=of_key[0].start,
        )
        for curves, of_key in first.items()
    ]


def report_areas(task: BenchTask, results: Results, summary: Path) -> None:
    """Prints the table and writes the summary."""
    runs = list(results.runs.values())
    if not runs:
        return
    found = areas_of(runs)
    table = Table("trials", "lag", "seeds", f"area ({task.name})", "learns")
    for area in sorted(found, key=lambda area: (area.lag, -area.mean)):
        width = "" if area.half_width is None else f" ± {area.half_width:.3f}"
        word = {None: "one seed", True: "yes", False: "NO"}[area.learns]
        figure = f"{area.mean:.3f}{width}"
        names = " = ".join(area.trials)
        table.add_row(names, str(area.lag), str(len(area.areas)), figure, word)
    Console(width=110).print(table)
    record = {
        "task": task.what,
        "rule": " ".join((__doc__ or "").split("\n\n")[1].split()),
        "rows_of_a_step": NUM_ROWS,
        "updates_of_a_batch": task.num_passes,
        "steps": runs[0].num_steps,
        "start": runs[0].start,
        "processor_seconds": round(sum(run.seconds for run in runs)),
        "areas": [_as_json(area) for area in found],
    }
    summary.write_text(json.dumps(record, indent=1) + "\n")


def _as_json(area: CurveArea) -> Mapping[str, object]:
    return {**asdict(area), "mean": area.mean, "half_width": area.half_width, "learns": area.learns}
