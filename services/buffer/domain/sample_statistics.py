"""Statistics of samples: the shift between generated and trained ones, and scores of tasks."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Task = tuple[str, int]
"""Name of the taskset and row in it."""
Floats = npt.NDArray[np.float64]
CRITICAL = 1.628
"""Coefficient of the two-sample Kolmogorov-Smirnov test at the 1 % level."""
MIN_TASKS = 10
TASK_CRITICAL = 3.0
"""Standard deviations; from ten tasks on, chance exceeds them in less than 1 % of cases."""
PREFIX = "population"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDraw:
    """One drawing of a task."""

    assignment_id: str
    task: Task
    version: int
    num_runs: int


@dataclass(slots=True)
class VersionScore:
    """The runs of one task with one version."""

    num_runs: int = 0
    num_scored: int = 0
    num_passed: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        """The mean score; NaN where no run has one."""
        return self.total / self.num_scored if self.num_scored else math.nan


@dataclass(slots=True)
class TaskScores:
    """One task: its scores by version."""

    task: Task
    versions: dict[int, VersionScore] = field(default_factory=dict)


def task_scores(
    draws: Iterable[TaskDraw], run_scores: Mapping[str, Iterable[float]], pass_score: float
) -> list[TaskScores]:
    """Returns the scores of each task, by taskset and row; `run_scores` are by assignment."""
    found: dict[Task, dict[int, VersionScore]] = defaultdict(dict)
    for draw in draws:
        own = found[draw.task].setdefault(draw.version, VersionScore())
        own.num_runs += draw.num_runs
        for score in run_scores.get(draw.assignment_id, ()):
            if math.isfinite(score):
                own.num_scored += 1
                own.num_passed += score >= pass_score
                own.total += score
    return [
        TaskScores(task, {version: found[task][version] for version in sorted(found[task])})
        for task in sorted(found)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedSample:
    """The fields of one sample that are compared."""

    task: Task
    response_length: int
    reward: float | None
    num_uses: int
    """Number of batch rows it was used in, more than one with replay; 0 when it was left out."""
    state: str = ""
    reason: str = ""
    """The reason why it is not trained on."""

    @property
    def is_trained(self) -> bool:
        """True if it was trained on at least once."""
        return self.num_uses > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePopulation:
    """All samples of some explore steps, and the planned number of runs of each of their tasks."""

    first_step: int
    last_step: int
    runs_of: Mapping[Task, int]
    samples: Sequence[GeneratedSample]

    @property
    def num_trained(self) -> int:
        """Number of samples that were trained on."""
        return sum(sample.is_trained for sample in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionShift:
    """Distance between the trained and the generated distribution: 0 is equal, 1 is disjoint.

    It is the Kolmogorov-Smirnov distance; for tasks, which have no order, it is the total variation
    between planned runs and trained samples. A sample counts as often as it was trained on.
    """

    name: str
    generated_mean: float
    trained_mean: float
    distance: float
    is_significant: bool
    """True if trained and left-out samples differ by more than chance at the 1 % level.

    Here each sample counts once: training on it again is not another draw.
    """


def distribution_shifts(population: SamplePopulation) -> list[DistributionShift]:
    """Returns the shift of each comparable quantity; empty until a sample is trained."""
    samples = population.samples
    if not population.num_trained:
        return []
    uses = np.array([sample.num_uses for sample in samples], dtype=np.float64)
    lengths = np.array([sample.response_length for sample in samples], dtype=np.float64)
    rewards = np.array([math.nan if sample.reward is None else sample.reward for sample in samples])
    known = np.isfinite(rewards)
    found = [_shift("response_length", lengths, uses)]
    if uses[known].any():
        found.append(_shift("reward", rewards[known], uses[known]))
    return [*found, _task_shift(population)]


def _shift(name: str, values: Floats, uses: Floats) -> DistributionShift:
    trained, left_out = (uses > 0).astype(np.float64), (uses == 0).astype(np.float64)
    apart = _distance(values, trained, left_out)
    return DistributionShift(
        name=name,
        generated_mean=float(values.mean()),
        trained_mean=float(np.average(values, weights=uses)),
        distance=_distance(values, uses, np.ones_like(uses)),
        is_significant=apart > _chance(trained.sum(), left_out.sum()),
    )


def _chance(num_first: float, num_second: float) -> float:
    """Returns the distance that two samples of one distribution exceed in 1 % of cases."""
    if not num_first or not num_second:
        return math.inf
    return CRITICAL * math.sqrt((num_first + num_second) / (num_first * num_second))


def _distance(values: Floats, first: Floats, second: Floats) -> float:
    """Returns the greatest difference between two weighted empirical distribution functions."""
    if not first.any() or not second.any():
        return 0.0
    order = np.argsort(values)
    is_last = np.diff(values[order], append=math.inf) > 0  # the last of equal values
    up_to_first = np.cumsum(first[order])[is_last] / first.sum()
    up_to_second = np.cumsum(second[order])[is_last] / second.sum()
    return float(np.abs(up_to_first - up_to_second).max())


def _task_shift(population: SamplePopulation) -> DistributionShift:
    uses: Counter[Task] = Counter()
    for sample in population.samples:
        uses[sample.task] += sample.num_uses
    num_runs, num_uses = sum(population.runs_of.values()), sum(uses.values())
    differences = (
        abs(runs / num_runs - uses[task] / num_uses) for task, runs in population.runs_of.items()
    )
    return DistributionShift(
        name="task",
        generated_mean=math.nan,
        trained_mean=math.nan,
        distance=sum(differences) / 2,
        is_significant=_prefers_tasks(population),
    )


def _prefers_tasks(population: SamplePopulation) -> bool:
    """Returns whether some tasks lost more of their runs than others, beyond chance.

    Pearson's statistic over tasks, compared with its mean and variance under the hypothesis that
    every run is equally likely to be trained on. Both are exact for binomial counts, however few
    runs a task has.
    """
    generated = Counter(sample.task for sample in population.samples)
    trained = Counter(sample.task for sample in population.samples if sample.is_trained)
    runs = {task: max(runs, generated[task]) for task, runs in population.runs_of.items()}
    if len(runs) < MIN_TASKS:
        return False
    share = sum(trained.values()) / sum(runs.values())
    spread = share * (1 - share)
    if spread <= 0:
        return False
    statistic = sum(
        (trained[task] - number * share) ** 2 / (number * spread) for task, number in runs.items()
    )
    variance = sum(2 + (1 - 6 * spread) / (number * spread) for number in runs.values())
    return statistic - len(runs) > TASK_CRITICAL * math.sqrt(variance)


def population_metrics(population: SamplePopulation) -> dict[str, float]:
    """Returns the metrics as they appear in monitors."""
    figures = {
        "num_generated": float(len(population.samples)),
        "num_trained": float(population.num_trained),
    }
    for shift in distribution_shifts(population):
        figures[f"{shift.name}/shift"] = shift.distance
        if math.isfinite(shift.generated_mean):
            figures[f"{shift.name}/generated"] = shift.generated_mean
            figures[f"{shift.name}/trained"] = shift.trained_mean
    return {f"{PREFIX}/{name}": value for name, value in figures.items()}
