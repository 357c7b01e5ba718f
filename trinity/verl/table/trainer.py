"""Section `trainer` and those that veRL's launcher reads."""

from trinity.verl.row import KeyRow, combined, missing, moved, needless
from trinity.verl.values import (
    as_resume_mode,
    as_segment,
    is_not_disabled,
    never_is_zero,
    same,
    zero_is_never,
)

ROWS: tuple[KeyRow, ...] = (
    combined("trainer.logger", "monitor.monitor_type", "the one that is not `console`"),
    moved("trainer.project_name", "project", "as part of a path", convert=as_segment, back=same),
    moved("trainer.experiment_name", "name", "as part of a path", convert=as_segment, back=same),
    combined(
        "trainer.default_local_dir",
        "checkpoint_root_dir",
        "files go to `<checkpoint_root_dir>/<project>/<name>`",
    ),
    combined("trainer.n_gpus_per_node", "cluster.gpu_per_node", "rollout and training divide them"),
    combined("trainer.nnodes", "cluster.node_num", "rollout and training divide them"),
    moved(
        "trainer.save_freq",
        "trainer.save_interval",
        "-1 is 0: the end is always saved",
        convert=never_is_zero,
        back=zero_is_never,
    ),
    combined("trainer.test_freq", "explorer.eval_interval", "-1 is never"),
    moved("trainer.total_epochs", "buffer.total_epochs"),
    combined(
        "trainer.total_training_steps",
        "buffer.total_steps, trainer.total_steps",
        "times `sync_interval`, since veRL counts `data.train_batch_size` as one step",
    ),
    moved("trainer.critic_warmup", "trainer.critic_warmup", "times `sync_interval`"),
    moved("trainer.val_before_train", "explorer.eval_on_startup"),
    moved(
        "trainer.resume_mode",
        "continue_from_checkpoint",
        "`disable` is false",
        convert=is_not_disabled,
        back=as_resume_mode,
    ),
    combined(
        "trainer.resume_from_path",
        "trainer.resume_mode, trainer.resume_from_path",
        "with `resume_mode` `resume_path`: weights and optimizer of `global_step_<N>`; train steps "
        "count from 1",
    ),
    moved("trainer.balance_batch", "trainer.balance_batch"),
    moved("trainer.max_actor_ckpt_to_keep", "trainer.max_checkpoints_to_keep"),
    moved("trainer.max_ckpt_to_keep", "trainer.max_checkpoints_to_keep", convert=same),
    *needless(
        "kept with the actor's (`trainer.max_checkpoints_to_keep`)",
        "trainer.max_critic_ckpt_to_keep",
    ),
    *needless(
        "samples of rollouts are shown in `summary.json`",
        "trainer.log_val_generations",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
    ),
    *needless("the machine's accelerator is used", "trainer.device"),
    *needless(
        "there is no Ray here",
        "ray_kwargs.*",
        "ray_init.*",
        "trainer.ray_wait_register_center_timeout",
        "trainer.use_legacy_worker_impl",
        "trainer.use_v1",
        "trainer.v1.*",
        "transfer_queue.*",
    ),
    *missing("start the run again with `mode=bench` after training", "trainer.val_only"),
    *missing("profile with the services' own tools", "global_profiler.*", "*.profiler.*"),
    *missing("rollouts cannot be skipped or dumped", "skip.*"),
    *missing(
        "checkpoints are written below `checkpoint_root_dir` alone: have HDFS mounted there",
        "trainer.default_hdfs_dir",
    ),
    *missing(
        "there is no such option",
        "trainer.del_local_ckpt_after_load",
        "trainer.remove_previous_ckpt_in_save",
        "trainer.esi_redundant_time",
    ),
    *missing(
        "rollout that runs ahead is `synchronizer.sync_offset` and `sync_interval`: set the two",
        "async_training.*",
        "rollout.*",
    ),
    *missing(
        "what is written here trains on rewards. Distillation is `algorithm_type: "
        "on_policy_distill`, with a workflow of your own that puts the teacher's log-probabilities "
        "into each experience",
        "distillation.*",
    ),
    combined("hydra.config_name", "trainer.trainer_strategy", "a name with `megatron` is Megatron"),
    combined("model_engine", "trainer.trainer_strategy", "`megatron`"),
    *needless("it says where Hydra looks for files", "hydra.config_path", "hydra.config_dir"),
    *missing("files found there are not read: give them in front of the script", "hydra.*"),
)
