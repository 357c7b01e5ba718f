"""Section `monitor`: where metrics go."""

from typing import Annotated, Literal

from pydantic import Field, field_serializer

from trinity.config.reasons import DERIVED, NO_RAY
from trinity.config.secret import is_secret
from trinity.config.section import Args, Section
from trinity.config.status import Choices


class MonitorConfig(Section):
    """Destination of the metrics."""

    monitor_type: Annotated[
        Literal["tensorboard", "wandb", "mlflow", "none"],
        Choices(planned={"swanlab": "SwanLab"}),
    ] = "tensorboard"
    """Where they go; `tensorboard`: files under `monitor/` in the run's directory."""
    monitor_args: Args = Field(default_factory=dict)
    """Of `wandb`: `base_url`, `api_key`; of `mlflow`: `uri`, `username`, `password`. Better in the
    variables that W&B and MLflow have for them."""
    detailed_stats: bool = False
    """Give of an evaluation's tasks the largest, the smallest and the deviation, too."""
    enable_ray_timeline: Annotated[bool, NO_RAY] = False
    """Write Ray's time line."""
    cache_dir: Annotated[str, DERIVED] = ""
    """Where the monitor keeps its files."""

    @field_serializer("monitor_args", when_used="json")
    def _without_secrets(self, arguments: Args) -> Args:
        """Leaves secrets out of JSON; only the process that read the file needs them."""
        return {name: value for name, value in arguments.items() if not is_secret(name)}
