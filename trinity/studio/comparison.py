"""Comparison of several runs: their curves in one chart and the differences of their plans."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trinity.config.docs.resolved import dotted_leaves
from trinity.config.schema.base import format_value
from trinity.errors import UserError
from trinity.run.progress.view import failed_runs_text
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.studio.connection import OpenRun, experiment_of
from trinity.studio.curves import (
    GROUPS,
    WIDE_LABEL,
    curves_chart,
    measured_chart,
)
from trinity.studio.history import StageHistory

MAX_COMPARED = 4
"""Most runs at once: the services of each are open as long."""
ABSENT = "not in this plan"
MAX_DIFFERENCES = 500
MAX_VALUE_CHARS = 200
NAMES = frozenset({"name", "group"})
"""Keys that always differ, and that the labels show."""
MILLIS_AN_HOUR = 3_600_000


class Axis(StrEnum):
    """The meaning of the horizontal axis."""

    STEPS = "steps"
    HOURS = "hours since the stage began"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStage:
    """A stage of one of the runs, under a name that no other run has."""

    label: str
    history: StageHistory

    def points(self, curve: Mapping[int, float], axis: Axis) -> list[tuple[float, float]]:
        """Returns a curve over steps or hours; steps whose time is unknown have no hours."""
        if axis is Axis.STEPS:
            return sorted(curve.items())
        began, times = self.history.opened_millis, self.history.step_millis
        return [
            ((times[step] - began) / MILLIS_AN_HOUR, value)
            for step, value in sorted(curve.items())
            if step in times
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """The state of one run in numbers."""

    label: str
    step: int
    total_steps: int
    reward: float | None
    """The mean over the last ten steps."""
    hours: float | None
    best: str
    """The best evaluation of each taskset."""


def distinct_labels(labels: Sequence[str]) -> list[str]:
    """Returns the labels, those that come more than once with a number behind them."""
    counted = Counter(labels)
    seen: Counter[str] = Counter()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label} ({seen[label]})" if counted[label] > 1 else label)
    return found


def compared_charts(
    stages: Sequence[ComparedStage], axis: Axis
) -> Iterator[tuple[str, JsonObject]]:
    """Yields titles and charts: evaluations of each taskset first, then the curves of training."""
    yield from _evaluation_charts(stages)
    for group in GROUPS:
        curves = {
            stage.label: stage.points(
                next(filter(None, map(stage.history.curve, group.names)), {}), axis
            )
            for stage in stages
        }
        if any(curves.values()):
            x = "step" if axis is Axis.STEPS else "hours"
            yield group.title, curves_chart(curves, x=x, y=group.unit)


def _evaluation_charts(stages: Sequence[ComparedStage]) -> Iterator[tuple[str, JsonObject]]:
    metric = _headline(stage.history for stage in stages)
    tasksets = dict.fromkeys(name for stage in stages for name in stage.history.evaluations)
    for taskset in tasksets:
        measured = {stage.label: stage.history.measured(taskset, metric) for stage in stages}
        if any(measured.values()):
            yield (
                f"{taskset}: {metric}",
                measured_chart(measured, metric, names=list(measured), label_limit=WIDE_LABEL),
            )


def _headline(histories: Iterable[StageHistory]) -> str:
    """Returns `accuracy` where any of the runs measures it, else the reward."""
    return "accuracy" if any("accuracy" in known.scores for known in histories) else "reward"


def comparison_row(stage: ComparedStage) -> ComparisonRow:
    """Returns the numbers of one run."""
    history = stage.history
    lasted = history.last_millis - history.opened_millis
    metric, best = _headline([history]), []
    for taskset, versions in history.evaluations.items():
        if means := history.measured(taskset, metric):
            version, found = max(means.items(), key=lambda known: known[1].mean)
            failed = failed_runs_text(versions[version])
            best.append(f"{taskset} {found.mean:.3g} (v{version}{failed})")
    return ComparisonRow(
        label=stage.label,
        step=history.last_step,
        total_steps=history.total_steps,
        reward=history.recent("reward/mean"),
        hours=lasted / MILLIS_AN_HOUR if history.opened_millis else None,
        best=", ".join(best),
    )


async def plan_of(opened: OpenRun) -> JsonObject:
    """Returns the plan of an experiment.

    Raises: TrinityError.
    """
    answer = await experiment_of(opened.synchronizer, opened.experiment_id)
    return read_plan(answer.plan_json)


def read_plan(text: str) -> JsonObject:
    """Parses a plan.

    Raises: UserError if the text is not a plan.
    """
    try:
        plan = json.loads(text)
        stages = plan["stages"]
        if not all(isinstance(stage["config"], dict) for stage in stages):
            raise TypeError
    except (ValueError, TypeError, KeyError) as error:
        raise UserError("The plan of a run cannot be read: it is of another version.") from error
    return dict(plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key with its value in each run."""

    key: str
    values: tuple[str, ...]


def differences(plans: Sequence[JsonObject]) -> list[Difference]:
    """Returns the keys whose values are not the same in all plans, stage by stage.

    Stages are compared by their names, or as the only one of each plan. Secrets are hidden.
    """
    leaves = [_leaves_of_plan(plan) for plan in plans]
    keys = dict.fromkeys(key for own in leaves for key in own)
    return [
        Difference(key=key, values=tuple(_text(key, own) for own in leaves))
        for key in keys
        if len({json.dumps(own.get(key, ABSENT), sort_keys=True) for own in leaves}) > 1
    ]


def _text(key: str, leaves: Mapping[str, JsonValue]) -> str:
    return format_value(key, leaves[key], MAX_VALUE_CHARS) if key in leaves else ABSENT


def _leaves_of_plan(plan: JsonObject) -> dict[str, JsonValue]:
    stages = plan["stages"]
    assert isinstance(stages, list)
    found: dict[str, JsonValue] = {}
    for stage in stages:
        assert isinstance(stage, dict)
        config = stage["config"]
        assert isinstance(config, dict)
        shown = {name: value for name, value in config.items() if name not in NAMES}
        place = f"{stage.get('name', '')}: " if len(stages) > 1 else ""
        found |= {f"{place}{key}": value for key, value in dotted_leaves(shown)}
    return found
