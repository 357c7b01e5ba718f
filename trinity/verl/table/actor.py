"""Sections `actor_rollout_ref.model`, `.actor` and `.ref`."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    missing_rows,
    not_needed_rows,
    renamed_row,
    trainer_config_rows,
)
from trinity.verl.values import (
    as_list,
    as_optimizer,
    as_scheduler,
    as_target_modules,
    as_torch_optimizer,
    identity,
)

_MODEL = "actor_rollout_ref.model"
_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_LORA = "model.lora_configs[0]"
_PARALLEL = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
)
_SAME_AS_ACTOR = "the reference is laid out as the actor is"

_MODEL_ROWS: tuple[KeyRow, ...] = (
    renamed_row(f"{_MODEL}.path", "model.model_path"),
    renamed_row(f"{_MODEL}.trust_remote_code", "model.trust_remote_code"),
    renamed_row(f"{_MODEL}.custom_chat_template", "model.custom_chat_template"),
    renamed_row(f"{_MODEL}.use_remove_padding", "trainer.use_remove_padding"),
    combined_row(f"{_MODEL}.lora_rank", f"{_LORA}.lora_rank", "0 is no LoRA"),
    combined_row(f"{_MODEL}.lora.rank", f"{_LORA}.lora_rank", "0 is no LoRA"),
    renamed_row(f"{_MODEL}.lora_alpha", f"{_LORA}.lora_alpha"),
    renamed_row(f"{_MODEL}.lora.alpha", f"{_LORA}.lora_alpha", convert=identity),
    renamed_row(f"{_MODEL}.target_modules", f"{_LORA}.target_modules", convert=as_target_modules),
    renamed_row(
        f"{_MODEL}.lora.target_modules", f"{_LORA}.target_modules", convert=as_target_modules
    ),
    renamed_row(f"{_MODEL}.exclude_modules", f"{_LORA}.exclude_modules", convert=as_target_modules),
    renamed_row(
        f"{_MODEL}.lora.exclude_modules", f"{_LORA}.exclude_modules", convert=as_target_modules
    ),
    renamed_row(f"{_MODEL}.lora_adapter_path", f"{_LORA}.path"),
    *trainer_config_rows(
        f"{_MODEL}.enable_gradient_checkpointing",
        f"{_MODEL}.enable_activation_offload",
        f"{_MODEL}.use_fused_kernels",
        f"{_MODEL}.fused_kernel_options.*",
        f"{_MODEL}.use_liger",
        f"{_MODEL}.override_config.*",
        f"{_MODEL}.external_lib",
    ),
    *not_needed_rows("the model is read from its directory", f"{_MODEL}.use_shm"),
    *missing_rows(
        "`trainer.dtype` is the type that the passes compute in", f"{_MODEL}.torch_dtype"
    ),
    *missing_rows(
        "the tokenizer and the configuration are those of `model.model_path`",
        f"{_MODEL}.tokenizer_path",
        f"{_MODEL}.hf_config_path",
    ),
    *missing_rows("multi-token prediction is not trained here", f"{_MODEL}.mtp.*"),
    *not_needed_rows(
        "engines always load the adapter merged into the weights", f"{_MODEL}.lora.merge"
    ),
    *missing_rows("there is no such option of LoRA", f"{_MODEL}.lora.*"),
    *missing_rows("there is no such option", f"{_MODEL}.tiled_mlp.*"),
)

_ACTOR_ROWS: tuple[KeyRow, ...] = (
    renamed_row(f"{_ACTOR}.optim.lr", "algorithm.optimizer.lr"),
    renamed_row(f"{_ACTOR}.optim.weight_decay", "algorithm.optimizer.weight_decay"),
    renamed_row(
        f"{_ACTOR}.optim.betas", "algorithm.optimizer.betas", convert=as_list, inverse=identity
    ),
    renamed_row(
        f"{_ACTOR}.optim.lr_warmup_steps",
        "algorithm.optimizer.lr_warmup_steps",
        "times `sync_interval`",
    ),
    renamed_row(
        f"{_ACTOR}.optim.lr_warmup_steps_ratio", "algorithm.optimizer.lr_warmup_steps_ratio"
    ),
    renamed_row(f"{_ACTOR}.optim.min_lr_ratio", "algorithm.optimizer.min_lr_ratio"),
    renamed_row(f"{_ACTOR}.optim.lr_scheduler_type", "algorithm.optimizer.lr_scheduler_type"),
    renamed_row(
        f"{_ACTOR}.optim.warmup_style",
        "algorithm.optimizer.lr_scheduler_type",
        "the older name",
        convert=as_scheduler,
    ),
    renamed_row(
        f"{_ACTOR}.optim.lr_decay_style",
        "algorithm.optimizer.lr_scheduler_type",
        "Megatron's name",
        convert=as_scheduler,
    ),
    renamed_row(f"{_ACTOR}.optim.clip_grad", "trainer.grad_clip", convert=identity),
    renamed_row(f"{_ACTOR}.grad_clip", "trainer.grad_clip"),
    renamed_row(
        f"{_ACTOR}.optim.optimizer",
        "algorithm.optimizer.optimizer_type",
        "`AdamW` or `SGD`",
        convert=as_optimizer,
        inverse=as_torch_optimizer,
    ),
    renamed_row(
        f"{_ACTOR}.optim.lr_wsd_decay_steps",
        "algorithm.optimizer.lr_wsd_decay_steps",
        "times `sync_interval`",
    ),
    renamed_row(f"{_ACTOR}.optim.lr_wsd_decay_style", "algorithm.optimizer.lr_wsd_decay_style"),
    *not_needed_rows(
        "the run's number of steps is known",
        f"{_ACTOR}.optim.total_training_steps",
        f"{_ACTOR}.optim.lr_decay_steps",
    ),
    *missing_rows("the optimizer has the options of `algorithm.optimizer`", f"{_ACTOR}.optim.*"),
    combined_row(
        f"{_ACTOR}.ppo_mini_batch_size",
        "buffer.batch_size",
        "tasks of one train step; `buffer.train_batch_size` is this times `repeat_times`",
    ),
    renamed_row(f"{_ACTOR}.use_dynamic_bsz", "trainer.use_dynamic_bsz"),
    renamed_row(f"{_ACTOR}.ppo_max_token_len_per_gpu", "trainer.max_token_len_per_gpu"),
    renamed_row(
        f"{_ACTOR}.ulysses_sequence_parallel_size", "trainer.ulysses_sequence_parallel_size"
    ),
    renamed_row(
        f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
        "trainer.ulysses_sequence_parallel_size",
        convert=identity,
    ),
    combined_row(
        f"{_ACTOR}.strategy", "trainer.trainer_strategy", "`fsdp` and `fsdp2` are `fsdp2`"
    ),
    renamed_row(
        f"{_ACTOR}.ppo_epochs",
        "trainer.ppo_epochs",
        "passes over a batch, which is one of veRL's mini-batches; the critic's default too",
    ),
    combined_row(
        f"{_ACTOR}.shuffle", "", "all rows of a step are summed up, so their order does not matter"
    ),
    *(renamed_row(f"{_ACTOR}.megatron.{name}", f"trainer.megatron.{name}") for name in _PARALLEL),
    *(
        renamed_row(f"{_ACTOR}.{engine}.{name}", f"trainer.{name}", convert=identity)
        for engine in ("megatron",)
        for name in ("param_offload", "optimizer_offload", "grad_offload")
    ),
    *trainer_config_rows(
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{_ACTOR}.ppo_micro_batch_size",
        f"{_ACTOR}.fsdp_config.*",
        f"{_ACTOR}.checkpoint.*",
        f"{_ACTOR}.use_torch_compile",
        f"{_ACTOR}.entropy_from_logits_with_chunking",
        f"{_ACTOR}.entropy_checkpointing",
        f"{_ACTOR}.megatron.*",
        f"{_ACTOR}.data_loader_seed",
        f"{_ACTOR}.use_fused_kernels",
        f"{_ACTOR}.pad_to_length",
    ),
    renamed_row(f"{_ACTOR}.use_remove_padding", "trainer.use_remove_padding", convert=identity),
    renamed_row(
        f"{_ACTOR}.megatron.use_remove_padding", "trainer.use_remove_padding", convert=identity
    ),
    combined_row(
        f"{_ACTOR}.router_replay.mode",
        "algorithm.enable_router_replay",
        "`R3` is true, `disabled` false; there is no `R2`",
    ),
    *missing_rows(
        "there is no such back end: FSDP2 trains",
        f"{_ACTOR}.veomni.*",
        f"{_ACTOR}.torchtitan.*",
        f"{_ACTOR}.engine.*",
        f"{_ACTOR}.model_engine",
    ),
    *missing_rows(
        "there is no such option",
        f"{_ACTOR}.freeze_vision_tower",
        f"{_ACTOR}.router_replay.*",
        f"{_ACTOR}.use_prefix_grouper",
    ),
)

_REF_ROWS: tuple[KeyRow, ...] = (
    *trainer_config_rows(
        f"{_REF}.fsdp_config.*",
        f"{_REF}.log_prob_micro_batch_size_per_gpu",
        f"{_REF}.log_prob_micro_batch_size",
        f"{_REF}.use_torch_compile",
        f"{_REF}.entropy_from_logits_with_chunking",
        f"{_REF}.entropy_checkpointing",
    ),
    *not_needed_rows(
        _SAME_AS_ACTOR,
        f"{_REF}.strategy",
        f"{_REF}.log_prob_use_dynamic_bsz",
        f"{_REF}.log_prob_max_token_len_per_gpu",
        f"{_REF}.ulysses_sequence_parallel_size",
        f"{_REF}.megatron.*",
        f"{_REF}.veomni.*",
        f"{_REF}.torchtitan.*",
        f"{_REF}.router_replay.*",
    ),
    *missing_rows("the reference is the model that the stage starts from", f"{_REF}.model.*"),
)

ROWS: tuple[KeyRow, ...] = (
    *_MODEL_ROWS,
    *_ACTOR_ROWS,
    *_REF_ROWS,
    *not_needed_rows("services find one another without it", "actor_rollout_ref.nccl_timeout"),
    *not_needed_rows("rollout has GPUs of its own here", "actor_rollout_ref.hybrid_engine"),
)
