"""Subsection `replay_buffer` of an experience buffer: rows that are trained more than once."""

from typing import Literal

from pydantic import Field

from trinity.config.section import Args, Section


def _decay() -> Args:
    return {"decay": 2.0}


class ReplayBufferConfig(Section):
    """Experiences trained by priority, and more than once."""

    enable: bool = False
    """Order experiences by priority; with `reuse_cooldown_time` they are trained more than once."""
    priority_fn: str = "linear_decay"
    """Priority of an experience: `linear_decay`, `decay_limit_randomization`, the name
    of a function from a plugin folder, or a dotted path."""
    priority_fn_args: Args = Field(default_factory=_decay)
    """Its arguments."""
    reuse_cooldown_time: float | None = Field(default=None, ge=0)
    """Train steps until an experience may be trained again, rounded up, at least the next one; None
    is never. Batches fill up with such rows beyond those of one explore step."""
    when_full: Literal["train", "drop"] = "train"
    """What becomes of rows never trained when more of them wait than `capacity`: `train` takes them
    before any other, `drop` leaves the last in order out, and counts them."""
