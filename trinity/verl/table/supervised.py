"""The configuration of the SFT trainer in veRL."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
)
from trinity.verl.table.data import TEMPLATE_ROWS
from trinity.verl.table.optimizers import optimizer_rows
from trinity.verl.values import (
    as_list,
    as_optimizer,
    as_scheduler,
    as_target_modules,
    as_torch_optimizer,
    identity,
)

_BUFFER = "buffer.trainer_input.experience_buffer"
_OPTIMIZER = "algorithm.optimizer"
_MICRO = "trainer.ppo_micro_batch_size_per_gpu"

ROWS: tuple[KeyRow, ...] = (
    combined_row("data.train_files", f"{_BUFFER}.path", "that file alone"),
    combined_row("data.train_batch_size", "buffer.train_batch_size", "rows of one train step"),
    combined_row(
        "data.messages_key", f"{_BUFFER}.format.messages_key", "with `prompt_type: messages`"
    ),
    combined_row("data.multiturn.messages_key", f"{_BUFFER}.format.messages_key", "the older name"),
    combined_row("data.multiturn.enable", f"{_BUFFER}.format.prompt_type", "`True` is `messages`"),
    combined_row(
        "data.prompt_key", f"{_BUFFER}.format.prompt_key", "with `prompt_type: plaintext`"
    ),
    combined_row("data.response_key", f"{_BUFFER}.format.response_key", "likewise"),
    combined_row("data.max_length", "model.max_model_len", ""),
    renamed_row("data.use_dynamic_bsz", "trainer.use_dynamic_bsz"),
    renamed_row("data.max_token_len_per_gpu", "trainer.max_token_len_per_gpu"),
    renamed_row("data.micro_batch_size_per_gpu", _MICRO),
    renamed_row("data.micro_batch_size", _MICRO, convert=identity),
    *TEMPLATE_ROWS,
    combined_row("model.path", "model.model_path", ""),
    combined_row("model.partial_pretrain", "model.model_path", "the older name"),
    renamed_row("model.trust_remote_code", "model.trust_remote_code"),
    renamed_row("model.use_remove_padding", "trainer.use_remove_padding"),
    renamed_row("use_remove_padding", "trainer.use_remove_padding", convert=identity),
    renamed_row("engine.use_remove_padding", "trainer.use_remove_padding", convert=identity),
    combined_row("model.lora_rank", "model.lora_configs[0].lora_rank", "0 is no LoRA"),
    renamed_row("model.lora_alpha", "model.lora_configs[0].lora_alpha"),
    renamed_row(
        "model.target_modules", "model.lora_configs[0].target_modules", convert=as_target_modules
    ),
    *(
        renamed_row(f"optim.{name}", f"{_OPTIMIZER}.{name}")
        for name in (
            "lr",
            "weight_decay",
            "lr_warmup_steps",
            "lr_warmup_steps_ratio",
            "lr_warmup_init",
            "min_lr_ratio",
            "lr_scheduler_type",
        )
    ),
    combined_row(
        "optim.warmup_steps_ratio", f"{_OPTIMIZER}.lr_warmup_steps_ratio", "the older name"
    ),
    renamed_row("optim.betas", f"{_OPTIMIZER}.betas", convert=as_list, inverse=identity),
    *(
        renamed_row(f"optim.{name}", f"{_OPTIMIZER}.lr_scheduler_type", convert=as_scheduler)
        for name in ("warmup_style", "lr_decay_style")
    ),
    renamed_row(
        "optim.optimizer",
        f"{_OPTIMIZER}.optimizer_type",
        "`AdamW`, `FusedAdam` or `SGD`",
        convert=as_optimizer,
        inverse=as_torch_optimizer,
    ),
    combined_row("optim.min_lr", f"{_OPTIMIZER}.min_lr_ratio", "Megatron's, over `lr`"),
    combined_row("optim.lr_scheduler", f"{_OPTIMIZER}.lr_scheduler_type", "of `fsdp_sft_trainer`"),
    renamed_row("optim.clip_grad", "trainer.grad_clip"),
    renamed_row(
        "ulysses_sequence_parallel_size", "trainer.ulysses_sequence_parallel_size", convert=identity
    ),
    combined_row("torchrun.nproc_per_node", "cluster.gpu_per_node", "processes of torchrun"),
    combined_row("torchrun.nnodes", "cluster.node_num", "likewise"),
    combined_row("trainer.total_training_steps", "trainer.total_steps", "else `total_epochs`"),
    combined_row("engine", "trainer.trainer_strategy", "FSDP2 trains, whatever it is"),
    combined_row("engine.strategy", "trainer.trainer_strategy", "likewise"),
    combined_row("engine.distributed_strategy", "trainer.trainer_strategy", "likewise"),
    combined_row("model.strategy", "trainer.trainer_strategy", "likewise"),
    combined_row("engine.model_dtype", "trainer.dtype", "weights are kept in float32"),
    *not_needed_rows("its values are converted", "optim", "model", "trainer.device"),
    *not_needed_rows(
        "rows are right-padded or packed, whatever is faster on the machine",
        "data.pad_mode",
        "data.ignore_input_ids_mismatch",
        "data.num_workers",
        "data.balance_dp_token",
    ),
    renamed_row("checkpoint.save_contents", "trainer.save_contents", convert=identity),
    renamed_row("checkpoint.load_contents", "trainer.load_contents", convert=identity),
    *not_needed_rows("the formats of checkpoints are ours", "checkpoint.*", "trainer.checkpoint.*"),
    renamed_row("engine.fsdp_size", "trainer.fsdp_size"),
    *missing_rows(
        "a row that is too long is cut at its end: cut it in the file",
        "data.truncation",
        neutral=("right", "error"),
    ),
    renamed_row("trainer.seed", "seed"),
    combined_row("trainer.save_freq", "trainer.save_interval", "-1 is 0: the end is always saved"),
    *left_out_rows(
        "`mode: train` does not evaluate: evaluate checkpoints afterwards, in `mode: bench`",
        "data.val_files",
        "trainer.test_freq",
        "trainer.validate_before_training",
        "data.val_batch_size",
        "data.val_max_samples",
    ),
    combined_row(
        "data.prompt_dict_keys", f"{_BUFFER}.format.prompt_key", "as `extra_info.question`"
    ),
    combined_row("data.response_dict_keys", f"{_BUFFER}.format.response_key", "likewise"),
    renamed_row("data.tools_key", f"{_BUFFER}.format.tools_key"),
    renamed_row("data.multiturn.tools_key", f"{_BUFFER}.format.tools_key"),
    *missing_rows("write messages with their tools into the rows", "data.multiturn.*"),
    *missing_rows(
        "the optimizer is PyTorch's own",
        "optim.optimizer_impl",
        neutral=("torch.optim", "transformer_engine.pytorch.optimizers.fused_adam"),
    ),
    *optimizer_rows("optim", _OPTIMIZER),
    *left_out_rows(
        "it affects memory and time only",
        "engine.use_torch_compile",
        "engine.activation_checkpointing",
        "engine.reshard_after_forward",
        "model.use_liger",
        "model.tiled_mlp.*",
        "model.enable_activation_offload",
    ),
    renamed_row("model.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing"),
    *missing_rows("the optimizer is AdamW with the options of `algorithm.optimizer`", "optim.*"),
    *missing_rows("there is no such option of the back end", "engine.*", "model.*"),
    *missing_rows(
        "cut the file beforehand, or give `trainer.total_steps`",
        "data.train_max_samples",
        neutral=(-1,),
    ),
    *missing_rows("write rows that sft reads", "data.custom_cls.*"),
)
