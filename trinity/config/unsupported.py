"""Keys and values of Trinity-RFT's configuration that this system does not have yet."""

FORESEEN_KEYS = {
    "": "data_processor service",
    "algorithm": "enable_router_replay",
    "algorithm.optimizer": "optimizer_type clip_grad",
    "model": "trust_remote_code logprobs repetition_penalty enable_thinking "
    "lora_configs rope_scaling rope_theta tinker external_model",
    "buffer.explorer_input.taskset": "index",
    "buffer.trainer_input.experience_buffer": "capacity replay_buffer",
    "explorer": "auxiliary_models over_rollout dynamic_timeout env_vars concurrent_mode "
    "max_repeat_times_per_runner bench_on_latest_checkpoint proxy_port max_inflight_batches",
    "explorer.rollout_model": "data_parallel_size pipeline_parallel_size enable_history "
    "enable_openai_api enable_chunked_prefill seed",
    "trainer": "save_hf_checkpoint enable_preview balance_batch param_offload "
    "optimizer_offload ulysses_sequence_parallel_size megatron trainer_config",
    "synchronizer": "explorer_sync_interval trainer_sync_interval",
    "monitor": "monitor_args detailed_stats",
}
"""Section to its keys; what is neither here nor a field is taken for a slip of the pen."""

MOVED_KEYS = {
    "buffer.explorer_input.taskset.task_selector": "buffer.explorer_input.taskset.data_selector",
    "algorithm.optimizer.warmup_style": "algorithm.optimizer.lr_scheduler_type",
    "algorithm.rollout_correction.bypass_mode": "algorithm.bypass_old_logprobs",
    "algorithm.rollout_correction.loss_type": "algorithm.policy_loss_fn",
}
"""Keys of Trinity-RFT or verl that are called otherwise here."""

FORESEEN_VALUES = {
    "mode": "explore bench serve colocate",
    "synchronizer.sync_method": "nccl memory",
    "synchronizer.sync_style": "explorer_driven trainer_driven fully_async",
    "buffer.trainer_input.experience_buffer.storage_type": "sql",
    "explorer.rollout_model.engine_type": "sglang tinker external",
    "trainer.trainer_type": "tinker",
    "trainer.trainer_strategy": "fsdp megatron",
    "monitor.monitor_type": "wandb mlflow swanlab",
}


def is_foreseen_key(section: str, name: str) -> bool:
    """Whether `section.name` means something in Trinity-RFT."""
    return name in FORESEEN_KEYS.get(section, "").split()


def is_foreseen_value(key: str, value: object) -> bool:
    """Whether `value` means something there in Trinity-RFT."""
    return value in FORESEEN_VALUES.get(key, "").split()
