"""Section `algorithm`: what is optimised and how; parts left out are the algorithm's."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.section import Args, Positive, Section

LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
KlLossFn = Literal["none", "k1", "k2", "k3", "low_var_kl", "abs"]
EntropyLossFn = Literal["none", "default"]
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


class AlgorithmConfig(Section):
    """The algorithm, its parts and the optimizer."""

    algorithm_type: str = "grpo"
    """`grpo` (mode both) or `sft` (mode train)."""
    repeat_times: Positive = 1
    """Rollouts of one task, the size of its group; grpo compares them and needs 2 or more."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW and its schedule."""
    advantage_fn: str | None = None
    """`grpo`, or the dotted path of a function."""
    advantage_fn_args: Args = Field(default_factory=dict)
    """Arguments laid over the function's own."""
    policy_loss_fn: str | None = None
    """`ppo`, `sft`, or the dotted path of a function."""
    policy_loss_fn_args: Args = Field(default_factory=dict)
    """Arguments laid over the function's own: `clip_range`, `clip_range_low`, `clip_ratio_c`..."""
    kl_loss_fn: KlLossFn | None = None
    """Distance to the reference model that is added to the loss; `none` needs no reference."""
    kl_loss_fn_args: Args = Field(default_factory=dict)
    """`kl_coef`."""
    entropy_loss_fn: EntropyLossFn | None = None
    """`default` subtracts `entropy_coef` times the entropy from the loss."""
    entropy_loss_fn_args: Args = Field(default_factory=dict)
    """`entropy_coef`."""
    loss_agg_mode: LossAggMode | None = None
    """How the tokens' losses become one number."""
