"""Section `algorithm`, with its optimizer."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from trinity.algorithm.rollout_correction.settings import PRESETS, CorrectionSettings, PresetName
from trinity.config.schema.base import (
    Args,
    Positive,
    Section,
    ValueAliases,
    default_section,
)
from trinity.config.schema.choices import AnnealStyle, ScheduleKind

Fraction = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]

LossAggMode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]
KlFn = Literal["none", "k1", "k2", "k3", "low_var_kl", "abs", "corrected_k3", "k1+", "k3+"]
EntropyLossFn = Literal["none", "default", "mix"]


class OptimizerConfig(Section):
    """The optimizer and the learning rate's schedule over the steps."""

    lr: float = Field(default=1e-6, gt=0)
    """Learning rate after the warm-up."""
    lr_warmup_steps: int = Field(default=-1, ge=-1)
    """Steps from lr/steps up to lr; -1 leaves it to `lr_warmup_steps_ratio`."""
    lr_warmup_steps_ratio: Fraction = 0.0
    """Warm-up as a fraction of the stage's train steps."""
    lr_warmup_init: float = Field(default=0.0, ge=0)
    """Learning rate that the warm-up goes up from, as Megatron's; its first step is one step on."""
    min_lr_ratio: Fraction = 0.01
    """Learning rate of the last step over `lr`; not used by `constant`."""
    lr_scheduler_type: Annotated[
        ScheduleKind, ValueAliases(aliases={"inverse_square_root": "inverse-square-root"})
    ] = "constant"
    """What the learning rate does after the warm-up: docs/algorithms.md."""
    lr_wsd_decay_steps: int = Field(default=-1, ge=-1)
    """Last train steps, in which `WSD` goes down; -1 is a tenth of the stage's."""
    lr_wsd_decay_style: AnnealStyle = "exponential"
    """How it goes down then."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of Adam's second moment; `sgd` has none."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled from the gradient, but with `sgd` a part of it."""
    optimizer_type: Annotated[Literal["adam", "sgd"], ValueAliases(aliases={"adamw": "adam"})] = (
        "adam"
    )
    """`adam`: AdamW; `sgd`: gradient descent without momentum."""


class RolloutCorrectionConfig(Section):
    """Factors and masks from the trainer's log-probabilities over the engine's; verl's names."""

    preset: Literal["none", PresetName] = "none"
    """A usual choice: docs/algorithms.md; the keys beside it are laid over its own."""
    rollout_is: Literal["none", "token", "sequence"] = "none"
    """Weigh each token by the ratio, its own or its sequence's; `none` weighs all alike."""
    rollout_is_threshold: float | str = 2.0
    """Largest weight; as `0.5_5.0`, weights outside of the two become 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Scale the weights to a mean of 1 in each batch."""
    rollout_rs: str = "none"
    """Leave tokens or sequences out: `token_k1`, `seq_mean_k3`..., several with commas."""
    rollout_rs_threshold: float | str | None = None
    """Bounds of what is kept, as `0.5_2.0` for k1, one number for k2 and k3; one each, or one."""
    rollout_token_veto_threshold: float | None = None
    """Leave out whole sequences with a token whose ratio is below it, such as 1e-4."""

    @property
    def settings(self) -> CorrectionSettings:
        """The preset's settings with the user's laid over them."""
        below = CorrectionSettings() if self.preset == "none" else PRESETS[self.preset].settings
        own = self.model_dump(exclude={"preset"}, exclude_unset=True)
        return replace(below, **own)


class DistillationConfig(Section):
    """A teacher in the trainer, to whose distribution at each token the loss draws the policy."""

    model_path: str = ""
    """Directory or hub name of a model with the policy's tokenizer; without one there is none."""
    divergence: Literal["reverse", "forward"] = "reverse"
    """`reverse` is KL(policy, teacher), which keeps to what the teacher would say; `forward` is
    KL(teacher, policy), which covers all that it would say."""
    coef: float = Field(default=1.0, gt=0)
    """Factor of the mean divergence in the loss."""
    top_k: int = Field(default=0, ge=0)
    """The teacher's likeliest words at each token, beside which all others count as one; 0 compares
    the whole vocabulary, at 4 bytes for each word of each token of a micro-batch."""


class AlgorithmConfig(Section):
    """The algorithm, its parts and the optimizer."""

    algorithm_type: str = "grpo"
    """`ppo`, `grpo`, `rloo`... (mode both), `sft`, `cpt`, `dpo` (train): docs/algorithms.md."""
    repeat_times: Positive | None = None
    """Rollouts of one task, the size of its group; else 1."""
    optimizer: OptimizerConfig = default_section(OptimizerConfig)
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
    kl_penalty_fn: str | None = None
    """Distance to the reference model that is taken off the rewards, token by token: `none`, `k1`,
    `k2`, `k3`, `low_var_kl`, `abs`, `corrected_k3`, `k1+`, `k3+`, or a class of your own."""
    kl_penalty_fn_args: Args = Field(default_factory=dict)
    """`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`."""
    kl_loss_fn: str | None = None
    """Distance to the reference model that is added to the loss, as above; `none` needs no
    reference."""
    kl_loss_fn_args: Args = Field(default_factory=dict)
    """`kl_coef`; with `adaptive: true` also `target_kl` and `horizon`."""
    entropy_loss_fn: str | None = None
    """`default` subtracts `entropy_coef` times the entropy from the loss, `mix` the rollouts';
    `none`, or one of your own."""
    entropy_loss_fn_args: Args = Field(default_factory=dict)
    """`entropy_coef`."""
    loss_agg_mode: LossAggMode | None = None
    """How the tokens' losses become one number; else as the algorithm has it."""
    loss_scale_factor: Positive | None = None
    """Divisor of `seq-mean-token-sum-norm`, the critic's too; else `model.max_response_tokens`."""
    reference_interval: int = Field(default=0, ge=0)
    """Train steps from one move of the reference model towards the policy to the next; 0 keeps it
    what the stage started from."""
    reference_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of itself that the reference keeps in a move, `w_ref = a w_ref + (1 - a) w`; 0 makes it
    the policy of that step."""
    distillation: DistillationConfig = default_section(DistillationConfig)
    """A teacher beside whatever else the loss is made of."""
    bypass_old_logprobs: bool = True
    """Ratios to the policy that made the tokens; else to the trainer's own before the step."""
    rollout_correction: RolloutCorrectionConfig = default_section(RolloutCorrectionConfig)
    """What makes up for rollouts of other weights, or of an engine that computes differently."""
    enable_router_replay: bool = False
    """Train each token of a mixture of experts with those that the engine chose for it, which are
    stored with the sample. vLLM tells them on GPUs."""
    router_aux_loss_coef: float = Field(default=0.0, ge=0)
    """Factor of the loss that keeps the experts of each layer equally busy, row by row."""
    router_z_loss_coef: float = Field(default=0.0, ge=0)
    """Factor of the loss that keeps the logits of gates of experts small, of each layer."""
