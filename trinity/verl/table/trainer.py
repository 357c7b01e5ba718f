"""Section `trainer` and those that veRL's launcher reads."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
)
from trinity.verl.values import (
    as_resume_mode,
    as_segment,
    identity,
    is_not_disabled,
)

ROWS: tuple[KeyRow, ...] = (
    combined_row("trainer.logger", "monitor.monitor_type", "the one that is not `console`"),
    renamed_row(
        "trainer.project_name", "project", "as part of a path", convert=as_segment, inverse=identity
    ),
    renamed_row(
        "trainer.experiment_name", "name", "as part of a path", convert=as_segment, inverse=identity
    ),
    combined_row(
        "trainer.default_local_dir",
        "checkpoint_root_dir",
        "files go to `<checkpoint_root_dir>/<project>/<name>`",
    ),
    combined_row(
        "trainer.n_gpus_per_node", "cluster.gpu_per_node", "rollout and training divide them"
    ),
    combined_row("trainer.nnodes", "cluster.node_num", "rollout and training divide them"),
    combined_row(
        "trainer.save_freq",
        "trainer.save_interval",
        "the same number, as in the guide; -1 is 0: the end is always saved",
    ),
    combined_row(
        "trainer.test_freq",
        "explorer.eval_interval",
        "the same number, as in the guide; -1 is never",
    ),
    renamed_row("trainer.total_epochs", "buffer.total_epochs"),
    combined_row(
        "trainer.total_training_steps",
        "buffer.total_steps, trainer.total_steps",
        "times `sync_interval`, since veRL counts `data.train_batch_size` as one step",
    ),
    renamed_row("trainer.critic_warmup", "trainer.critic_warmup", "times `sync_interval`"),
    renamed_row("trainer.val_before_train", "explorer.eval_on_startup"),
    renamed_row(
        "trainer.resume_mode",
        "continue_from_checkpoint",
        "`disable` is false",
        convert=is_not_disabled,
        inverse=as_resume_mode,
    ),
    combined_row(
        "trainer.resume_from_path",
        "trainer.resume_mode, trainer.resume_from_path",
        "with `resume_mode` `resume_path`: weights and optimizer of `global_step_<N>`; train steps "
        "count from 1",
    ),
    renamed_row("trainer.balance_batch", "trainer.balance_batch"),
    renamed_row("trainer.max_actor_ckpt_to_keep", "trainer.max_checkpoints_to_keep"),
    renamed_row("trainer.max_ckpt_to_keep", "trainer.max_checkpoints_to_keep", convert=identity),
    *not_needed_rows(
        "kept with the actor's (`trainer.max_checkpoints_to_keep`)",
        "trainer.max_critic_ckpt_to_keep",
    ),
    *not_needed_rows(
        "samples of rollouts are shown in `summary.json`",
        "trainer.log_val_generations",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
    ),
    *left_out_rows(
        "metrics and samples are shown below `checkpoint_root_dir` and by the monitor",
        "trainer.tensorboard_dir",
        "trainer.rl_logging_board_dir",
        "trainer.log_freq",
    ),
    *not_needed_rows("the machine's accelerator is used", "trainer.device"),
    *not_needed_rows(
        "there is no Ray here",
        "ray_kwargs.*",
        "ray_init.*",
        "trainer.ray_wait_register_center_timeout",
        "trainer.use_legacy_worker_impl",
        "trainer.use_v1",
        "transfer_queue.*",
    ),
    *left_out_rows(
        "rollout has separate GPUs here",
        "trainer.v1.separate_async.hybrid_rollout.*",
        "trainer.v1.separate_async.num_warmup_batches",
        "trainer.v1.colocate_async.num_warmup_batches",
    ),
    *missing_rows("write it as an operator of your own, see docs/operators.md", "trainer.v1.*"),
    combined_row("trainer.val_only", "mode", "`True` is `bench`"),
    *left_out_rows(
        "profile with the services' own tools",
        "global_profiler.*",
        "*.profiler.*",
        "trainer.profile_steps",
        "trainer.profile_interval",
        "trainer.npu_profile.*",
    ),
    *missing_rows("rollouts cannot be skipped or dumped", "skip.*"),
    *left_out_rows(
        "checkpoints are written below `checkpoint_root_dir` alone: have HDFS mounted there",
        "trainer.default_hdfs_dir",
    ),
    *left_out_rows(
        "`trainer.max_checkpoints_to_keep` says which checkpoints stay",
        "trainer.del_local_ckpt_after_load",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.esi_redundant_time",
    ),
    combined_row(
        "async_training.staleness_threshold",
        "explorer.max_inflight_batches, synchronizer.sync_style, synchronizer.sync_offset",
        "a share of `sync_interval`; the offset without `partial_rollout`",
    ),
    combined_row(
        "async_training.partial_rollout",
        "synchronizer.weight_update",
        "`True` is `keep`",
    ),
    combined_row(
        "async_training.trigger_parameter_sync_step",
        "synchronizer.sync_interval",
        "times `require_batches`",
    ),
    combined_row(
        "async_training.require_batches", "synchronizer.sync_interval", "mini-batches of a step"
    ),
    combined_row(
        "rollout.total_rollout_steps",
        "buffer.total_steps, trainer.total_steps",
        "tasks, over `buffer.batch_size`",
    ),
    combined_row(
        "rollout.total_epochs",
        "buffer.total_epochs",
        "unless `rollout.total_rollout_steps` decides",
    ),
    combined_row(
        "rollout.test_freq",
        "explorer.eval_interval",
        "versions, times `synchronizer.sync_interval`",
    ),
    combined_row(
        "async_training.use_rollout_log_probs", "algorithm.bypass_old_logprobs", "the older name"
    ),
    combined_row("rollout.nnodes", "explorer.rollout_model.engine_num", "with `n_gpus_per_node`"),
    combined_row("rollout.n_gpus_per_node", "explorer.rollout_model.engine_num", "with `nnodes`"),
    combined_row("trainer.v1.trainer_mode", "synchronizer.sync_offset", "`sync` is 0"),
    combined_row(
        "trainer.v1.separate_async.parameter_sync_step",
        "synchronizer.sync_interval",
        "it is `train_batch_size / ppo_mini_batch_size` in veRL, too",
    ),
    combined_row(
        "trainer.v1.sampler.max_off_policy_threshold",
        "algorithm.sample_strategy, algorithm.sample_strategy_args.max_staleness",
        "versions, times `sync_interval`, less one",
    ),
    combined_row(
        "trainer.v1.sampler.max_off_policy_strategy", "algorithm.sample_strategy", "`drop`"
    ),
    *not_needed_rows(
        "set by the keys of `actor_rollout_ref.rollout` in this script, too",
        "rollout.n",
        "rollout.temperature",
        "rollout.top_p",
        "rollout.top_k",
        "rollout.prompt_length",
        "rollout.response_length",
        "rollout.gpu_memory_utilization",
        "rollout.tensor_model_parallel_size",
        "rollout.max_num_batched_tokens",
    ),
    *missing_rows(
        "rollout that runs ahead is `synchronizer.sync_offset` and `sync_interval`: set the two",
        "async_training.*",
        "rollout.*",
    ),
    combined_row(
        "distillation.enabled",
        "algorithm.algorithm_type",
        "`True` is `on_policy_distill`, or `grpo_distill`",
    ),
    combined_row(
        "distillation.teacher_models.*",
        "explorer.auxiliary_models, algorithm.distillation.model_path",
        "several have the rows of their `key`; in the trainer, one, for `forward_kl_topk`",
    ),
    combined_row("distillation.nnodes", "explorer.auxiliary_models[0].engine_num", "its own GPUs"),
    combined_row(
        "distillation.n_gpus_per_node", "explorer.auxiliary_models[0].engine_num", "likewise"
    ),
    combined_row("distillation.distillation_loss.loss_mode", "algorithm.advantage_fn", "`k1`"),
    combined_row(
        "distillation.distillation_loss.distillation_loss_coef",
        "algorithm.advantage_fn_args.kl_coef",
        "",
    ),
    combined_row(
        "distillation.distillation_loss.loss_max_clamp",
        "algorithm.advantage_fn_args.max_gap",
        "",
    ),
    *missing_rows(
        "distillation here is `algorithm_type: on_policy_distill`, by the policy gradient: see "
        "docs/algorithms.md",
        "distillation.*",
    ),
    combined_row(
        "hydra.config_name", "trainer.trainer_strategy", "FSDP2 trains, whatever the name is"
    ),
    combined_row("model_engine", "trainer.trainer_strategy", "FSDP2 trains, whatever it is"),
    combined_row("actor@actor_rollout_ref.actor", "trainer.trainer_strategy", "likewise"),
    combined_row("program", "", "additions of a program outside of veRL are not converted"),
    *not_needed_rows(
        "it says where Hydra looks for files",
        "hydra.config_path",
        "hydra.config_dir",
        "hydra.searchpath",
    ),
    *missing_rows("files found there are not read: give them in front of the script", "hydra.*"),
)
