"""Section `trainer` and those that veRL's launcher reads."""

from trinity.verl.row import KeyRow, combined_row, missing_rows, not_needed_rows, renamed_row
from trinity.verl.values import (
    as_resume_mode,
    as_segment,
    identity,
    is_not_disabled,
    negative_to_zero,
    zero_to_negative,
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
    renamed_row(
        "trainer.save_freq",
        "trainer.save_interval",
        "-1 is 0: the end is always saved",
        convert=negative_to_zero,
        inverse=zero_to_negative,
    ),
    combined_row("trainer.test_freq", "explorer.eval_interval", "-1 is never"),
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
    *not_needed_rows("the machine's accelerator is used", "trainer.device"),
    *not_needed_rows(
        "there is no Ray here",
        "ray_kwargs.*",
        "ray_init.*",
        "trainer.ray_wait_register_center_timeout",
        "trainer.use_legacy_worker_impl",
        "trainer.use_v1",
        "trainer.v1.*",
        "transfer_queue.*",
    ),
    *missing_rows("start the run again with `mode=bench` after training", "trainer.val_only"),
    *missing_rows("profile with the services' own tools", "global_profiler.*", "*.profiler.*"),
    *missing_rows("rollouts cannot be skipped or dumped", "skip.*"),
    *missing_rows(
        "checkpoints are written below `checkpoint_root_dir` alone: have HDFS mounted there",
        "trainer.default_hdfs_dir",
    ),
    *missing_rows(
        "there is no such option",
        "trainer.del_local_ckpt_after_load",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.esi_redundant_time",
    ),
    *missing_rows(
        "rollout that runs ahead is `synchronizer.sync_offset` and `sync_interval`: set the two",
        "async_training.*",
        "rollout.*",
    ),
    *missing_rows(
        "what is written here trains on rewards. Distillation is `algorithm_type: "
        "on_policy_distill`, with a workflow of your own that puts the teacher's log-probabilities "
        "into each experience",
        "distillation.*",
    ),
    combined_row(
        "hydra.config_name", "trainer.trainer_strategy", "a name with `megatron` is Megatron"
    ),
    combined_row("model_engine", "trainer.trainer_strategy", "`megatron`"),
    *not_needed_rows(
        "it says where Hydra looks for files", "hydra.config_path", "hydra.config_dir"
    ),
    *missing_rows("files found there are not read: give them in front of the script", "hydra.*"),
)
