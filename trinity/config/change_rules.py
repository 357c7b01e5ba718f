"""Keys by what becomes of a run that goes on with another value: free, another experiment, or no.

Numbers that say which rows belong to which step cannot change, since counters go on from step 1.
The table of `docs/configuration.md` is made from `RULES`; each key of the schema is found there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Literal

NAME = ".<name>"
"""Stands for a name of the user's own in the documentation."""
_PLACE = re.compile(r"\[\d*\]|\.<name>")
BUFFERS = re.compile(r"(auxiliary_buffers)\.[^.]+")
NEW_RUN = (
    "give the experiment another `name`, with `trainer.resume_mode: resume_path` to begin with a "
    "checkpoint of this one"
)
"""The way on where a run cannot."""
_NAMES = "give the experiment another `name`"
_TASKSET = "buffer.explorer_input"
_ROWS = "buffer.trainer_input.experience_buffer"
_AUXILIARY = "buffer.trainer_input.auxiliary_buffers"
_ENGINE = "explorer.rollout_model"
_JUDGE = "explorer.auxiliary_models"
ENGINE_ARGUMENTS = "extra_engine_args"
_SPEED_ARGUMENTS = (
    "async_scheduling",
    "attention_backend",
    "block_size",
    "compilation_config",
    "cpu_offload_gb",
    "cudagraph_capture_sizes",
    "disable_cascade_attn",
    "disable_custom_all_reduce",
    "disable_log_stats",
    "distributed_executor_backend",
    "enable_chunked_prefill",
    "enable_sleep_mode",
    "kv_cache_memory_bytes",
    "long_prefill_token_threshold",
    "max_cudagraph_capture_size",
    "max_num_batched_tokens",
    "max_num_scheduled_tokens",
    "max_num_seqs",
    "max_parallel_loading_workers",
    "num_gpu_blocks_override",
    "scheduling_policy",
    "use_tqdm_on_load",
)
"""Arguments of vLLM that decide on memory and speed alone; another one may change what is said."""


class ChangeKind(StrEnum):
    """Kinds of changed keys, by the run that goes on with them."""

    FREE = "free"
    EXPERIMENT = "changes the experiment"
    IMPOSSIBLE = "impossible"


