"""Metrics of an evaluation: means over tasks of the means over their runs."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from services.buffer.domain.several_runs import over_runs

LARGE = 1e150
"""Values beyond this are scaled first, because the squares of larger ones overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScore:
    """Values of one finished run; a run of several samples counts by their means."""

    assignment_id: str
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """A mean over tasks with its standard error, which is 0 for a single task."""

    name: str
    mean: float
    standard_error: float
    num_tasks: int
    of_runs: dict[str, float] = field(default_factory=dict)
    """Means over tasks of statistics over their runs, by a name such as `best@4`."""
    of_tasks: dict[str, float] = field(default_factory=dict)
    """`max`, `min` and `std` of the task means."""


def summarise(scores: Iterable[RunScore]) -> list[MetricSummary]:
    """Returns one summary per metric, by name; each task counts once however often it was run."""
    by_metric: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        for name, value in score.values.items():
            if np.isfinite(value):
                by_metric[name][score.assignment_id].append(value)
    return [_summary(name, tasks) for name, tasks in sorted(by_metric.items())]


def _summary(name: str, tasks: dict[str, list[float]]) -> MetricSummary:
    """Summarises one metric; huge values are divided by the largest so that squares stay finite."""
    largest = max(abs(value) for values in tasks.values() for value in values)
    if largest < LARGE:
        return _figures(name, list(tasks.values()))
    shares = [[value / largest for value in values] for values in tasks.values()]
    return _times(_figures(name, shares), largest)


def _figures(name: str, tasks: Sequence[Sequence[float]]) -> MetricSummary:
    means = np.array([np.mean(values) for values in tasks])
    num_tasks = len(means)
    error = float(np.std(means, ddof=1) / np.sqrt(num_tasks)) if num_tasks > 1 else 0.0
    return MetricSummary(
        name=name,
        mean=float(np.mean(means)),
        standard_error=error,
        num_tasks=num_tasks,
        of_runs=over_runs(tasks),
        of_tasks={"max": float(means.max()), "min": float(means.min()), "std": float(means.std())},
    )


def _times(summary: MetricSummary, largest: float) -> MetricSummary:
    def whole(share: float) -> float:
        limit = sys.float_info.max  # a rounded share may be a little more than 1
        return max(-limit, min(limit, share * largest))

    return replace(
        summary,
        mean=whole(summary.mean),
        standard_error=whole(summary.standard_error),
        of_runs={kind: whole(share) for kind, share in summary.of_runs.items()},
        of_tasks={kind: whole(share) for kind, share in summary.of_tasks.items()},
    )
