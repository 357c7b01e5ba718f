"""Events, names and settings as monitors get them."""

from pathlib import Path

from tests.unit.progress.builders import whole_run
from trinity.api.v1 import buffer_pb2
from trinity.run.monitors.monitor import MonitorContext, MonitorRunNames
from trinity.run.monitors.points import MetricPoint, MonitorRun, PointBuilder
from trinity.types import JsonValue

EXPERIMENT = "5f0c8a1e-0000-4000-8000-000000000001"
SECRET = "nobody-may-see-this-key"
TRAINER = MonitorRun(stage="rft", role="trainer")
EXPLORER = MonitorRun(stage="rft", role="explorer")
RUNS_OF_TASK = {("rft", "held_out"): 4}


def names(experiment_id: str = EXPERIMENT, *, has_stages: bool = True) -> MonitorRunNames:
    return MonitorRunNames(
        project="sums",
        group="first",
        name="first",
        experiment_id=experiment_id,
        has_stages=has_stages,
    )


def setting(directory: Path, experiment_id: str = EXPERIMENT, **arguments: str) -> MonitorContext:
    shown: dict[str, JsonValue] = {"seed": 7, "api_key": SECRET, "model": {"path": "/m"}}
    return MonitorContext(
        directory=directory,
        names=names(experiment_id),
        arguments=dict(arguments),
        configuration={"rft": shown, "sft": shown},
    )


def points_of(
    events: list[buffer_pb2.ProgressEvent], *, is_detailed: bool = False
) -> list[MetricPoint]:
    points = PointBuilder(RUNS_OF_TASK, is_detailed=is_detailed)
    return [point for event in events for point in points.points_of_event(event).points]


def whole_points() -> list[MetricPoint]:
    return points_of(whole_run())