HoldsFrom = Literal["training", "rollout"]
"""`training`: from the checkpoint that a trainer goes on from; `rollout`: from the first batch that
is not recorded yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRule:
    """A rule for a run in which one of these keys, or one below them, has another value."""

    kind: ChangeKind
    keys: tuple[str, ...]
    why: str
    instead: str = ""
    """The way on, where the change is impossible."""
    rounds: bool = False
    """True where a free change may round differently, so that bits are no longer the same."""
    holds_from: HoldsFrom = "training"


def _free(why: str, *keys: str, rounds: bool = False) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.FREE, keys=keys, why=why, rounds=rounds)


def _experiment(holds_from: HoldsFrom, why: str, *keys: str) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.EXPERIMENT, keys=keys, why=why, holds_from=holds_from)


def _impossible(why: str, instead: str, *keys: str) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.IMPOSSIBLE, keys=keys, why=why, instead=instead)


def _speed_arguments(engine: str) -> tuple[str, ...]:
    return tuple(f"{engine}.{ENGINE_ARGUMENTS}.{name}" for name in _SPEED_ARGUMENTS)


RULES: tuple[ChangeRule, ...] = (
    _free(
        "memory and speed of the engines",
        f"{_ENGINE}.engine_num",
        f"{_JUDGE}.engine_num",
        "cluster.node_num",
        "cluster.gpu_per_node",
    ),
    _free(
        "memory and speed of the engines, which may round differently",
        f"{_ENGINE}.gpu_memory_utilization",
        f"{_ENGINE}.sleep_level",
        f"{_ENGINE}.tensor_parallel_size",
        f"{_ENGINE}.data_parallel_size",
        f"{_ENGINE}.pipeline_parallel_size",
        f"{_ENGINE}.enable_expert_parallel",
        f"{_ENGINE}.enforce_eager",
        f"{_ENGINE}.enable_prefix_caching",
        *_speed_arguments(_ENGINE),
        f"{_JUDGE}.gpu_memory_utilization",
        f"{_JUDGE}.tensor_parallel_size",
        f"{_JUDGE}.data_parallel_size",
        f"{_JUDGE}.pipeline_parallel_size",
        f"{_JUDGE}.enable_expert_parallel",
        f"{_JUDGE}.enforce_eager",
        f"{_JUDGE}.enable_prefix_caching",
        *_speed_arguments(_JUDGE),
        rounds=True,
    ),
    _free(
        "memory and speed of the trainer",
        "trainer.param_offload",
        "trainer.optimizer_offload",
        "trainer.forward_prefetch",
        "trainer.enable_gradient_checkpointing",
        "trainer.critic.param_offload",
        "trainer.critic.optimizer_offload",
        "trainer.critic.enable_gradient_checkpointing",
    ),
    _free(
        "memory and speed of the trainer, which may round differently",
        "trainer.max_token_len_per_gpu",
        "trainer.log_prob_max_token_len_per_gpu",
        "trainer.critic.max_token_len_per_gpu",
        "trainer.use_dynamic_bsz",
        "trainer.ppo_micro_batch_size_per_gpu",
        "trainer.log_prob_micro_batch_size_per_gpu",
        "trainer.critic.ppo_micro_batch_size_per_gpu",
        "trainer.offload_policy",
        "trainer.balance_batch",
        "trainer.use_fused_kernels",
        "trainer.entropy_from_logits_with_chunking",
        "trainer.entropy_checkpointing",
        "trainer.use_remove_padding",
        "trainer.use_prefix_grouper",
        "trainer.ulysses_sequence_parallel_size",
        "trainer.override_config.attn_implementation",
        rounds=True,
    ),
    _free(
        "ranks of the trainer, which add up in another order",
        "trainer.rank_num",
        "trainer.fsdp_size",
        rounds=True,
    ),
    _free(
        "concurrency, time limits and retries",
        "explorer.runner_per_model",
        "explorer.runs_per_runner",
        "explorer.isolate_user_code",
        "explorer.max_timeout",
        "explorer.max_retry_times",
        "explorer.dynamic_timeout",
        "buffer.feedback_timeout",
        f"{_AUXILIARY}.max_read_timeout",
        "synchronizer.sync_timeout",
        "data_processor.task_pipeline.num_process",
    ),
    _free("what a resume takes from a checkpoint", "trainer.load_contents", rounds=True),
    _free(
        "how long a batch is waited for: an incomplete one depends on the clock",
        f"{_ROWS}.max_read_timeout",
        rounds=True,
    ),
    _free(
        "checkpoints and what is kept",
        "trainer.save_interval",
        "trainer.save_contents",
        "trainer.max_checkpoints_to_keep",
        "trainer.keep_best",
        "trainer.resume_mode",
        "continue_from_checkpoint",
        "checkpoint_root_dir",
        "buffer.keep_steps",
    ),
    _free(
        "evaluation; a taskset with other rows needs another `name`",
        "explorer.eval_interval",
        "explorer.eval_on_startup",
        "explorer.eval_failed_runs",
        "explorer.best_taskset",
        f"{_TASKSET}.eval_tasksets",
        f"{_TASKSET}.default_eval_workflow_type",
    ),
    _free(
        "how weights travel, addresses, keys, logs and monitors",
        "synchronizer.sync_method",
        "synchronizer.group_name",
        f"{_ENGINE}.base_port",
        f"{_ENGINE}.api_key",
        f"{_ENGINE}.enable_log_requests",
        f"{_JUDGE}.base_port",
        f"{_JUDGE}.api_key",
        f"{_JUDGE}.enable_log_requests",
        f"{_JUDGE}.external_model_config.base_url_env",
        f"{_JUDGE}.external_model_config.api_key_env",
        "model.external_model.base_url_env",
        "model.external_model.api_key_env",
        "model.lora_configs.base_model_name",
        "service",
        "monitor",
        "trainer.enable_preview",
        "trainer.recorded_token_share",
        "log",
    ),
    _free(
        "other modes than the run's",
        "explorer.bench_on_latest_checkpoint",
        "explorer.proxy_port",
        "explorer.listen_address",
        "explorer.service_status_check_interval",
        "explorer.min_running_model_num",
    ),
    _free(
        "what verl's keys stand for is compared under the names here",
        "trainer.trainer_config",
        "trainer.trainer_config_path",
    ),
    _free(
        "more or fewer steps; where the learning rate's schedule depends on their number, they "
        "change the experiment",
        "buffer.total_steps",
        "buffer.total_epochs",
        "trainer.total_steps",
    ),
    _free(
        "bad rows of data",
        f"{_ROWS}.on_bad_row",
        f"{_AUXILIARY}.on_bad_row",
    ),
    _experiment(
        "training",
        "the learning rate and the optimizer",
        "algorithm.optimizer",
        "trainer.critic.optimizer",
        "trainer.grad_clip",
        "trainer.critic.grad_clip",
        "trainer.critic_warmup",
    ),
    _experiment(
        "training",
        "the loss",
        "algorithm.policy_loss_fn",
        "algorithm.policy_loss_fn_args",
        "algorithm.kl_penalty_fn",
        "algorithm.kl_penalty_fn_args",
        "algorithm.kl_loss_fn",
        "algorithm.kl_loss_fn_args",
        "algorithm.entropy_loss_fn",
        "algorithm.entropy_loss_fn_args",
        "algorithm.loss_agg_mode",
        "algorithm.loss_scale_factor",
        "algorithm.reference_interval",
        "algorithm.reference_decay",
        "algorithm.distillation",
        "algorithm.bypass_old_logprobs",
        "algorithm.rollout_correction",
        "algorithm.enable_router_replay",
        "algorithm.router_aux_loss_coef",
        "algorithm.router_z_loss_coef",
        "trainer.ppo_epochs",
        "trainer.critic.ppo_epochs",
        "trainer.critic.cliprange_value",
        "trainer.critic.loss_agg_mode",
    ),
    _experiment(
        "training",
        "the arithmetic of the trainer",
        "trainer.dtype",
        "trainer.external_lib",
        "trainer.critic.external_lib",
    ),
    _experiment(
        "rollout",
        "the advantages, and the algorithm, as long as the same service computes them and the same "
        "models are trained",
        "algorithm.algorithm_type",
        "algorithm.advantage_fn",
        "algorithm.advantage_fn_args",
        "algorithm.sample_strategy",
        "algorithm.sample_strategy_args",
        "data_processor.experience_pipeline",
    ),
    _experiment(
        "rollout",
        "lengths and sampling of the rollouts",
        "model.max_model_len",
        "model.max_prompt_tokens",
        "model.max_response_tokens",
        "model.min_response_tokens",
        "model.temperature",
        "model.top_p",
        "model.top_k",
        "model.logprobs",
        "model.repetition_penalty",
        "model.enable_thinking",
        "model.chat_template_kwargs",
        "model.enable_prompt_truncation",
        f"{_TASKSET}.taskset.rollout_args",
        f"{_TASKSET}.tasksets.rollout_args",
    ),
    _experiment(
        "rollout",
        "data; a taskset with other rows needs another `name`",
        f"{_TASKSET}.taskset",
        f"{_TASKSET}.tasksets",
        f"{_ROWS}.name",
        f"{_ROWS}.path",
        f"{_ROWS}.table",
        f"{_ROWS}.split",
        f"{_ROWS}.subset_name",
        f"{_ROWS}.format",
        f"{_ROWS}.data_selector",
        _AUXILIARY,
    ),
    _experiment(
        "rollout",
        "workflows, rewards and the models that they call",
        f"{_TASKSET}.default_workflow_type",
        f"{_TASKSET}.default_reward_fn_type",
        "explorer.env_vars",
        "explorer.on_bad_reward",
        _JUDGE,
        "model.external_model.model_name",
        f"{_ENGINE}.dtype",
        f"{_ENGINE}.{ENGINE_ARGUMENTS}",
        f"{_ENGINE}.ignore_eos",
        f"{_ENGINE}.enable_history",
        f"{_ENGINE}.enable_openai_api",
        f"{_ENGINE}.enable_auto_tool_choice",
        f"{_ENGINE}.tool_call_parser",
        f"{_ENGINE}.reasoning_parser",
    ),
    _experiment(
        "rollout",
        "which runs and rows a step is made of",
        "explorer.over_rollout.wait_after_min",
        "explorer.over_rollout.return_partial_tasks",
        "buffer.max_refill_rounds",
        "buffer.short_batch",
        "buffer.await_feedback",
        f"{_ROWS}.replay_buffer.priority_fn",
        f"{_ROWS}.replay_buffer.priority_fn_args",
        f"{_ROWS}.replay_buffer_kwargs",
    ),
    _experiment("rollout", "all randomness", "seed"),
    _impossible(
        "which rows belong to which step, and which weights made them, is counted from step 1 on",
        NEW_RUN,
        "buffer.batch_size",
        "buffer.train_batch_size",
        "buffer.train_step",
        "algorithm.repeat_times",
        "explorer.over_rollout.ratio",
        "synchronizer.sync_style",
        "synchronizer.sync_interval",
        "synchronizer.sync_offset",
        f"{_ROWS}.replay_buffer.enable",
        f"{_ROWS}.replay_buffer.reuse_cooldown_time",
        f"{_ROWS}.replay_buffer.when_full",
        f"{_ROWS}.capacity",
    ),
    _impossible(
        "its checkpoints hold weights of another model",
        NEW_RUN,
        "model.model_path",
        "model.critic_model_path",
        "model.lora_configs",
        "trainer.override_config",
        "trainer.critic.override_config",
        "model.trust_remote_code",
    ),
    _impossible(
        "its checkpoints hold the state of another optimizer",
        NEW_RUN,
        "algorithm.optimizer.optimizer_type",
        "trainer.critic.optimizer.optimizer_type",
    ),
    _impossible(
        "its checkpoints are of the back end that wrote them",
        NEW_RUN,
        "trainer.trainer_type",
        "trainer.trainer_strategy",
    ),
    _impossible(
        "its tokens were made with the chat template that its published weights carry",
        _NAMES,
        "model.custom_chat_template",
        "model.chat_template_path",
    ),
    _impossible(
        "its weights were trained with other position embeddings",
        NEW_RUN,
        "model.rope_scaling",
        "model.rope_theta",
    ),
    _impossible(
        "the rows of the run were made or read that way before its first step",
        _NAMES,
        "mode",
        "stages",
        f"{_ENGINE}.engine_type",
        "model.external_model.enable",
        f"{_ROWS}.storage_type",
        f"{_ROWS}.source_run",
        f"{_ROWS}.source_stage",
        "data_processor.task_pipeline",
    ),
    _impossible(
        "it says where the run begins, and this one has begun",
        _NAMES,
        "trainer.resume_from_path",
    ),
    _impossible(
        "it names the run",
        "write what the run was started with, or start another one",
        "project",
        "group",
        "name",
        "tenant",
    ),
)


def plain_key(key: str) -> str:
    """Returns a key without positions in lists and names of the user's own."""
    own = key if NAME in key else BUFFERS.sub(r"\1", key)
    return _PLACE.sub("", own)


def rule_of(key: str) -> ChangeRule:
    """Returns the rule of a key, which is that of the longest key above it that has one."""
    name = plain_key(key)
    rules = _rules_by_key()
    while name not in rules:
        assert name, f"{key} has no rule"
        name = name.rpartition(".")[0]
    return rules[name]


@cache
def _rules_by_key() -> Mapping[str, ChangeRule]:
    return {key: rule for rule in RULES for key in rule.keys}
