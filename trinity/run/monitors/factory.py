"""Creates the monitor of an experiment."""

from collections.abc import Callable
from pathlib import Path

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.monitors.mlflow import MlflowMonitor
from trinity.run.monitors.monitor import Monitor, MonitorContext, MonitorRunNames
from trinity.run.monitors.tensorboard import TensorBoardMonitor
from trinity.run.monitors.wandb import WandbMonitor

MONITOR_FOLDER = "monitor"
MONITORS: dict[str, Callable[[MonitorContext], Monitor]] = {
    "tensorboard": TensorBoardMonitor,
    "wandb": WandbMonitor,
    "mlflow": MlflowMonitor,
}
"""Factories by `monitor.monitor_type`, except `none`."""


def make_monitor(plan: ExperimentPlan, experiment_id: str, directory: Path) -> Monitor | None:
    """Creates the monitor of the first stage's configuration, for the whole experiment.

    The monitor's own files are in `directory`.
    """
    config = plan.stages[0].config.monitor
    make = MONITORS.get(config.monitor_type)
    if make is None:
        return None
    setting = MonitorContext(
        directory=directory,
        names=MonitorRunNames.from_plan(plan, experiment_id),
        arguments=config.monitor_args,
        configuration={stage.name: stage.config.model_dump(mode="json") for stage in plan.stages},
    )
    return make(setting)
