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

from trinity.config.loading.keys import under

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
_SPEED_ARGUMENTS = """
async_scheduling attention_backend block_size compilation_config cpu_offload_gb
cudagraph_capture_sizes disable_cascade_attn disable_custom_all_reduce disable_log_stats
distributed_executor_backend enable_chunked_prefill enable_sleep_mode kv_cache_memory_bytes
long_prefill_token_threshold max_cudagraph_capture_size max_num_batched_tokens
max_num_scheduled_tokens max_num_seqs max_parallel_loading_workers num_gpu_blocks_override
scheduling_policy use_tqdm_on_load
"""
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


def _engines(names: str) -> tuple[str, ...]:
    """Returns the keys of the rollout engine and of those of auxiliary models."""
    return (*under(_ENGINE, names), *under(_JUDGE, names))


def _free(why: str, *keys: str, rounds: bool = False) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.FREE, keys=keys, why=why, rounds=rounds)


def _experiment(holds_from: HoldsFrom, why: str, *keys: str) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.EXPERIMENT, keys=keys, why=why, holds_from=holds_from)


def _impossible(why: str, instead: str, *keys: str) -> ChangeRule:
    return ChangeRule(kind=ChangeKind.IMPOSSIBLE, keys=keys, why=why, instead=instead)


RULES: tuple[ChangeRule, ...] = (
    _free(
        "memory and speed of the engines",
        *_engines("engine_num"),
        *under("cluster", "node_num gpu_per_node"),
    ),
    _free(
        "memory and speed of the engines, which may round differently",
        f"{_ENGINE}.sleep_level",
        *_engines(
            "gpu_memory_utilization tensor_parallel_size data_parallel_size "
            "pipeline_parallel_size enable_expert_parallel enforce_eager enable_prefix_caching"
        ),
        *under(f"{_ENGINE}.{ENGINE_ARGUMENTS}", _SPEED_ARGUMENTS),
        *under(f"{_JUDGE}.{ENGINE_ARGUMENTS}", _SPEED_ARGUMENTS),
        rounds=True,
    ),
    _free(
        "memory and speed of the trainer",
        *under(
            "trainer",
            "param_offload optimizer_offload forward_prefetch enable_gradient_checkpointing "
            "critic.param_offload critic.optimizer_offload critic.enable_gradient_checkpointing",
        ),
    ),
    _free(
        "memory and speed of the trainer, which may round differently",
        *under(
            "trainer",
            "max_token_len_per_gpu log_prob_max_token_len_per_gpu critic.max_token_len_per_gpu "
            "use_dynamic_bsz ppo_micro_batch_size_per_gpu log_prob_micro_batch_size_per_gpu "
            "critic.ppo_micro_batch_size_per_gpu offload_policy balance_batch use_fused_kernels "
            "entropy_from_logits_with_chunking entropy_checkpointing use_remove_padding "
            "use_prefix_grouper ulysses_sequence_parallel_size override_config.attn_implementation",
        ),
        rounds=True,
    ),
    _free(
        "ranks of the trainer, which add up in another order",
        *under("trainer", "rank_num fsdp_size"),
        rounds=True,
    ),
    _free(
        "concurrency, time limits and retries",
        *under(
            "explorer",
            "runner_per_model runs_per_runner isolate_user_code max_timeout max_retry_times "
            "dynamic_timeout",
        ),
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
        *under(
            "trainer",
            "save_interval save_contents max_checkpoints_to_keep keep_best resume_mode",
        ),
        "continue_from_checkpoint",
        "checkpoint_root_dir",
        "buffer.keep_steps",
    ),
    _free(
        "evaluation; a taskset with other rows needs another `name`",
        *under("explorer", "eval_interval eval_on_startup eval_failed_runs best_taskset"),
        *under(_TASKSET, "eval_tasksets default_eval_workflow_type"),
    ),
    _free(
        "how weights travel, addresses, keys, logs and monitors",
        *under("synchronizer", "sync_method group_name"),
        *_engines("base_port api_key enable_log_requests"),
        *under(f"{_JUDGE}.external_model_config", "base_url_env api_key_env"),
        *under("model.external_model", "base_url_env api_key_env"),
        "model.lora_configs.base_model_name",
        "service",
        "monitor",
        *under("trainer", "enable_preview recorded_token_share"),
        "log",
    ),
    _free(
        "other modes than the run's",
        *under(
            "explorer",
            "bench_on_latest_checkpoint proxy_port listen_address service_status_check_interval "
            "min_running_model_num",
        ),
    ),
    _free(
        "what verl's keys stand for is compared under the names here",
        *under("trainer", "trainer_config trainer_config_path"),
    ),
    _free(
        "more or fewer steps; where the learning rate's schedule depends on their number, they "
        "change the experiment",
        *under("buffer", "total_steps total_epochs"),
        "trainer.total_steps",
    ),
    _free("bad rows of data", f"{_ROWS}.on_bad_row", f"{_AUXILIARY}.on_bad_row"),
    _experiment(
        "training",
        "the learning rate and the optimizer",
        "algorithm.optimizer",
        *under("trainer", "critic.optimizer grad_clip critic.grad_clip critic_warmup"),
    ),
    _experiment(
        "training",
        "the loss",
        *under(
            "algorithm",
            "policy_loss_fn policy_loss_fn_args kl_penalty_fn kl_penalty_fn_args kl_loss_fn "
            "kl_loss_fn_args entropy_loss_fn entropy_loss_fn_args loss_agg_mode loss_scale_factor "
            "reference_interval reference_decay distillation bypass_old_logprobs "
            "rollout_correction enable_router_replay router_aux_loss_coef router_z_loss_coef",
        ),
        *under(
            "trainer",
            "ppo_epochs critic.ppo_epochs critic.cliprange_value critic.loss_agg_mode",
        ),
    ),
    _experiment(
        "training",
        "the arithmetic of the trainer",
        *under("trainer", "dtype external_lib critic.external_lib"),
    ),
    _experiment(
        "rollout",
        "the advantages, and the algorithm, as long as the same service computes them and the same "
        "models are trained",
        *under(
            "algorithm",
            "algorithm_type advantage_fn advantage_fn_args sample_strategy sample_strategy_args",
        ),
        "data_processor.experience_pipeline",
    ),
    _experiment(
        "rollout",
        "lengths and sampling of the rollouts",
        *under(
            "model",
            "max_model_len max_prompt_tokens max_response_tokens min_response_tokens temperature "
            "top_p top_k logprobs repetition_penalty enable_thinking chat_template_kwargs "
            "enable_prompt_truncation",
        ),
        *under(_TASKSET, "taskset.rollout_args tasksets.rollout_args"),
    ),
    _experiment(
        "rollout",
        "data; a taskset with other rows needs another `name`",
        *under(_TASKSET, "taskset tasksets"),
        *under(_ROWS, "name path table split subset_name format data_selector"),
        _AUXILIARY,
    ),
    _experiment(
        "rollout",
        "workflows, rewards and the models that they call",
        *under(_TASKSET, "default_workflow_type default_reward_fn_type"),
        *under("explorer", "env_vars on_bad_reward"),
        _JUDGE,
        "model.external_model.model_name",
        *under(
            _ENGINE,
            f"dtype {ENGINE_ARGUMENTS} ignore_eos enable_history enable_openai_api "
            "enable_multimodal allowed_media_domains enable_auto_tool_choice tool_call_parser "
            "reasoning_parser",
        ),
    ),
    _experiment(
        "rollout",
        "which runs and rows a step is made of",
        *under("explorer.over_rollout", "wait_after_min return_partial_tasks"),
        "explorer.max_inflight_batches",
        *under("buffer", "max_refill_rounds short_batch await_feedback"),
        *under(
            _ROWS,
            "replay_buffer.priority_fn replay_buffer.priority_fn_args replay_buffer_kwargs",
        ),
    ),
    _experiment("rollout", "which weights draw which tokens", "synchronizer.weight_update"),
    _experiment("rollout", "all randomness", "seed"),
    _impossible(
        "which rows belong to which step, and which weights made them, is counted from step 1 on",
        NEW_RUN,
        *under("buffer", "batch_size train_batch_size train_step"),
        "algorithm.repeat_times",
        "explorer.over_rollout.ratio",
        *under("synchronizer", "sync_style sync_interval sync_offset"),
        *under(
            _ROWS,
            "replay_buffer.enable replay_buffer.reuse_cooldown_time replay_buffer.when_full "
            "capacity",
        ),
    ),
    _impossible(
        "its checkpoints hold weights of another model",
        NEW_RUN,
        *under("model", "model_path critic_model_path lora_configs"),
        *under("trainer", "override_config critic.override_config"),
        "model.trust_remote_code",
    ),
    _impossible(
        "its checkpoints hold the state of another optimizer",
        NEW_RUN,
        "algorithm.optimizer.optimizer_type",
        "trainer.critic.optimizer.optimizer_type",
        "trainer.freeze_vision_tower",
    ),
    _impossible(
        "its checkpoints are of the back end that wrote them",
        NEW_RUN,
        *under("trainer", "trainer_type trainer_strategy"),
    ),
    _impossible(
        "its tokens were made with the chat template that its published weights carry",
        _NAMES,
        *under("model", "custom_chat_template chat_template_path"),
    ),
    _impossible(
        "its weights were trained with other position embeddings",
        NEW_RUN,
        *under("model", "rope_scaling rope_theta"),
    ),
    _impossible(
        "the rows of the run were made or read that way before its first step",
        _NAMES,
        "mode",
        "stages",
        f"{_ENGINE}.engine_type",
        "model.external_model.enable",
        *under(_ROWS, "storage_type source_run source_stage"),
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
