"""The modes in which a key acts; other modes accept and ignore it.

modes_of("synchronizer.sync_offset")  # ("both", "explore")
"""

from collections.abc import Mapping

from trinity.config.loading.keys import under
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
_ROWS = "buffer.trainer_input.experience_buffer"
_AUXILIARY = "buffer.trainer_input.auxiliary_buffers"


MODES: Mapping[str, tuple[Mode, ...]] = {
    "": ALL,
    "algorithm": TRAINING,
    "explorer": WITH_ENGINES,
    "trainer": TRAINING,
    "algorithm.algorithm_type": ALL,
    "algorithm.repeat_times": ROLLING_OUT,
    **dict.fromkeys(under("algorithm", "advantage_fn advantage_fn_args"), WITH_STEPS),
    "model.critic_model_path": TRAINING,
    **dict.fromkeys(
        under("model", "min_response_tokens temperature top_p top_k repetition_penalty logprobs"),
        WITH_ENGINES,
    ),
    "model.external_model": ("explore", "bench"),
    **dict.fromkeys(under("buffer", "batch_size await_feedback feedback_timeout"), ROLLING_OUT),
    "buffer.train_batch_size": TRAINING,
    **dict.fromkeys(under("buffer", "total_epochs total_steps keep_steps"), WITH_STEPS),
    **dict.fromkeys(under("buffer", "max_refill_rounds short_batch"), ("both",)),
    _TASKS: WITH_TASKS,
    **dict.fromkeys(under(_TASKS, "taskset tasksets"), ROLLING_OUT),
    **dict.fromkeys(under(_TASKS, "taskset.repeat_times tasksets.repeat_times"), ()),
    "buffer.trainer_input": TRAINING,
    **dict.fromkeys(under(_ROWS, "path storage_type"), WITH_STEPS),
    **dict.fromkeys(under(_ROWS, "max_read_timeout replay_buffer capacity"), ("both",)),
    **dict.fromkeys(
        under(_ROWS, "source_run source_stage table split subset_name format data_selector"),
        ("train",),
    ),
    **dict.fromkeys(under(_AUXILIARY, "max_read_timeout replay_buffer"), ()),
    "explorer.eval_interval": ("both",),
    **dict.fromkeys(
        under(
            "explorer",
            "eval_on_startup eval_failed_runs best_taskset runner_per_model runs_per_runner "
            "max_timeout max_retry_times dynamic_timeout",
        ),
        WITH_TASKS,
    ),
    "explorer.over_rollout": ROLLING_OUT,
    "explorer.max_inflight_batches": ("both",),
    "explorer.bench_on_latest_checkpoint": ("bench",),
    **dict.fromkeys(
        under(
            "explorer",
            "proxy_port listen_address service_status_check_interval min_running_model_num",
        ),
        ("serve",),
    ),
    **dict.fromkeys(
        under("trainer", "rank_num dtype trainer_strategy fsdp_size megatron override_config"),
        WITH_RANKS,
    ),
    "synchronizer": ("both", "train"),
    **dict.fromkeys(under("synchronizer", "sync_method sync_style weight_update"), ("both",)),
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
