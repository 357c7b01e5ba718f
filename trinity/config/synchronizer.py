"""Section `synchronizer`: when and how new weights reach the explorer."""

from typing import Literal

from pydantic import Field

from trinity.config.section import NonNegative, Positive, Section


class SynchronizerConfig(Section):
    """The travel of weights from trainer to explorer."""

    sync_method: Literal["checkpoint"] = "checkpoint"
    """Through files, whose hashes the explorer verifies."""
    sync_style: Literal["fixed"] = "fixed"
    """Which steps need which weights is fixed by the two numbers below."""
    sync_interval: Positive = 1
    """Train steps between two versions."""
    sync_offset: NonNegative = 0
    """Explore steps the explorer may be ahead of the trainer; 0 with interval 1 is on-policy."""
    sync_timeout: float = Field(default=3600.0, gt=0)
    """Seconds that either side waits for the other."""
