"""Subsection `trainer.critic`: the value model of algorithms that have one."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from trinity.config.algorithm import LossAggMode
from trinity.config.optimizer import OptimizerConfig
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import Renamed


class CriticOptimizerConfig(OptimizerConfig):
    """The policy's keys; a critic usually learns faster."""

    old_names: ClassVar[Mapping[str, Renamed]] = {
        "warmup_style": Renamed("lr_scheduler_type"),
        "clip_grad": Renamed("/trainer.critic.grad_clip"),
    }

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after the warm-up."""


class CriticConfig(Section):
    """Training of the value model."""

    optimizer: CriticOptimizerConfig = usual(CriticOptimizerConfig)
    """Optimizer and schedule."""
    ppo_epochs: Positive = 1
    """Passes over each batch, every one a step of its optimizer on the whole of it."""
    cliprange_value: float = Field(default=0.5, gt=0)
    """How far a value may move from what it was before the step, unclipped."""
    enable_gradient_checkpointing: bool = False
    """Compute activations again in the backward pass."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How the tokens' losses become one number."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient."""
    param_offload: bool | None = None
    """Its weights and gradients; else as `trainer.param_offload`."""
    optimizer_offload: bool | None = None
    """Its optimizer; else as `trainer.optimizer_offload`."""
    override_config: Args = Field(default_factory=dict)
    """Laid over its model's config.json."""
    external_lib: str | None = None
    """Python module that is imported before it is loaded."""
