"""The configuration of veRL's trainer for supervised fine-tuning."""

from trinity.verl.row import KeyRow, combined, missing, moved, needless
from trinity.verl.values import as_list, as_scheduler, as_target_modules, same

_BUFFER = "buffer.trainer_input.experience_buffer"
_OPTIMIZER = "algorithm.optimizer"
_MICRO = "trainer.trainer_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"

ROWS: tuple[KeyRow, ...] = (
    combined("data.train_files", f"{_BUFFER}.path", "`dir/train.parquet` is a directory's split"),
    combined("data.train_batch_size", "buffer.train_batch_size", "rows of one train step"),
    combined("data.messages_key", f"{_BUFFER}.format.messages_key", "with `prompt_type: messages`"),
    combined("data.multiturn.messages_key", f"{_BUFFER}.format.messages_key", "the older name"),
    combined("data.multiturn.enable", f"{_BUFFER}.format.prompt_type", "`True` is `messages`"),
    combined("data.prompt_key", f"{_BUFFER}.format.prompt_key", "with `prompt_type: plaintext`"),
    combined("data.response_key", f"{_BUFFER}.format.response_key", "likewise"),
    combined("data.max_length", "model.max_model_len", ""),
    moved("data.use_dynamic_bsz", "trainer.use_dynamic_bsz"),
    moved("data.max_token_len_per_gpu", "trainer.max_token_len_per_gpu"),
    moved("data.micro_batch_size_per_gpu", _MICRO),
    moved("data.micro_batch_size", _MICRO, convert=same),
    combined("model.path", "model.model_path", ""),
    combined("model.partial_pretrain", "model.model_path", "the older name"),
    moved("model.trust_remote_code", "model.trust_remote_code"),
    moved("model.use_remove_padding", "trainer.use_remove_padding"),
    moved("use_remove_padding", "trainer.use_remove_padding", convert=same),
    moved("engine.use_remove_padding", "trainer.use_remove_padding", convert=same),
    combined("model.lora_rank", "model.lora_configs[0].lora_rank", "0 is no LoRA"),
    moved("model.lora_alpha", "model.lora_configs[0].lora_alpha"),
    moved(
        "model.target_modules", "model.lora_configs[0].target_modules", convert=as_target_modules
    ),
    *(
        moved(f"optim.{name}", f"{_OPTIMIZER}.{name}")
        for name in (
            "lr",
            "weight_decay",
            "lr_warmup_steps",
            "lr_warmup_steps_ratio",
            "min_lr_ratio",
            "lr_scheduler_type",
        )
    ),
    moved("optim.betas", f"{_OPTIMIZER}.betas", convert=as_list, back=same),
    *(
        moved(f"optim.{name}", f"{_OPTIMIZER}.lr_scheduler_type", convert=as_scheduler)
        for name in ("warmup_style", "lr_decay_style")
    ),
    combined("optim.lr_scheduler", f"{_OPTIMIZER}.lr_scheduler_type", "of `fsdp_sft_trainer`"),
    moved("optim.clip_grad", "trainer.grad_clip"),
    moved("ulysses_sequence_parallel_size", "trainer.ulysses_sequence_parallel_size", convert=same),
    moved("engine.ulysses_sequence_parallel_size", "trainer.ulysses_sequence_parallel_size"),
    *(
        moved(f"engine.{name}", f"trainer.megatron.{name}")
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "virtual_pipeline_model_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
        )
    ),
    combined("torchrun.nproc_per_node", "cluster.gpu_per_node", "processes of torchrun"),
    combined("torchrun.nnodes", "cluster.node_num", "likewise"),
    combined("trainer.total_training_steps", "trainer.total_steps", "else `total_epochs`"),
    combined("engine", "trainer.trainer_strategy", "`megatron` is Megatron, all others are FSDP2"),
    *needless("nothing more to convert", "optim", "model", "trainer.device"),
    *needless(
        "rows are right-padded or packed, whatever is faster on the machine",
        "data.pad_mode",
        "data.ignore_input_ids_mismatch",
        "data.truncation",
        "data.num_workers",
        "data.balance_dp_token",
    ),
    *needless("a checkpoint is always whole", "checkpoint.*", "trainer.checkpoint.*"),
    *needless(
        "FSDP2 shards over all ranks", "engine.fsdp_size", "engine.strategy", "model.strategy"
    ),
    moved("trainer.seed", "seed"),
    *missing(
        "`mode: train` evaluates nothing: evaluate checkpoints afterwards",
        "data.val_files",
        "trainer.test_freq",
        "data.val_batch_size",
        "data.val_max_samples",
    ),
    *missing(
        "columns within a column: write rows with columns of their own, or messages",
        "data.prompt_dict_keys",
        "data.response_dict_keys",
    ),
    *missing("write messages with their tools into the rows", "data.multiturn.*", "data.tools_key"),
    *missing("the optimizer is AdamW with the options of `algorithm.optimizer`", "optim.*"),
    *missing("there is no such option of the back end", "engine.*", "model.*"),
    *missing("cut the file beforehand, or give `trainer.total_steps`", "data.train_max_samples"),
    *missing("write rows that sft reads", "data.custom_cls.*"),
)
