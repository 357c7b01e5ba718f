"""The data of monitors: metrics of one role at one step, made from progress events."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from trinity.api.v1 import buffer_pb2
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.monitors.preview import SampleTable

Role = Literal["explorer", "trainer"]
ROLES: tuple[Role, ...] = ("explorer", "trainer")
Metrics = dict[str, float]
RunsOfTask = Mapping[tuple[str, str], int]
"""Number of runs of each evaluation task, by stage and taskset."""

BATCH_NAMES = {
    "num_groups": "rollout/finished_task_count",
    "sample/model_version/max": "rollout/model_version",
    "group/reward_std": "experience_pipeline/group_advantages/reward_std/mean",
}
"""Names of a batch's metrics in the explorer's run, if not `rollout/<name>`."""
SAMPLED = "sample/"
"""Prefix of metrics about the trainer's input; they belong to its run."""
LENGTHS = "response_length/"
"""Prefix of metrics that the trainer reports itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorRun:
    """One run in a monitor: one role in one stage."""

    stage: str
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricPoint:
    """Metrics of a series at a step; `event` orders them and tells which were written before."""

    series: MonitorRun
    event: int
    unix_millis: int
    step: int
    figures: Metrics
    table: SampleTable | None = None
    """Samples to show with the metrics."""


@dataclass(frozen=True, slots=True)
class EventPoints:
    """The points of the events up to `event`."""

    event: int
    points: tuple[MetricPoint, ...]


class PointBuilder:
    """Converts events, given in order from the first one on, to points.

    A step that is trained again after a crash is reported again; its metrics are taken once.
    Readers that start over make the same points, so a monitor may skip those it has.

        points = PointBuilder(runs_of_task(plan))
        for event in events:
            monitor.write_points(points.points_of_event(event).points)
    """

    def __init__(self, runs_of_task: RunsOfTask, *, is_detailed: bool = False) -> None:
        self._runs_of_task = runs_of_task
        self._is_detailed = is_detailed
        self._seen: set[tuple[str, str, int]] = set()

    def points_of_event(self, event: buffer_pb2.ProgressEvent) -> EventPoints:
        """Returns the metrics of an event, without those that were reported before."""
        match event.WhichOneof("event"):
            case "batch":
                points = self._batch(event)
            case "step":
                points = self._step(event)
            case "evaluation":
                points = self._evaluation(event)
            case _:
                points = ()
        return EventPoints(event.number, tuple(point for point in points if point.figures))

    def _batch(self, event: buffer_pb2.ProgressEvent) -> Iterable[MetricPoint]:
        batch = event.batch
        if not self._is_new(event, "batch", batch.step):
            return ()
        metrics = dict(batch.metrics)
        sampled = {name: value for name, value in metrics.items() if name.startswith(SAMPLED)}
        if "num_groups" in metrics:
            sampled["sample/task_count"] = metrics["num_groups"]
        explored = {"experience_pipeline/experience_count": float(batch.num_rows)}
        explored |= _explored(metrics)
        return (
            _point(event, "explorer", batch.step, explored),
            _point(event, "trainer", batch.step, sampled),
        )

    def _step(self, event: buffer_pb2.ProgressEvent) -> Iterable[MetricPoint]:
        if not self._is_new(event, "step", event.step.step):
            return ()
        return (_point(event, "trainer", event.step.step, dict(event.step.metrics)),)

    def _evaluation(self, event: buffer_pb2.ProgressEvent) -> Iterable[MetricPoint]:
        done = event.evaluation
        if not self._is_new(event, f"evaluation of {done.taskset}", done.version):
            return ()
        runs = self._runs_of_task.get((event.stage, done.taskset), 1)
        place = f"eval/{done.taskset}"
        figures = {
            f"{place}/finished_task_count": float(done.num_tasks),
            f"{place}/failed_run_count": float(done.num_failed),
            self._time_name(event): done.duration_seconds,
        }
        for metric in done.metrics:
            mean = f"{place}/{metric.name}/mean@{runs}"
            figures[mean] = metric.mean
            if self._is_detailed:
                figures |= {f"{mean}/{kind}": value for kind, value in metric.of_tasks.items()}
            for kind, value in metric.of_runs.items():
                figures[f"{place}/{metric.name}/{kind}"] = value
        return (_point(event, "explorer", done.version, figures),)

    def _time_name(self, event: buffer_pb2.ProgressEvent) -> str:
        """Returns the duration's name; evaluations of a version on several tasksets end apart."""
        tasksets = {taskset for stage, taskset in self._runs_of_task if stage == event.stage}
        return f"time/eval/{event.evaluation.taskset}" if len(tasksets) > 1 else "time/eval"

    def _is_new(self, event: buffer_pb2.ProgressEvent, kind: str, step: int) -> bool:
        key = (event.stage, kind, step)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new


def with_table(reading: EventPoints, table: SampleTable | None) -> EventPoints:
    """Adds the table of an evaluation to its point, if it has one."""
    if table is None:
        return reading
    return replace(reading, points=tuple(replace(point, table=table) for point in reading.points))


def runs_of_task(plan: ExperimentPlan) -> RunsOfTask:
    """Returns the runs per task of a plan's evaluations."""
    return {
        (stage.name, taskset.name): taskset.repeat_times
        for stage in plan.stages
        for taskset in stage.eval_tasksets
    }


def by_series(points: Sequence[MetricPoint]) -> Iterator[tuple[MonitorRun, list[MetricPoint]]]:
    """Yields the points of each series, in their order."""
    ordered = sorted(points, key=lambda point: (point.series.stage, point.series.role))
    for series, found in groupby(ordered, key=lambda point: point.series):
        yield series, list(found)


def _explored(metrics: Mapping[str, float]) -> Metrics:
    """Renames a batch's metrics for the explorer's run."""
    shown = {}
    for name, value in metrics.items():
        if name in BATCH_NAMES:
            shown[BATCH_NAMES[name]] = value
        elif name.startswith("reward/"):
            shown[f"rollout/{name}"] = value
        elif not name.startswith((SAMPLED, LENGTHS)):
            shown[name] = value
    return shown


def _point(event: buffer_pb2.ProgressEvent, role: Role, step: int, figures: Metrics) -> MetricPoint:
    return MetricPoint(
        series=MonitorRun(stage=event.stage, role=role),
        event=event.number,
        unix_millis=event.unix_millis,
        step=step,
        figures={name: value for name, value in figures.items() if math.isfinite(value)},
    )
