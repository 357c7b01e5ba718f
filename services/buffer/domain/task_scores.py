"""Scores of tasks over versions of the weights, from drawings of tasks and scores of their runs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Task = tuple[str, int]
"""Name of the taskset and row in it."""


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
