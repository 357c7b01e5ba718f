"""Section `algorithm`: what is optimised and how; parts left out are the algorithm's."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.optimizer import OptimizerConfig
from trinity.config.rollout_correction import RolloutCorrectionConfig
from trinity.config.section import Args, Positive, Section, usual
from trinity.config.status import Planned

LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
KlFn = Literal["none", "k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3", "k1+", "k3+"]
EntropyLossFn = Literal["none", "default", "mix"]


class AlgorithmConfig(Section):
    """The algorithm, its parts and the optimizer."""

    algorithm_type: str = "grpo"
    """`ppo`, `grpo`, `rloo`... (mode both), `sft`, `cpt`, `dpo` (train): docs/algorithms.md."""
    repeat_times: Positive | None = None
    """Rollouts of one task, the size of its group; else what the algorithm usually has."""
    optimizer: OptimizerConfig = usual(OptimizerConfig)
    """AdamW and its schedule."""
    sample_strategy: str | None = None
    """Which rows a batch is made of: `default`, `staleness_control`, `mix`."""
    sample_strategy_args: Args = Field(default_factory=dict)
    """Arguments laid over the strategy's own, as `max_staleness` of `staleness_control` and of
    `mix`."""
    advantage_fn: str | None = None
    """By name, or the dotted path of a function of your own."""
    advantage_fn_args: Args = Field(default_factory=dict)
    """Arguments laid over the function's own."""
    policy_loss_fn: str | None = None
    """By name, or the dotted path of a function of your own."""
    policy_loss_fn_args: Args = Field(default_factory=dict)
    """Arguments laid over the function's own: `clip_range`, `clip_range_low`, `clip_ratio_c`..."""
    kl_penalty_fn: KlFn | None = None
    """Distance to the reference model that is taken off the rewards, token by token."""
    kl_penalty_fn_args: Args = Field(default_factory=dict)
    """`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`."""
    kl_loss_fn: KlFn | None = None
    """Distance to the reference model that is added to the loss; `none` needs no reference."""
    kl_loss_fn_args: Args = Field(default_factory=dict)
    """`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`."""
    entropy_loss_fn: EntropyLossFn | None = None
    """`default` subtracts `entropy_coef` times the entropy from the loss, `mix` the rollouts'."""
    entropy_loss_fn_args: Args = Field(default_factory=dict)
    """`entropy_coef`."""
    loss_agg_mode: LossAggMode | None = None
    """How the tokens' losses become one number; else as the algorithm has it."""
    bypass_old_logprobs: bool = True
    """Ratios to the policy that made the tokens; else to the trainer's own before the step."""
    rollout_correction: RolloutCorrectionConfig = usual(RolloutCorrectionConfig)
    """What makes up for rollouts of other weights, or of an engine that computes differently."""
    enable_router_replay: Annotated[
        bool, Planned("the trainer routes the tokens of a mixture of experts by itself")
    ] = False
    """Train each token with the experts that the engine chose for it."""
    add_strategy: Annotated[
        str | None, Planned("`data_processor.experience_pipeline.operators` have its place")
    ] = None
    """How experiences were shaped before they were stored, in old releases."""
    add_strategy_args: Annotated[
        Args, Planned("`data_processor.experience_pipeline.operators` have its place")
    ] = Field(default_factory=dict)
    """Its arguments."""
