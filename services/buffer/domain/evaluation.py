"""Summaries of evaluation metrics, with statistics over several runs of a task."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

SCORES = frozenset({"accuracy", "reward"})
"""Metrics that judge an answer, in which a failed run has 0; other metrics may count anything."""
PASSING = 1.0
"""A run passes with this score or more."""
SUMMARY_BYTES = 1000
"""Usual bytes of a summary besides its name."""
MAX_SUMMARIES_BYTES = 1024 * 1024
"""Limit for all summaries of an evaluation: workflows may give each run other metrics."""
LARGE = 1e150
"""Values beyond this are scaled first, because the squares of larger ones overflow."""


def statistics_of_runs(tasks: Sequence[Sequence[float]], num_runs: int) -> dict[str, float]:
    """Returns means over tasks of `std@n`, and of `best@k` and `worst@k` for k = 2, 4, ... n.

    n is the number of runs that a task is to have; the result is empty if that is 1. `best@k` is
    the mean over all draws of k runs, with replacement, of the best of them: the exact value of
    what Trinity-RFT estimates from 1000 draws.
    """
    if num_runs < 2:
        return {}
    found = {f"std@{num_runs}": _mean([float(np.std(values)) for values in tasks])}
    for k in _powers_of_two(num_runs):
        found[f"best@{k}"] = _mean([expected_best_of_k(k, values) for values in tasks])
        found[f"worst@{k}"] = _mean(
            [-expected_best_of_k(k, [-value for value in values]) for values in tasks]
        )
    return found


def pass_at_k_metrics(tasks: Sequence[Sequence[float]], num_runs: int) -> dict[str, float]:
    """Returns means over tasks of `pass@k` for k = 1, 2, 4, ... n, n as in `statistics_of_runs`.

    Tasks with fewer than k runs have no `pass@k`. The result is empty if a value is above 1: such
    scores do not tell correct answers from wrong ones.
    """
    if num_runs < 2 or any(value > PASSING for values in tasks for value in values):
        return {}
    counts = [(len(values), sum(value >= PASSING for value in values)) for values in tasks]
    found = {}
    for k in (1, *_powers_of_two(num_runs)):
        if chances := [pass_at_k(n, passed, k) for n, passed in counts if n >= k]:
            found[f"pass@{k}"] = _mean(chances)
    return found


def pass_at_k(n: int, num_passed: int, k: int) -> float:
    """Returns the chance that one of k runs, drawn without replacement from n, has passed.

    It is 1 - C(n - c, k) / C(n, k), as a product (Chen et al., arXiv 2107.03374, section 2.1).
    """
    return float(1 - np.prod(np.maximum(1 - k / np.arange(n - num_passed + 1, n + 1), 0.0)))


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
    """Means over tasks of statistics over their runs, by a name such as `best@4` or `pass@4`."""
    of_tasks: dict[str, float] = field(default_factory=dict)
    """`max`, `min` and `std` of the task means."""


def with_failed_runs(scores: Sequence[RunScore], failed: Mapping[str, int]) -> list[RunScore]:
    """Adds the failed runs, by their assignment, with 0 in every score that others have."""
    names = SCORES & metric_names(scores) if scores else {"reward"}
    zeros = dict.fromkeys(names, 0.0)
    lost = [RunScore(assignment_id=own, values=zeros) for own in failed for _ in range(failed[own])]
    return [*scores, *lost]


def metric_names(scores: Iterable[RunScore]) -> set[str]:
    """Returns the names of all metrics that have a value."""
    return {name for score in scores for name, value in score.values.items() if np.isfinite(value)}


def summarise(scores: Iterable[RunScore], num_runs: int) -> list[MetricSummary]:
    """Returns one summary per metric, by name; each task counts once however often it was run.

    `num_runs` is the number of runs that a task is to have.

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
    return [_summary(name, list(by_metric[name].values()), num_runs) for name in told]


def _summary(name: str, tasks: Sequence[Sequence[float]], num_runs: int) -> MetricSummary:
    """Summarises one metric; huge values are divided by the largest so that squares stay finite."""
    largest = max(abs(value) for values in tasks for value in values)
    if largest < LARGE:
        found = _unscaled_summary(name, tasks, num_runs)
    else:
        shares = [[value / largest for value in values] for values in tasks]
        found = _rescaled(_unscaled_summary(name, shares, num_runs), largest)
    if name not in SCORES:
        return found
    return replace(found, of_runs={**found.of_runs, **pass_at_k_metrics(tasks, num_runs)})


def _unscaled_summary(name: str, tasks: Sequence[Sequence[float]], num_runs: int) -> MetricSummary:
    means = np.array([np.mean(values) for values in tasks])
    num_tasks = len(means)
    error = float(np.std(means, ddof=1) / np.sqrt(num_tasks)) if num_tasks > 1 else 0.0
    return MetricSummary(
        name=name,
        mean=float(np.mean(means)),
        standard_error=error,
        num_tasks=num_tasks,
        of_runs=statistics_of_runs(tasks, num_runs),
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
