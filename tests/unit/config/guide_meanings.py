"""Keys that Trinity-RFT's guides name, each with a value, and the place where it acts here.

A key without a place is taken and does not act: `docs/moving-in.md` says why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from tests.unit.config.builders import GRPO, SFT
from trinity.config.schema.experiment import deep_merge

Base = Literal["grpo", "ppo", "sft"]
PPO = deep_merge(GRPO, {"algorithm": {"algorithm_type": "ppo"}, "cluster": {"gpu_per_node": 8}})
BASES: Mapping[Base, Mapping[str, object]] = {"grpo": GRPO, "ppo": PPO, "sft": SFT}

INPUT, OUTPUT = "buffer.explorer_input", "buffer.trainer_input"
ROWS = f"{OUTPUT}.experience_buffer"
ACTOR = "trainer.trainer_config.actor_rollout_ref"
CRITIC = "trainer.trainer_config.critic"
TRAINER = "trainer.trainer_config.trainer"
OPERATOR: JsonValue = {
    "name": "reward_shaping_mapper",
    "args": {"reward_shaping_configs": [{"stats_key": "score", "op_type": "ADD", "weight": 1.0}]},
}
TASK_PIPELINE: JsonValue = {
    "num_process": 4,
    "operators": [{"name": "length_filter", "args": {"max_characters": 9}}],
    "inputs": ["/data/raw"],
    "target_fields": ["question"],
}


@dataclass(frozen=True, slots=True)
class KeyMeaning:
    """A key of the guides, and what becomes of it."""

    key: str
    value: JsonValue
    place: str | None
    """The key that has the value afterwards; None where it does not act."""
    base: Base = "grpo"


def meanings() -> Iterator[KeyMeaning]:
    """Yields every key of the guides, some with several values."""
    for key, value in AS_WRITTEN:
        yield KeyMeaning(key, value, key)
    for key, value, place in ELSEWHERE:
        yield KeyMeaning(key, value, place)
    for key, value in OF_ROWS:
        yield KeyMeaning(f"{ROWS}.format.{key}", value, f"{ROWS}.format.{key}", "sft")
    for key, value, place in OF_VERL:
        yield KeyMeaning(key, value, place, "ppo")
    for key, value in WITHOUT_EFFECT:
        yield KeyMeaning(key, value, None, "ppo")


AS_WRITTEN: list[tuple[str, JsonValue]] = [
    ("project", "other"),
    ("name", "other"),
    ("mode", "both"),
    ("mode", "explore"),
    ("mode", "train"),
    ("mode", "bench"),
    ("checkpoint_root_dir", "/other"),
    ("continue_from_checkpoint", False),
    *(("algorithm.algorithm_type", name) for name in ("ppo", "opmd", "dpo", "sft", "mix")),
    ("algorithm.repeat_times", 4),
    ("algorithm.sample_strategy", "default"),
    ("algorithm.advantage_fn", "ppo"),
    ("algorithm.advantage_fn_args", {"epsilon": 0.1}),
    ("algorithm.kl_penalty_fn", "none"),
    ("algorithm.kl_penalty_fn_args", {"kl_coef": 0.1}),
    ("algorithm.kl_loss_fn", "k2"),
    ("algorithm.kl_loss_fn", "low_var_kl"),
    ("algorithm.kl_loss_fn_args", {"kl_coef": 0.1}),
    ("algorithm.entropy_loss_fn", "default"),
    ("algorithm.entropy_loss_fn_args", {"entropy_coef": 0.1}),
    ("algorithm.optimizer.lr", 1e-4),
    ("algorithm.optimizer.lr_warmup_steps_ratio", 0.1),
    ("algorithm.optimizer.weight_decay", 0.2),
    *(("monitor.monitor_type", name) for name in ("wandb", "tensorboard", "mlflow")),
    ("monitor.monitor_args", {"base_url": "http://a"}),
    ("monitor.monitor_args", {"uri": "http://a", "username": "ann"}),
    ("model.model_path", "/other"),
    ("model.critic_model_path", "/other"),
    ("model.max_model_len", 48),
    ("model.max_prompt_tokens", 8),
    ("model.max_response_tokens", 8),
    ("model.min_response_tokens", 2),
    ("model.enable_prompt_truncation", False),
    ("model.temperature", 0.5),
    ("model.top_p", 0.5),
    ("model.top_k", 5),
    ("model.custom_chat_template", "x"),
    ("cluster.node_num", 2),
    ("cluster.gpu_per_node", 4),
    ("buffer.batch_size", 8),
    ("buffer.train_batch_size", 16),
    ("buffer.total_epochs", 3),
    ("buffer.total_steps", 3),
    (f"{INPUT}.default_workflow_type", "math_workflow"),
    (f"{INPUT}.default_reward_fn_type", "countdown_reward"),
    (f"{INPUT}.taskset.name", "other"),
    *((f"{INPUT}.taskset.storage_type", name) for name in ("file", "queue", "sql")),
    (f"{INPUT}.taskset.path", "/other"),
    (f"{INPUT}.taskset.split", "dev"),
    (f"{INPUT}.taskset.subset_name", "main"),
    (f"{INPUT}.taskset.rollout_args.temperature", 0.5),
    (f"{INPUT}.taskset.rollout_args.top_p", 0.5),
    (f"{INPUT}.taskset.default_workflow_type", "math_workflow"),
    (f"{INPUT}.taskset.default_reward_fn_type", "countdown_reward"),
    (f"{INPUT}.taskset.workflow_args", {"a": 1}),
    (f"{INPUT}.taskset.format.prompt_key", "q"),
    (f"{INPUT}.taskset.format.response_key", "a"),
    (f"{INPUT}.tasksets", [{"name": "a", "path": "/a"}]),
    (f"{INPUT}.eval_tasksets", [{"path": "/e", "repeat_times": 3, "split": "test"}]),
    (f"{ROWS}.name", "other"),
    *((f"{ROWS}.storage_type", name) for name in ("file", "queue", "sql")),
    (f"{ROWS}.path", "sqlite:///x.db"),
    (f"{ROWS}.max_read_timeout", 30),
    (f"{OUTPUT}.auxiliary_buffers", {"sft": {"name": "sft", "path": "/d"}}),
    ("explorer.runner_per_model", 4),
    ("explorer.max_timeout", 30),
    ("explorer.max_retry_times", 1),
    ("explorer.env_vars", {"A": "b"}),
    ("explorer.rollout_model.engine_type", "vllm"),
    ("explorer.rollout_model.engine_num", 2),
    ("explorer.rollout_model.tensor_parallel_size", 2),
    ("explorer.rollout_model.enable_history", True),
    ("explorer.rollout_model.gpu_memory_utilization", 0.5),
    (
        "explorer.auxiliary_models",
        [
            {
                "model_path": "/m",
                "engine_num": 1,
                "tensor_parallel_size": 1,
                "enable_thinking": False,
                "max_prompt_tokens": 8,
                "max_response_tokens": 8,
                "max_model_len": 16,
            }
        ],
    ),
    ("explorer.eval_interval", 3),
    ("explorer.eval_on_startup", False),
    ("synchronizer.sync_method", "nccl"),
    ("synchronizer.sync_method", "checkpoint"),
    ("synchronizer.sync_interval", 3),
    ("synchronizer.sync_offset", 1),
    ("synchronizer.sync_timeout", 60),
    ("synchronizer.sync_style", "fixed"),
    ("trainer.trainer_type", "verl"),
    ("trainer.save_interval", 3),
    ("trainer.total_steps", 4),
    ("trainer.use_dynamic_bsz", False),
    ("trainer.max_token_len_per_gpu", 64),
    ("trainer.ulysses_sequence_parallel_size", 2),
    ("trainer.grad_clip", 0.5),
    (
        "service.data_juicer",
        {"server_url": "http://127.0.0.1:5005", "auto_start": True, "port": 5005},
    ),
    ("data_processor.task_pipeline", TASK_PIPELINE),
    ("data_processor.experience_pipeline.operators", [OPERATOR]),
    *(("log.level", level) for level in ("DEBUG", "INFO", "WARNING", "ERROR")),
    ("log.group_by_node", True),
    (
        "stages",
        [
            {
                "stage_name": "a",
                "mode": "explore",
                "algorithm": {"repeat_times": 2},
                "buffer": {"batch_size": 2},
                "explorer": {"max_timeout": 3},
                "trainer": {"grad_clip": 0.5},
            }
        ],
    ),
]
ELSEWHERE: list[tuple[str, JsonValue, str]] = [
    ("buffer.default_workflow_type", "math_workflow", f"{INPUT}.default_workflow_type"),
    ("buffer.default_reward_fn_type", "math_reward", f"{INPUT}.default_reward_fn_type"),
    (
        f"{INPUT}.taskset.task_selector.selector_type",
        "shuffle",
        f"{INPUT}.taskset.data_selector.selector_type",
    ),
    (f"{ROWS}.use_priority_queue", True, f"{ROWS}.replay_buffer.enable"),
    (f"{ROWS}.reuse_cooldown_time", 30, f"{ROWS}.replay_buffer.reuse_cooldown_time"),
    ("trainer.ppo_max_token_len_per_gpu", 64, "trainer.max_token_len_per_gpu"),
]
OF_ROWS: list[tuple[str, JsonValue]] = [
    ("prompt_type", "plaintext"),
    ("prompt_type", "messages"),
    ("prompt_key", "q"),
    ("response_key", "a"),
    ("system_prompt_key", "s"),
    ("system_prompt", "be brief"),
    ("messages_key", "m"),
    ("tools_key", "t"),
    ("chosen_key", "c"),
    ("rejected_key", "r"),
    ("enable_concatenated_multi_turn", True),
    ("chat_template", "x"),
]
OF_VERL: list[tuple[str, JsonValue, str]] = [
    (f"{ACTOR}.model.external_lib", "lib", "trainer.external_lib"),
    (f"{ACTOR}.model.override_config", {"a": 1}, "trainer.override_config"),
    (
        f"{ACTOR}.model.enable_gradient_checkpointing",
        False,
        "trainer.enable_gradient_checkpointing",
    ),
    (f"{ACTOR}.model.use_remove_padding", False, "trainer.use_remove_padding"),
    (f"{ACTOR}.model.use_fused_kernels", True, "trainer.use_fused_kernels"),
    (f"{ACTOR}.actor.ppo_micro_batch_size_per_gpu", 2, "trainer.ppo_micro_batch_size_per_gpu"),
    (f"{ACTOR}.actor.use_dynamic_bsz", False, "trainer.use_dynamic_bsz"),
    (f"{ACTOR}.actor.ppo_max_token_len_per_gpu", 64, "trainer.max_token_len_per_gpu"),
    (f"{ACTOR}.actor.grad_clip", 0.5, "trainer.grad_clip"),
    (f"{ACTOR}.actor.ppo_epochs", 2, "trainer.ppo_epochs"),
    (
        f"{ACTOR}.actor.ulysses_sequence_parallel_size",
        2,
        "trainer.ulysses_sequence_parallel_size",
    ),
    (
        f"{ACTOR}.actor.entropy_from_logits_with_chunking",
        True,
        "trainer.entropy_from_logits_with_chunking",
    ),
    (f"{ACTOR}.actor.entropy_checkpointing", True, "trainer.entropy_checkpointing"),
    (f"{ACTOR}.actor.checkpoint.load_contents", ["model"], "trainer.load_contents"),
    (
        f"{ACTOR}.actor.checkpoint.save_contents",
        ["model", "optimizer", "extra", "hf_model"],
        "trainer.save_contents",
    ),
    (f"{ACTOR}.actor.optim.lr", 1e-4, "algorithm.optimizer.lr"),
    (
        f"{ACTOR}.actor.optim.lr_warmup_steps_ratio",
        0.1,
        "algorithm.optimizer.lr_warmup_steps_ratio",
    ),
    (f"{ACTOR}.actor.optim.min_lr_ratio", 0.1, "algorithm.optimizer.min_lr_ratio"),
    (f"{ACTOR}.actor.optim.warmup_style", "cosine", "algorithm.optimizer.lr_scheduler_type"),
    (f"{ACTOR}.actor.fsdp_config.param_offload", True, "trainer.param_offload"),
    (f"{ACTOR}.actor.fsdp_config.optimizer_offload", True, "trainer.optimizer_offload"),
    (f"{ACTOR}.actor.fsdp_config.fsdp_size", 2, "trainer.fsdp_size"),
    (f"{ACTOR}.actor.fsdp_config.forward_prefetch", True, "trainer.forward_prefetch"),
    (
        f"{ACTOR}.ref.log_prob_micro_batch_size_per_gpu",
        2,
        "trainer.log_prob_micro_batch_size_per_gpu",
    ),
    (f"{ACTOR}.ref.log_prob_max_token_len_per_gpu", 64, "trainer.log_prob_max_token_len_per_gpu"),
    (f"{CRITIC}.optim.lr", 1e-4, "trainer.critic.optimizer.lr"),
    (
        f"{CRITIC}.optim.lr_warmup_steps_ratio",
        0.1,
        "trainer.critic.optimizer.lr_warmup_steps_ratio",
    ),
    (f"{CRITIC}.optim.min_lr_ratio", 0.1, "trainer.critic.optimizer.min_lr_ratio"),
    (f"{CRITIC}.optim.warmup_style", "cosine", "trainer.critic.optimizer.lr_scheduler_type"),
    (f"{CRITIC}.model.override_config", {"a": 1}, "trainer.critic.override_config"),
    (f"{CRITIC}.model.external_lib", "lib", "trainer.critic.external_lib"),
    (
        f"{CRITIC}.model.enable_gradient_checkpointing",
        False,
        "trainer.critic.enable_gradient_checkpointing",
    ),
    (f"{CRITIC}.model.fsdp_config.param_offload", True, "trainer.critic.param_offload"),
    (f"{CRITIC}.model.fsdp_config.optimizer_offload", True, "trainer.critic.optimizer_offload"),
    (f"{CRITIC}.ppo_micro_batch_size_per_gpu", 8, "trainer.critic.ppo_micro_batch_size_per_gpu"),
    (f"{CRITIC}.ppo_max_token_len_per_gpu", 64, "trainer.critic.max_token_len_per_gpu"),
    (f"{CRITIC}.ppo_epochs", 2, "trainer.critic.ppo_epochs"),
    (f"{CRITIC}.grad_clip", 0.5, "trainer.critic.grad_clip"),
    (f"{CRITIC}.cliprange_value", 0.3, "trainer.critic.cliprange_value"),
    (f"{ACTOR}.actor.use_prefix_grouper", True, "trainer.use_prefix_grouper"),
    (f"{TRAINER}.balance_batch", False, "trainer.balance_batch"),
    (f"{TRAINER}.resume_mode", "auto", "trainer.resume_mode"),
    (f"{TRAINER}.resume_mode", "disable", "trainer.resume_mode"),
    (f"{TRAINER}.resume_mode", "resume_path", "trainer.resume_mode"),
    (f"{TRAINER}.resume_from_path", "/x", "trainer.resume_from_path"),
    (f"{TRAINER}.critic_warmup", 3, "trainer.critic_warmup"),
    (f"{TRAINER}.max_actor_ckpt_to_keep", 3, "trainer.max_checkpoints_to_keep"),
]
WITHOUT_EFFECT: list[tuple[str, JsonValue]] = [
    ("ray_namespace", "x"),
    ("monitor.enable_ray_timeline", True),
    ("explorer.name", "other"),
    ("trainer.name", "other"),
    *(
        ("trainer.save_strategy", name)
        for name in ("single_thread", "single_process", "single_node")
    ),
    (f"{ACTOR}.hybrid_engine", False),
    (f"{ACTOR}.model.fused_kernel_options.impl_backend", "triton"),
    (f"{ACTOR}.actor.strategy", "fsdp"),
    (f"{ACTOR}.actor.ppo_micro_batch_size", 8),
    (f"{ACTOR}.actor.ppo_mini_batch_size", 8),
    (f"{ACTOR}.actor.shuffle", True),
    (f"{ACTOR}.actor.optim.total_training_steps", 100),
    (f"{ACTOR}.actor.fsdp_config.wrap_policy.min_num_params", 5),
    (f"{ACTOR}.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap", ["Layer"]),
    (f"{ACTOR}.ref.fsdp_config.param_offload", True),
    (f"{ACTOR}.ref.fsdp_config.wrap_policy.min_num_params", 5),
    (f"{ACTOR}.ref.fsdp_config.fsdp_size", 2),
    (f"{ACTOR}.ref.fsdp_config.forward_prefetch", True),
    (f"{ACTOR}.ref.log_prob_micro_batch_size", 2),
    (f"{ACTOR}.ref.log_prob_use_dynamic_bsz", False),
    (f"{ACTOR}.ref.ulysses_sequence_parallel_size", 2),
    (f"{ACTOR}.ref.entropy_from_logits_with_chunking", True),
    (f"{ACTOR}.ref.entropy_checkpointing", True),
    (f"{ACTOR}.rollout.log_prob_micro_batch_size_per_gpu", 16),
    (f"{CRITIC}.strategy", "fsdp"),
    (f"{CRITIC}.optim.total_training_steps", 100),
    (f"{CRITIC}.model.use_remove_padding", False),
    (f"{CRITIC}.model.fsdp_config.wrap_policy.min_num_params", 5),
    (f"{CRITIC}.model.fsdp_config.fsdp_size", 2),
    (f"{CRITIC}.model.fsdp_config.forward_prefetch", True),
    (f"{CRITIC}.forward_micro_batch_size_per_gpu", 8),
    (f"{CRITIC}.forward_max_token_len_per_gpu", 64),
    (f"{CRITIC}.use_dynamic_bsz", False),
    (f"{CRITIC}.ulysses_sequence_parallel_size", 2),
    (f"{CRITIC}.shuffle", True),
    (f"{TRAINER}.total_training_steps", 5),
    (f"{TRAINER}.default_hdfs_dir", "hdfs://x"),
    (f"{TRAINER}.remove_previous_ckpt_in_save", True),
    (f"{TRAINER}.del_local_ckpt_after_load", True),
    (f"{TRAINER}.max_critic_ckpt_to_keep", 3),
]
