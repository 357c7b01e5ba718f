"""Sections `actor_rollout_ref.model`, `.actor` and `.ref`."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
    trainer_config_rows,
)
from trinity.verl.table.optimizers import optimizer_rows
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
_FAST = (
    "use_torch_compile",
    "reshard_after_forward",
    "use_orig_params",
    "entropy_from_logits_chunk_size",
    "pad_to_length",
    "pad_to_length_bucket",
)
"""Names below the actor, the reference and their back end; each changes memory and time alone."""
MTP = (
    "multi-token prediction layers are not trained here and the others do not need them: give "
    "`enable_train=False`; to draft with them in rollout, give vLLM's `speculative_config` in "
    "`explorer.rollout_model.extra_engine_args`"
)
QAT = (
    "quantisation-aware training is not supported: leave it out, and quantise the trained weights "
    "afterwards"
)
_IN_BACK_END = ("entropy_checkpointing", "entropy_from_logits_with_chunking")
_SAME_AS_ACTOR = "the reference is sharded like the actor"

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
        f"{_MODEL}.use_fused_kernels",
        f"{_MODEL}.fused_kernel_options.*",
        f"{_MODEL}.override_config.*",
        f"{_MODEL}.external_lib",
    ),
    *not_needed_rows("the model is read from its directory", f"{_MODEL}.use_shm"),
    *left_out_rows(
        "it affects memory and time only",
        f"{_MODEL}.enable_activation_offload",
        f"{_MODEL}.use_liger",
        f"{_MODEL}.tiled_mlp.*",
    ),
    *not_needed_rows(
        "veRL does not read it: `fsdp_config` has the type of weights and passes",
        f"{_MODEL}.torch_dtype",
    ),
    *missing_rows(
        "the tokenizer and the configuration are those of `model.model_path`",
        f"{_MODEL}.tokenizer_path",
        f"{_MODEL}.hf_config_path",
    ),
    *missing_rows(MTP, f"{_MODEL}.mtp.enable", neutral=(False,)),
    *missing_rows(MTP, f"{_MODEL}.mtp.*"),
    *not_needed_rows(
        "engines always load the adapter merged into the weights", f"{_MODEL}.lora.merge"
    ),
    *missing_rows(
        "adapters are initialized as in peft",
        f"{_MODEL}.lora.lora_A_init_method",
        neutral=("kaiming",),
    ),
    *missing_rows(
        "adapters are initialized as in peft",
        f"{_MODEL}.lora.lora_B_init_method",
        neutral=("zero",),
    ),
    *missing_rows("an adapter's layers have no dropout", f"{_MODEL}.lora.dropout", neutral=(0,)),
    *missing_rows("there is no such option of LoRA", f"{_MODEL}.lora.*"),
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
    *missing_rows(
        "a schedule ends with the run",
        f"{_ACTOR}.optim.total_training_steps",
        f"{_ACTOR}.optim.lr_decay_steps",
        neutral=(-1,),
    ),
    *(
        missing_rows(
            "the optimizer is PyTorch's own",
            f"{_ACTOR}.optim.optimizer_impl",
            neutral=("torch.optim",),
        )
    ),
    *missing_rows(
        "the cosine schedule is always half a period", f"{_ACTOR}.optim.num_cycles", neutral=(0.5,)
    ),
    renamed_row(f"{_ACTOR}.optim.lr_warmup_init", "algorithm.optimizer.lr_warmup_init"),
    *missing_rows(
        "weight decay stays as it is",
        f"{_ACTOR}.optim.weight_decay_incr_style",
        neutral=("constant",),
    ),
    combined_row(
        f"{_ACTOR}.optim.min_lr", "algorithm.optimizer.min_lr_ratio", "Megatron's, over `lr`"
    ),
    *optimizer_rows(f"{_ACTOR}.optim", "algorithm.optimizer"),
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
        "passes over a batch, which is a veRL mini-batch; the critic's default too",
    ),
    combined_row(
        f"{_ACTOR}.shuffle", "", "all rows of a step are summed up, so their order does not matter"
    ),
    *trainer_config_rows(
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
        f"{_ACTOR}.ppo_micro_batch_size",
        f"{_ACTOR}.fsdp_config.*",
        f"{_ACTOR}.checkpoint.*",
        f"{_ACTOR}.entropy_from_logits_with_chunking",
        f"{_ACTOR}.entropy_checkpointing",
        f"{_ACTOR}.use_fused_kernels",
    ),
    renamed_row(f"{_ACTOR}.use_remove_padding", "trainer.use_remove_padding", convert=identity),
    renamed_row(f"{_ACTOR}.use_prefix_grouper", "trainer.use_prefix_grouper"),
    renamed_row(f"{_ACTOR}.fsdp_config.use_prefix_grouper", "trainer.use_prefix_grouper"),
    combined_row(
        f"{_ACTOR}.router_replay.mode",
        "algorithm.enable_router_replay",
        "`R2` and `R3` are true, both repeat the engine's experts",
    ),
    *missing_rows(
        "there is no such option",
        f"{_ACTOR}.router_replay.*",
    ),
    *missing_rows(
        QAT,
        f"{_ACTOR}.qat.*",
        f"{_ACTOR}.fsdp_config.qat.*",
        f"{_ACTOR}.megatron.qat.*",
    ),
    renamed_row(f"{_ACTOR}.freeze_vision_tower", "trainer.freeze_vision_tower"),
    renamed_row(
        f"{_ACTOR}.loss_scale_factor",
        "algorithm.loss_scale_factor",
        "else `model.max_response_tokens`, as veRL's is by default",
    ),
    *left_out_rows("entropy is a metric of every step here", f"{_ACTOR}.calculate_entropy"),
    *not_needed_rows("the advantage declares its inputs", f"{_ACTOR}.calculate_sum_pi_squared"),
    *left_out_rows(
        "it affects memory and time only",
        *(
            f"{section}.{name}"
            for section in (f"{_ACTOR}.fsdp_config", f"{_REF}.fsdp_config", _ACTOR, _REF)
            for name in _FAST
        ),
        *(f"{section}.fsdp_config.{name}" for section in (_ACTOR, _REF) for name in _IN_BACK_END),
        f"{_ACTOR}.fsdp_config.mixed_precision.buffer_dtype",
    ),
    *left_out_rows(
        "gradients are moved with the weights and the optimizer",
        f"{_ACTOR}.fsdp_config.grad_offload",
        f"{_REF}.fsdp_config.grad_offload",
    ),
    *not_needed_rows("`actor_rollout_ref.rollout.n` says it", f"{_ACTOR}.rollout_n"),
    combined_row(
        f"{_ACTOR}.fsdp_config.mixed_precision.reduce_dtype", "", "gradients are summed in float32"
    ),
    *missing_rows(
        "randomness follows the experiment's `seed`",
        f"{_ACTOR}.fsdp_config.seed",
        f"{_ACTOR}.data_loader_seed",
        neutral=(42,),
    ),
    combined_row(f"{_ACTOR}.fsdp_config.strategy", "trainer.trainer_strategy", "all are `fsdp2`"),
    combined_row(
        f"{_ACTOR}.fsdp_config.dtype", "trainer.dtype", "`bfloat16`, `float16` or `float32`"
    ),
    combined_row(f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype", "trainer.dtype", "likewise"),
    combined_row(
        f"{_ACTOR}.fsdp_config.model_dtype", "trainer.dtype", "weights are kept in float32"
    ),
)

_REF_ROWS: tuple[KeyRow, ...] = (
    *not_needed_rows(
        _SAME_AS_ACTOR,
        f"{_REF}.fsdp_config.ulysses_sequence_parallel_size",
        f"{_REF}.fsdp_config.model_dtype",
        f"{_REF}.fsdp_config.dtype",
        f"{_REF}.fsdp_config.strategy",
        f"{_REF}.fsdp_config.mixed_precision.*",
        f"{_REF}.use_remove_padding",
        f"{_REF}.use_prefix_grouper",
        f"{_REF}.fsdp_config.use_prefix_grouper",
    ),
    *trainer_config_rows(
        f"{_REF}.fsdp_config.*",
        f"{_REF}.log_prob_max_token_len_per_gpu",
        f"{_REF}.log_prob_micro_batch_size_per_gpu",
        f"{_REF}.log_prob_micro_batch_size",
        f"{_REF}.entropy_from_logits_with_chunking",
        f"{_REF}.entropy_checkpointing",
    ),
    *not_needed_rows(
        _SAME_AS_ACTOR,
        f"{_REF}.strategy",
        f"{_REF}.log_prob_use_dynamic_bsz",
        f"{_REF}.ulysses_sequence_parallel_size",
        f"{_REF}.rollout_n",
        f"{_REF}.router_replay.*",
    ),
    *missing_rows("the reference is the model that the stage starts from", f"{_REF}.model.*"),
)

ROWS: tuple[KeyRow, ...] = (
    *_MODEL_ROWS,
    *_ACTOR_ROWS,
    *_REF_ROWS,
    *not_needed_rows("services find one another without it", "actor_rollout_ref.nccl_timeout"),
    *not_needed_rows(
        "on one GPU rollout and training take turns (`mode: colocate`), else each has its own",
        "actor_rollout_ref.hybrid_engine",
    ),
)
