"""Section `explorer`: rollout engines, workflow runners and when to evaluate."""

from typing import Literal

from pydantic import Field

from trinity.config.section import Args, NonNegative, PathSegment, Positive, Section


class RolloutModelConfig(Section):
    """The engine that rolls the policy out."""

    engine_type: Literal["vllm"] = "vllm"
    """Inference engine."""
    engine_num: Positive = 1
    """Engines of one explorer, each with its copy of the weights; more than 1 is refused so far."""
    tensor_parallel_size: Positive = 1
    """GPUs of one engine."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Part of a GPU's memory that an engine takes."""
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    """Type of the engine's weights."""
    enforce_eager: bool = False
    """No compiled graphs."""
    enable_prefix_caching: bool = True
    """Prompts that begin alike share their cache."""
    extra_engine_args: Args = Field(default_factory=dict)
    """Arguments passed to the engine as they are, such as `max_num_seqs`."""


class ExplorerConfig(Section):
    """Rollout and evaluation."""

    name: PathSegment = "explorer"
    """How logs and metrics call it."""
    runner_per_model: Positive = 8
    """Assignments that run at a time on one engine."""
    max_timeout: float = Field(default=1800.0, gt=0)
    """Seconds for one attempt at a run."""
    max_retry_times: NonNegative = 2
    """Further attempts at a run that failed."""
    rollout_model: RolloutModelConfig = RolloutModelConfig()
    """The engine."""
    eval_interval: Positive = 100
    """Explore steps between evaluations, a multiple of `synchronizer.sync_interval`."""
    eval_on_startup: bool = True
    """Evaluate the weights that the stage starts with."""
