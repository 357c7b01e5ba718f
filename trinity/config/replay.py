"""Subsection `replay_buffer` of an experience buffer: rows that are trained more than once."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.reasons import REPLAY_ONLY
from trinity.config.section import Args, Section
from trinity.config.status import Planned


def _decay() -> Args:
    return {"decay": 2.0}


class ReplayBufferConfig(Section):
    """Experiences in an order of their own, and more than once."""

    enable: Annotated[bool, Planned("experiences are trained in order, once")] = False
    """Order experiences by priority."""
    priority_fn: Annotated[Literal["linear_decay", "decay_limit_randomization"], REPLAY_ONLY] = (
        "linear_decay"
    )
    """What makes an experience come first."""
    priority_fn_args: Annotated[Args, REPLAY_ONLY] = Field(default_factory=_decay)
    """Its arguments."""
    reuse_cooldown_time: Annotated[float | None, REPLAY_ONLY] = None
    """Seconds until an experience may be trained again; none is never."""
