"""Subsection `optimizer`, of `algorithm` and of `trainer.critic`."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.section import Section

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and the learning rate's way over the steps."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up."""
    lr_warmup_steps: int = Field(default=-1, ge=-1)
    """Steps from lr/steps up to lr; -1 leaves it to `lr_warmup_steps_ratio`."""
    lr_warmup_steps_ratio: Fraction = 0.0
    """Warm-up as a fraction of the stage's train steps."""
    min_lr_ratio: Fraction = 0.01
    """Learning rate of the last step over `lr`, for `cosine`."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """What the learning rate does after the warm-up."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
