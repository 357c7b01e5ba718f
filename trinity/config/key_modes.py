"""The modes in which a key acts: the others read it and do nothing with it.

modes_of("synchronizer.sync_offset")  # ("both", "explore")
"""

from collections.abc import Mapping

from trinity.config.schema.choices import Mode

ALL: tuple[Mode, ...] = ("both", "train", "explore", "bench", "serve")
"""`colocate` is `both` on one GPU: whatever acts in the one acts in the other."""
TRAINING: tuple[Mode, ...] = ("both", "train")
ROLLING_OUT: tuple[Mode, ...] = ("both", "explore")
WITH_TASKS: tuple[Mode, ...] = ("both", "explore", "bench")
WITH_ENGINES: tuple[Mode, ...] = ("both", "explore", "bench", "serve")
WITH_STEPS: tuple[Mode, ...] = ("both", "train", "explore")
WITH_RANKS: tuple[Mode, ...] = ("both", "train", "bench")

_TASKS = "buffer.explorer_input"
_ROWS = "buffer.trainer_input"

MODES: Mapping[str, tuple[Mode, ...]] = {
    "": ALL,
    "algorithm": TRAINING,
    "algorithm.algorithm_type": ALL,
    "algorithm.repeat_times": ROLLING_OUT,
    "algorithm.advantage_fn": WITH_STEPS,
    "algorithm.advantage_fn_args": WITH_STEPS,
    "model.critic_model_path": TRAINING,
    "model.min_response_tokens": WITH_ENGINES,
    "model.temperature": WITH_ENGINES,
    "model.top_p": WITH_ENGINES,
    "model.top_k": WITH_ENGINES,
    "model.repetition_penalty": WITH_ENGINES,
    "model.logprobs": WITH_ENGINES,
    "model.external_model": ("explore", "bench"),
    "buffer.batch_size": ROLLING_OUT,
    "buffer.train_batch_size": TRAINING,
    "buffer.total_epochs": WITH_STEPS,
    "buffer.total_steps": WITH_STEPS,
    "buffer.max_refill_rounds": ("both",),
    "buffer.short_batch": ("both",),
    "buffer.await_feedback": ROLLING_OUT,
    "buffer.feedback_timeout": ROLLING_OUT,
    "buffer.keep_steps": WITH_STEPS,
    _TASKS: WITH_TASKS,
    f"{_TASKS}.taskset": ROLLING_OUT,
    f"{_TASKS}.tasksets": ROLLING_OUT,
    f"{_TASKS}.eval_tasksets": WITH_TASKS,
    f"{_TASKS}.taskset.repeat_times": (),
    f"{_TASKS}.tasksets.repeat_times": (),
    _ROWS: TRAINING,
    f"{_ROWS}.experience_buffer.path": WITH_STEPS,
    f"{_ROWS}.experience_buffer.storage_type": WITH_STEPS,
    f"{_ROWS}.experience_buffer.max_read_timeout": ("both",),
    f"{_ROWS}.experience_buffer.replay_buffer": ("both",),
    f"{_ROWS}.experience_buffer.capacity": ("both",),
    f"{_ROWS}.experience_buffer.source_run": ("train",),
    f"{_ROWS}.experience_buffer.source_stage": ("train",),
    f"{_ROWS}.experience_buffer.table": ("train",),
    f"{_ROWS}.experience_buffer.split": ("train",),
    f"{_ROWS}.experience_buffer.subset_name": ("train",),
    f"{_ROWS}.experience_buffer.format": ("train",),
    f"{_ROWS}.experience_buffer.data_selector": ("train",),
    f"{_ROWS}.auxiliary_buffers.max_read_timeout": (),
    f"{_ROWS}.auxiliary_buffers.replay_buffer": (),
    "explorer": WITH_ENGINES,
    "explorer.eval_interval": ("both",),
    "explorer.eval_on_startup": WITH_TASKS,
    "explorer.eval_failed_runs": WITH_TASKS,
    "explorer.best_taskset": WITH_TASKS,
    "explorer.over_rollout": ROLLING_OUT,
    "explorer.bench_on_latest_checkpoint": ("bench",),
    "explorer.proxy_port": ("serve",),
    "explorer.listen_address": ("serve",),
    "explorer.service_status_check_interval": ("serve",),
    "explorer.min_running_model_num": ("serve",),
    "explorer.runner_per_model": WITH_TASKS,
    "explorer.runs_per_runner": WITH_TASKS,
    "explorer.max_timeout": WITH_TASKS,
    "explorer.max_retry_times": WITH_TASKS,
    "explorer.dynamic_timeout": WITH_TASKS,
    "trainer": TRAINING,
    "trainer.rank_num": WITH_RANKS,
    "trainer.dtype": WITH_RANKS,
    "trainer.trainer_strategy": WITH_RANKS,
    "trainer.fsdp_size": WITH_RANKS,
    "trainer.megatron": WITH_RANKS,
    "trainer.override_config": WITH_RANKS,
    "synchronizer": ("both", "train"),
    "synchronizer.sync_method": ("both",),
    "synchronizer.sync_style": ("both",),
    "synchronizer.sync_offset": ROLLING_OUT,
    "synchronizer.sync_timeout": ALL,
    "data_processor.experience_pipeline": ROLLING_OUT,
    "data_processor.task_pipeline": WITH_STEPS,
}
"""By the beginning of a key's path; the longest one decides."""


def modes_of(path: str) -> tuple[Mode, ...]:
    """Returns the modes in which the key of this path acts, in the order of their documentation."""
    while path not in MODES:
        path = path.rpartition(".")[0]
    return MODES[path]
