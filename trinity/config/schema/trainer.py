"""Section `trainer`, with its critic and the keys of Megatron, which is planned."""

from typing import Annotated, Literal

from pydantic import Field

from trinity.config.schema.algorithm import LossAggMode, OptimizerConfig
from trinity.config.schema.base import (
    OTHER_STRATEGIES,
    Args,
    NonNegative,
    Positive,
    Section,
    ValueAliases,
    default_section,
)


class MegatronConfig(Section):
    """Megatron's parallel sizes."""


CheckpointPart = Literal["model", "optimizer", "extra", "hf_model"]
WHOLE_STATE: tuple[CheckpointPart, ...] = ("model", "optimizer", "extra")


class CriticOptimizerConfig(OptimizerConfig):
    """The policy's keys; a critic usually learns faster."""

    lr: float = Field(default=1e-5, gt=0)
    """Learning rate after the warm-up."""


class CriticConfig(Section):
    """Training of the value model."""

    optimizer: CriticOptimizerConfig = default_section(CriticOptimizerConfig)
    """Optimizer and schedule."""
    ppo_epochs: Positive = 1
    """Passes over each batch, every one a step of its optimizer on the whole of it."""
    cliprange_value: float = Field(default=0.5, gt=0)
    """How far a value may move from what it was before the step, unclipped."""
    enable_gradient_checkpointing: bool | None = None
    """Compute activations again in the backward pass; else on with GPUs, off without."""
    max_token_len_per_gpu: Positive | None = None
    """Tokens of its micro-batches; else as `trainer.max_token_len_per_gpu`."""
    ppo_micro_batch_size_per_gpu: Positive | None = None
    """Rows of its micro-batches without `use_dynamic_bsz`; else as the policy's."""
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


class TrainerConfig(Section):
    """Training of the policy."""

    trainer_type: Annotated[
        Literal["verl"], ValueAliases(planned={"tinker": "the Tinker service"})
    ] = "verl"
    """Training back end."""
    trainer_strategy: Annotated[
        Literal["fsdp2"],
        ValueAliases(aliases={"fsdp": "fsdp2"}, replaced=OTHER_STRATEGIES),
    ] = "fsdp2"
    """How weights are sharded over ranks; FSDP2 stands in for the older FSDP, and for `megatron`,
    `veomni` and `torchtitan`."""
    fsdp_size: Annotated[int, Field(ge=-1)] = -1
    """Ranks that the weights are sharded over, with a copy in each group of them; -1 is all."""
    forward_prefetch: bool = False
    """Gather the next layer's weights while one computes."""
    override_config: Args = Field(default_factory=dict)
    """Laid over the model's config.json, by the trainer alone: actor and reference."""
    external_lib: str | None = None
    """Python module that is imported before a model is loaded, such as one that registers it."""
    save_interval: NonNegative = 0
    """Train steps between full checkpoints; 0 writes one, at the end."""
    save_contents: tuple[CheckpointPart, ...] = WHOLE_STATE
    """Parts of a checkpoint: `optimizer`, random states and the schedule (`extra`), and the weights
    for Hugging Face's libraries (`hf_model`). Weights to go on from, `model`, are always saved."""
    load_contents: tuple[CheckpointPart, ...] = WHOLE_STATE
    """Parts that a run goes on with, of those that were saved; what is left out starts fresh."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """`auto`: as `continue_from_checkpoint` says; `disable`: as if that were false;
    `resume_path`: a new run begins with the checkpoint in `resume_from_path`."""
    resume_from_path: str = ""
    """Folder of a former run's checkpoint: weights, and the optimizer's state where it has that."""
    total_steps: Positive | None = None
    """Train steps of the stage; with `buffer.total_steps` also given, the one that ends first."""
    ppo_epochs: Positive = 1
    """Passes over each batch, every one a step of the optimizer on the whole of it."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient."""
    use_dynamic_bsz: bool = True
    """Micro-batches by tokens; else of `ppo_micro_batch_size_per_gpu` rows."""
    ppo_micro_batch_size_per_gpu: Positive | None = None
    """Rows of a micro-batch, however long they are, without `use_dynamic_bsz`; else 1."""
    enable_gradient_checkpointing: bool | None = None
    """Compute activations again in the backward pass: less memory, about a third more time; else
    on with GPUs, off without."""
    use_fused_kernels: bool = False
    """The two keys that follow together: the documented remedy where logits take the memory."""
    entropy_from_logits_with_chunking: bool = False
    """Compute the model's head for some hundred tokens at a time: all logits never exist."""
    entropy_checkpointing: bool = False
    """Compute such a piece again in the backward pass, so that not even its results are kept."""
    freeze_vision_tower: bool = False
    """Keep the weights with which a vision model reads images, and train its language part."""
    use_remove_padding: bool = True
    """Rows lie one after the other without padding, for models that keep them apart."""
    use_prefix_grouper: bool | None = None
    """Compute a prompt once for all rows of a micro-batch that have it; else on without GPUs, off
    with GPUs."""
    max_token_len_per_gpu: Positive | None = None
    """Tokens of a micro-batch, on each of the ranks that share sequences; else twice the longest
    sequence, without GPUs 16384 at least."""
    log_prob_max_token_len_per_gpu: Positive | None = None
    """The same for passes without gradients, of actor and reference; else as for training."""
    log_prob_micro_batch_size_per_gpu: Positive | None = None
    """Rows of a micro-batch of such passes, without `use_dynamic_bsz`; else as for training."""
    max_checkpoints_to_keep: NonNegative = 0
    """Newest checkpoints that are kept; 0 keeps all."""
    keep_best: NonNegative = 1
    """Versions of the weights that are kept for being the best on `explorer.best_taskset`, the
    first of them as `stages/<stage>/best`; 0 keeps the newest alone."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Type the passes compute in; the losses of `float16` are scaled to keep small gradients."""
    rank_num: NonNegative = 0
    """Training processes; 0 is one per GPU that no stage rolls out on, or one without GPUs."""
    critic_warmup: NonNegative = 0
    """First train steps of the stage in which the critic alone learns."""
    critic: CriticConfig = default_section(CriticConfig)
    """The value model, for algorithms that have one."""
    enable_preview: bool = False
    """Send the monitor a table with samples of each evaluation: their texts leave the buffer."""
    recorded_token_share: float = Field(default=0.02, ge=0, le=1)
    """Share of a batch's rows of which the buffer keeps the trainer's log-probability and advantage
    of each token: 8 bytes a token, at most 1 MiB a step."""
    balance_batch: bool = True
    """Deal rows so that ranks get equal numbers of tokens; else equal numbers of neighbours."""
    ulysses_sequence_parallel_size: Positive = 1
    """Ranks that share each sequence, in actor, reference and critic: each has a part of its tokens
    and, for attention, a part of the heads. For sequences too long for one GPU."""
    param_offload: bool = False
    """Weights and gradients in the host's memory while they are not used."""
    optimizer_offload: bool = False
    """Optimizer in the host's memory but for its steps."""
    offload_policy: bool = False
    """FSDP2's own way: all three in the host's memory, layers on the device as they compute."""
    megatron: MegatronConfig = default_section(MegatronConfig)
    """Megatron's parallel sizes."""
    trainer_config: Args = Field(default_factory=dict)
    """verl's own keys: those with a counterpart here are used for it, others are reported."""
    trainer_config_path: str = ""
    """A YAML file of verl's keys, in place of `trainer_config`."""
