"""The result of a run at a glance: its first, best and last evaluation, and its rewards."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from trinity.run.progress.summary import RunSummary
from trinity.run.progress.view import MeanWithError, failed_runs_text, shown_order
from trinity.studio.history import RunHistory

MAX_REWARDS = 200
"""Points of the curve of rewards; of more an even choice is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredVersion:
    """A version's score."""

    version: int
    mean: float
    standard_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Highlight:
    """The evaluations of a stage on its first taskset, in order of their versions."""

    stage: str
    score: str
    taskset: str
    evaluations: tuple[ScoredVersion, ...]
    rewards: tuple[tuple[int, float], ...]
    """Steps with the mean reward of their batches."""
    facts: tuple[tuple[str, str], ...] = ()
    failed: str = ""
    """Tells of runs that failed in the evaluation of the best version."""

    @property
    def best(self) -> ScoredVersion:
        """The first of the best versions."""
        return max(self.evaluations, key=lambda measured: measured.mean)

    @property
    def title(self) -> str:
        """The score of the best version."""
        return score_text(self.score, self.best.mean)

    @property
    def line(self) -> str:
        """The best version in one line of a table."""
        return f"{self.title} with version {self.best.version}"

    @property
    def claim(self) -> str:
        """The title in words."""
        last = self.evaluations[-1]
        after = ", the last"
        if last != self.best:
            after = f"; the last, {last.version}, has {score_text(self.score, last.mean)}"
        return (
            f"{self.score} on {self.taskset} with version {self.best.version}{after}{self.failed}"
        )

    @property
    def gain(self) -> str:
        """The score of the first version; empty if that is the best."""
        first = self.evaluations[0]
        return "" if first == self.best else score_text(self.score, first.mean)


def score_text(name: str, value: float) -> str:
    """Formats an accuracy in percent, other scores as numbers."""
    return f"{value:.1%}" if name == "accuracy" else f"{value:.3g}"


def of_summary(summary: RunSummary) -> Highlight | None:
    """Returns the result of a run that has ended; None without evaluations."""
    best = summary.best_evaluation
    stage = next((stage for stage in summary.stages if best and stage.name == best.stage), None)
    if best is None or stage is None:
        return None
    score = _score_of(best.metrics)
    measured = {
        done.version: done.metrics[score]
        for done in stage.evaluations
        if done.taskset == best.taskset and score in done.metrics
    }
    rewards = dict(enumerate(stage.rewards, 1))
    found = _highlight(stage.name, best.taskset, score, measured, rewards)
    facts = (
        ("train steps", f"{summary.steps:,}"),
        ("experiences", f"{summary.experiences:,}"),
        ("tokens", f"{summary.tokens:,}"),
    )
    return replace(found, facts=facts, failed=failed_runs_text(best)) if found else None


def of_history(history: RunHistory) -> Highlight | None:
    """Returns the result so far of a run whose events are followed."""
    for stage in reversed(history.stages.values()):
        for taskset, versions in stage.evaluations.items():
            score = _score_of(max(versions.items())[1].metrics)
            measured = stage.measured(taskset, score)
            rewards = stage.curve("reward/mean")
            if found := _highlight(stage.name, taskset, score, measured, rewards):
                total = f" of {stage.total_steps:,}" if stage.total_steps else ""
                return replace(found, facts=(("train steps", f"{stage.last_step:,}{total}"),))
    return None


def _score_of(names: Iterable[str]) -> str:
    return next(iter(shown_order(names)), "")


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _highlight(
    stage: str,
    taskset: str,
    score: str,
    measured: Mapping[int, MeanWithError],
    rewards: dict[int, float],
) -> Highlight | None:
    evaluations = tuple(
        ScoredVersion(
            version=version, mean=found.mean, standard_error=_finite(found.standard_error)
        )
        for version, found in sorted(measured.items())
        if math.isfinite(found.mean)
    )
    if not evaluations:
        return None
    points = [(step, reward) for step, reward in sorted(rewards.items()) if math.isfinite(reward)]
    return Highlight(
        stage=stage,
        score=score,
        taskset=taskset,
        evaluations=evaluations,
        rewards=tuple(points[:: max(1, -(-len(points) // MAX_REWARDS))]),
    )
