"""Summaries of evaluation metrics, with statistics over several runs of a task."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt


def pass_at_k_metrics(tasks: Sequence[Sequence[float]]) -> dict[str, float]:
    """Returns means over tasks of `std@n`, and of `best@k` and `worst@k` for k = 2, 4, ... n.

    n is the most runs that a task has; the result is empty if n is 1. `best@k` is the mean over all
    draws of k runs, with replacement, of the best of them: the exact value of what Trinity-RFT
    estimates from 1000 draws.
    """
    num_runs = max((len(values) for values in tasks), default=0)
    if num_runs < 2:
        return {}
    found = {f"std@{num_runs}": _mean([float(np.std(values)) for values in tasks])}
    for k in _powers_of_two(num_runs):
        found[f"best@{k}"] = _mean([expected_best_of_k(k, values) for values in tasks])
        found[f"worst@{k}"] = _mean(
            [-expected_best_of_k(k, [-value for value in values]) for values in tasks]
        )
    return found


def expected_best_of_k(k: int, values: Sequence[float]) -> float:
    """Returns the expected maximum of k draws with replacement."""
    ranks: npt.NDArray[np.float64] = np.arange(len(values) + 1) / len(values)
    return float(np.dot(np.sort(values), np.diff(ranks**k)))


def _powers_of_two(most: int) -> Iterator[int]:
    """Yields the powers of two below `most`, and `most` itself."""
    k = 2
    while k < most:
        yield k
        k *= 2
    yield most


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SUMMARY_BYTES = 800
"""Usual bytes of a summary besides its name."""
MAX_SUMMARIES_BYTES = 1024 * 1024
"""Limit for all summaries of an evaluation: workflows may give each run other metrics."""
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


def metric_names(scores: Iterable[RunScore]) -> set[str]:
    """Returns the names of all metrics that have a value."""
    return {name for score in scores for name, value in score.values.items() if np.isfinite(value)}


def summarise(scores: Iterable[RunScore]) -> list[MetricSummary]:
    """Returns one summary per metric, by name; each task counts once however often it was run.

    Of very many metrics, the first that fit into `MAX_SUMMARIES_BYTES` are summarised.
    """
    by_metric: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        for name, value in score.values.items():
            if np.isfinite(value):
                by_metric[name][score.assignment_id].append(value)
    names = sorted(by_metric)
    ends = accumulate(len(name.encode(errors="replace")) + SUMMARY_BYTES for name in names)
    told = names[: sum(end <= MAX_SUMMARIES_BYTES for end in ends)]
    return [_summary(name, by_metric[name]) for name in told]


def _summary(name: str, tasks: dict[str, list[float]]) -> MetricSummary:
    """Summarises one metric; huge values are divided by the largest so that squares stay finite."""
    largest = max(abs(value) for values in tasks.values() for value in values)
    if largest < LARGE:
        return _unscaled_summary(name, list(tasks.values()))
    shares = [[value / largest for value in values] for values in tasks.values()]
    return _rescaled(_unscaled_summary(name, shares), largest)


def _unscaled_summary(name: str, tasks: Sequence[Sequence[float]]) -> MetricSummary:
    means = np.array([np.mean(values) for values in tasks])
    num_tasks = len(means)
    error = float(np.std(means, ddof=1) / np.sqrt(num_tasks)) if num_tasks > 1 else 0.0
    return MetricSummary(
        name=name,
        mean=float(np.mean(means)),
        standard_error=error,
        num_tasks=num_tasks,
        of_runs=pass_at_k_metrics(tasks),
        of_tasks={"max": float(means.max()), "min": float(means.min()), "std": float(means.std())},
    )


def _rescaled(summary: MetricSummary, largest: float) -> MetricSummary:
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
