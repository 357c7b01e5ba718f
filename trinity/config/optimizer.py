"""Subsection `optimizer`, of `algorithm` and of `trainer.critic`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trinity.config.section import Section
from trinity.config.status import Choices, Renamed

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and the learning rate's way over the steps."""

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
    """Learning rate of the last step over `lr`, for `cosine`."""
    lr_scheduler_type: Annotated[
        Literal["constant", "cosine"],
        Choices(
            planned={
                "linear": "a straight line down",
                "inverse-square-root": "Megatron's schedule",
                "WSD": "Megatron's schedule",
            }
        ),
    ] = "constant"
    """What the learning rate does after the warm-up."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay."""
    optimizer_type: Annotated[
        Literal["adam"],
        Choices(planned={"sgd": "plain gradient descent"}, aliases={"adamw": "adam"}),
    ] = "adam"
    """AdamW, by either name."""
