"""Sections `critic`, `reward_model`, `reward` and `custom_reward_function`."""

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
from trinity.verl.values import as_list, as_optimizer, as_torch_optimizer, identity

_OURS = "trainer.critic"
_AUXILIARY = "explorer.auxiliary_models[0]"
_REWARD = "write it as a reward and name it in `buffer.explorer_input.default_reward_fn_type`"

ROWS: tuple[KeyRow, ...] = (
    combined_row("critic.enable", "algorithm.algorithm_type", "the advantage decides it"),
    renamed_row("critic.model.path", "model.critic_model_path", "else `model.model_path`"),
    *(
        renamed_row(f"critic.optim.{name}", f"{_OURS}.optimizer.{name}")
        for name in (
            "lr",
            "weight_decay",
            "lr_warmup_steps",
            "lr_warmup_steps_ratio",
            "lr_warmup_init",
            "min_lr_ratio",
            "lr_scheduler_type",
            "lr_wsd_decay_steps",
            "lr_wsd_decay_style",
        )
    ),
    renamed_row(
        "critic.optim.warmup_style", f"{_OURS}.optimizer.lr_scheduler_type", convert=identity
    ),
    renamed_row(
        "critic.optim.lr_decay_style", f"{_OURS}.optimizer.lr_scheduler_type", convert=identity
    ),
    renamed_row("critic.optim.clip_grad", f"{_OURS}.grad_clip", convert=identity),
    renamed_row(
        "critic.optim.betas", f"{_OURS}.optimizer.betas", convert=as_list, inverse=identity
    ),
    renamed_row(
        "critic.optim.optimizer",
        f"{_OURS}.optimizer.optimizer_type",
        convert=as_optimizer,
        inverse=as_torch_optimizer,
    ),
    renamed_row("critic.ppo_epochs", f"{_OURS}.ppo_epochs", "passes over a batch"),
    renamed_row("critic.grad_clip", f"{_OURS}.grad_clip"),
    renamed_row("critic.cliprange_value", f"{_OURS}.cliprange_value"),
    renamed_row("critic.loss_agg_mode", f"{_OURS}.loss_agg_mode"),
    *trainer_config_rows(
        "critic.ppo_micro_batch_size_per_gpu",
        "critic.forward_micro_batch_size_per_gpu",
        "critic.model.use_remove_padding",
        "critic.model.enable_gradient_checkpointing",
        "critic.fsdp_config.*",
        "critic.model.fsdp_config.*",
        "critic.model.override_config.*",
        "critic.model.external_lib",
        "critic.fsdp.*",
        "critic.checkpoint.*",
        "critic.ppo_max_token_len_per_gpu",
        "critic.forward_max_token_len_per_gpu",
    ),
    *left_out_rows(
        "gradients are moved with the weights and the optimizer",
        "critic.fsdp_config.grad_offload",
        "critic.model.fsdp_config.grad_offload",
    ),
    *left_out_rows(
        "it affects memory and time only: `critic.ppo_micro_batch_size_per_gpu` is for each rank",
        "critic.ppo_micro_batch_size",
        "critic.forward_micro_batch_size",
    ),
    *not_needed_rows("`actor_rollout_ref.rollout.n` says it", "critic.rollout_n"),
    *not_needed_rows(
        "the critic is sharded like the actor",
        "critic.strategy",
        "critic.use_dynamic_bsz",
        "critic.ulysses_sequence_parallel_size",
        "critic.model.trust_remote_code",
        "critic.shuffle",
    ),
    combined_row(
        "critic.ppo_mini_batch_size",
        "buffer.batch_size",
        "the critic trains on the actor's batches",
    ),
    *missing_rows(
        "a schedule ends with the run",
        "critic.optim.total_training_steps",
        "critic.optim.lr_decay_steps",
        neutral=(-1,),
    ),
    *optimizer_rows("critic.optim", f"{_OURS}.optimizer"),
    *missing_rows("the optimizer has the options of `trainer.critic`", "critic.optim.*"),
    *missing_rows("there is no such option of the critic", "critic.model.*"),
    combined_row("reward_model.enable", "explorer.auxiliary_models", "`True` makes one"),
    combined_row("reward_model.model.path", f"{_AUXILIARY}.model_path", ""),
    combined_row(
        "reward_model.rollout.tensor_model_parallel_size", f"{_AUXILIARY}.tensor_parallel_size", ""
    ),
    combined_row(
        "reward_model.rollout.gpu_memory_utilization", f"{_AUXILIARY}.gpu_memory_utilization", ""
    ),
    combined_row("reward_model.rollout.prompt_length", f"{_AUXILIARY}.max_prompt_tokens", ""),
    combined_row("reward_model.rollout.response_length", f"{_AUXILIARY}.max_response_tokens", ""),
    combined_row("reward.reward_model.*", "explorer.auxiliary_models", "as `reward_model.*`"),
    combined_row("reward_model.rollout.name", f"{_AUXILIARY}.engine_type", ""),
    *not_needed_rows(
        "an engine runs the reward model and batches its rows",
        "reward_model.model.use_remove_padding",
        "reward_model.model.fsdp_config.*",
        "reward_model.micro_batch_size_per_gpu",
        "reward_model.micro_batch_size",
        "reward_model.ulysses_sequence_parallel_size",
        "reward_model.megatron.*",
        "reward_model.param_offload",
        "reward_model.enable_resource_pool",
        "reward_model.strategy",
        "reward_model.model.input_tokenizer",
        "reward_model.use_dynamic_bsz",
        "reward_model.forward_max_token_len_per_gpu",
        "reward_model.model.trust_remote_code",
        "reward_model.rollout.*",
        "reward_model.n_gpus_per_node",
        "reward_model.nnodes",
        "reward_model.use_reward_loop",
    ),
    *not_needed_rows(
        "rewards are computed with each run",
        "reward_model.num_workers",
        "reward.num_workers",
        "reward_model.launch_reward_fn_async",
    ),
    *missing_rows(
        "veRL's reward manager: " + _REWARD,
        "reward_model.reward_manager",
        "reward.reward_manager.*",
        "reward_model.reward_loop_*",
    ),
    *missing_rows(
        "a penalty of overlong answers: " + _REWARD,
        "reward_model.reward_kwargs.*",
        "reward.reward_kwargs.*",
        "reward_model.overlong_buffer.*",
    ),
    *missing_rows(
        "your own reward function: " + _REWARD + "; --plugin-dir finds its file",
        "custom_reward_function.*",
        "reward.custom_reward_function.*",
    ),
    *missing_rows(
        "a sandbox is called from a reward of your own",
        "reward_model.sandbox_fusion.*",
        "reward.sandbox_fusion.*",
    ),
)
