"""Whether what is trained on is like what was generated: lengths, rewards, tasks."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Task = tuple[str, int]
Floats = npt.NDArray[np.float64]
CRITICAL = 1.628
"""Of the Kolmogorov-Smirnov test of two samples at a level of 1 %."""
MIN_TASKS = 10
TASK_CRITICAL = 3.0
"""Standard deviations: beyond them is less than 1 % of what chance gives from ten tasks on."""
PREFIX = "population"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """One sample as far as it is compared."""

    task: Task
    response_length: int
    reward: float | None
    num_uses: int
    """Rows of batches that it was, more than one with replay; 0 when it was left out."""
    state: str = ""
    reason: str = ""
    """Why it is not trained on."""

    @property
    def is_trained(self) -> bool:
        """Whether it was trained on at all."""
        return self.num_uses > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """All samples of some explore steps, and how often each of their tasks was to be run."""

    first_step: int
    last_step: int
    runs_of: Mapping[Task, int]
    samples: Sequence[Generated]

    @property
    def num_trained(self) -> int:
        """Samples that were trained on."""
        return sum(one.is_trained for one in self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """How far what was trained on is from what was generated: 0 is alike, 1 is apart.

    The distance is that of Kolmogorov and Smirnov; of tasks, which have no order, the total
    variation between what was to be run and what was trained on. A sample counts as often as it was
    trained on.
    """

    name: str
    generated_mean: float
    trained_mean: float
    distance: float
    is_significant: bool
    """Whether what was trained on and what was left out differ by more than chance at 1 %.

    Here each sample counts once: to train on it again is not to draw another one.
    """


def shifts(population: Population) -> list[Shift]:
    """Of each quantity that can be compared; none while nothing is trained."""
    samples = population.samples
    if not population.num_trained:
        return []
    uses = np.array([one.num_uses for one in samples], dtype=np.float64)
    lengths = np.array([one.response_length for one in samples], dtype=np.float64)
    rewards = np.array([math.nan if one.reward is None else one.reward for one in samples])
    known = np.isfinite(rewards)
    found = [_shift("response_length", lengths, uses)]
    if uses[known].any():
        found.append(_shift("reward", rewards[known], uses[known]))
    return [*found, _task_shift(population)]


def _shift(name: str, values: Floats, uses: Floats) -> Shift:
    trained, left_out = (uses > 0).astype(np.float64), (uses == 0).astype(np.float64)
    apart = _distance(values, trained, left_out)
    return Shift(
        name=name,
        generated_mean=float(values.mean()),
        trained_mean=float(np.average(values, weights=uses)),
        distance=_distance(values, uses, np.ones_like(uses)),
        is_significant=apart > _chance(trained.sum(), left_out.sum()),
    )


def _chance(num_first: float, num_second: float) -> float:
    """The distance that two samples of one distribution seldom reach."""
    if not num_first or not num_second:
        return math.inf
    return CRITICAL * math.sqrt((num_first + num_second) / (num_first * num_second))


def _distance(values: Floats, first: Floats, second: Floats) -> float:
    """The greatest difference of two distribution functions, each by how often it has a value."""
    if not first.any() or not second.any():
        return 0.0
    order = np.argsort(values)
    is_last = np.diff(values[order], append=math.inf) > 0  # among those that are the same
    up_to_first = np.cumsum(first[order])[is_last] / first.sum()
    up_to_second = np.cumsum(second[order])[is_last] / second.sum()
    return float(np.abs(up_to_first - up_to_second).max())


def _task_shift(population: Population) -> Shift:
    uses: Counter[Task] = Counter()
    for one in population.samples:
        uses[one.task] += one.num_uses
    num_runs, num_uses = sum(population.runs_of.values()), sum(uses.values())
    differences = (
        abs(runs / num_runs - uses[task] / num_uses) for task, runs in population.runs_of.items()
    )
    return Shift(
        name="task",
        generated_mean=math.nan,
        trained_mean=math.nan,
        distance=sum(differences) / 2,
        is_significant=_prefers_tasks(population),
    )


def _prefers_tasks(population: Population) -> bool:
    """Whether some tasks lost more of their runs than others, and not by chance.

    Pearson's statistic over tasks, held against its mean and variance where each run is trained on
    with the same chance; both are exact for binomial counts, however few runs a task has.
    """
    generated = Counter(one.task for one in population.samples)
    trained = Counter(one.task for one in population.samples if one.is_trained)
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


def population_figures(population: Population) -> dict[str, float]:
    """As they appear in monitors."""
    figures = {
        "num_generated": float(len(population.samples)),
        "num_trained": float(population.num_trained),
    }
    for shift in shifts(population):
        figures[f"{shift.name}/shift"] = shift.distance
        if math.isfinite(shift.generated_mean):
            figures[f"{shift.name}/generated"] = shift.generated_mean
            figures[f"{shift.name}/trained"] = shift.trained_mean
    return {f"{PREFIX}/{name}": value for name, value in figures.items()}
