"""Section `monitor`: where metrics go."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.reasons import DERIVED, NO_RAY
from trinity.config.section import Args, Section
from trinity.config.status import Choices, NoEffect, Planned


class MonitorConfig(Section):
    """Where metrics go."""

    monitor_type: Annotated[
        Literal["tensorboard", "none"],
        Choices(
            planned={
                "wandb": "Weights & Biases",
                "mlflow": "MLflow",
                "swanlab": "SwanLab",
            }
        ),
    ] = "tensorboard"
    """Where they go; `tensorboard`: files under `monitor/` in the run's directory."""
    monitor_args: Annotated[
        Args, NoEffect("TensorBoard's files take no arguments, other monitors are planned")
    ] = Field(default_factory=dict)
    """Addresses, names and keys of the monitor."""
    detailed_stats: Annotated[bool, Planned("an evaluation gives mean, standard error and n")] = (
        False
    )
    """Give an evaluation's maximum, minimum and deviation too."""
    enable_ray_timeline: Annotated[bool, NO_RAY] = False
    """Write Ray's time line."""
    cache_dir: Annotated[str, DERIVED] = ""
    """Where the monitor keeps its files."""
