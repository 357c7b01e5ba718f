"""Section `monitor`: where metrics go."""

from typing import Literal

from trinity.config.section import Section


class MonitorConfig(Section):
    """Where metrics go."""

    monitor_type: Literal["tensorboard", "none"] = "tensorboard"
    """Files under `monitor/` in the run's directory, or nowhere."""
