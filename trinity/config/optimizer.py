"""Subsection `optimizer`, of `algorithm` and of `trainer.critic`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trinity.config.learning_rate import AnnealStyle, ScheduleKind
from trinity.config.section import Section
from trinity.config.status import Choices, Renamed

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """The optimizer and the learning rate's schedule over the steps."""

    old_names: ClassVar[Mapping[str, Renamed]] = {
        "warmup_style": Renamed("lr_scheduler_type"),
        "clip_grad": Renamed("/trainer.grad_clip"),
    }

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up."""
    lr_warmup_steps: int = Field(default=-1, ge=-1)
    """Steps from lr/steps up to lr; -1 leaves it to `lr_warmup_steps_ratio`."""
    lr_warmup_steps_ratio: Fraction = 0.0
    """Warm-up as a fraction of the stage's train steps."""
    min_lr_ratio: Fraction = 0.01
    """Learning rate of the last step over `lr`; not used by `constant`."""
    lr_scheduler_type: Annotated[
        ScheduleKind, Choices(aliases={"inverse_square_root": "inverse-square-root"})
    ] = "constant"
    """What the learning rate does after the warm-up: docs/algorithms.md."""
    lr_wsd_decay_steps: int = Field(default=-1, ge=-1)
    """Last train steps, in which `WSD` goes down; -1 is a tenth of the stage's."""
    lr_wsd_decay_style: AnnealStyle = "exponential"
    """How it goes down then."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled from the gradient, but with `sgd` a part of it."""
    optimizer_type: Annotated[Literal["adam", "sgd"], Choices(aliases={"adamw": "adam"})] = "adam"
    """`adam`: AdamW; `sgd`: gradient descent without momentum."""
