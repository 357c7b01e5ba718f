"""Section `trainer`: ranks, precision, micro-batches and checkpoints."""

from typing import Literal

from pydantic import Field

from trinity.config.critic import CriticConfig
from trinity.config.section import NonNegative, PathSegment, Positive, Section


class TrainerConfig(Section):
    """How the policy is trained."""

    name: PathSegment = "trainer"
    """How logs and metrics call it."""
    trainer_type: Literal["verl"] = "verl"
    """Training back end."""
    trainer_strategy: Literal["fsdp2"] = "fsdp2"
    """How weights are sharded over ranks."""
    save_interval: NonNegative = 0
    """Train steps between full checkpoints; 0 writes one, at the end."""
    total_steps: Positive | None = None
    """Train steps of the stage; with `buffer.total_steps` also given, whichever ends first."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of a gradient."""
    use_dynamic_bsz: bool = True
    """Micro-batches by tokens, not by rows."""
    use_remove_padding: bool = False
    """Packed forward passes; faster with flash attention, slower on a processor."""
    max_token_len_per_gpu: Positive | None = None
    """Tokens of a micro-batch; else twice the longest sequence, without GPUs 16384 at least."""
    max_checkpoints_to_keep: NonNegative = 0
    """Newest checkpoints that are kept; 0 keeps all."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type the passes compute in."""
    rank_num: NonNegative = 0
    """Training processes; 0 is one a GPU that rollout leaves, or one where there is none."""
    critic_warmup: NonNegative = 0
    """First train steps of the stage in which the critic alone learns."""
    critic: CriticConfig = CriticConfig()
    """The value model, for algorithms that have one."""
