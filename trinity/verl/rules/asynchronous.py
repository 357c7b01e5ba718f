"""Converts rollout that runs ahead of training: veRL's fully-async policy and its `trainer.v1`."""

import math

from trinity.verl.settings import VerlSetting
from trinity.verl.work import Conversion

_ASYNC = "async_training"
_V1 = "trainer.v1"
_STALENESS = 0.1
"""veRL's default of `staleness_threshold` where rollout never waits for a step."""
_SYNC_STEPS = 4
"""veRL's default of `trigger_parameter_sync_step`."""
_SAMPLER = f"{_V1}.sampler"
_MODES = {"sync": 0, "colocate_async": 1, "separate_async": 1}
"""Steps that rollout is ahead, by `trainer.v1.trainer_mode`."""


def is_fully_async(work: Conversion) -> bool:
    """True if rollout has GPUs and steps of its own, so that no step has a number of tasks."""
    tasks = work.settings.peek("data.train_batch_size")
    is_endless = isinstance(tasks, int) and tasks <= 0
    return is_endless or "fully_async" in work.settings.module


def runs_ahead(work: Conversion) -> bool:
    """True if rollout goes on while the policy is trained."""
    if work.choices.sync_offset is not None:
        return work.choices.sync_offset > 0
    threshold = work.settings.peek(f"{_ASYNC}.staleness_threshold")
    mode = work.settings.peek(f"{_V1}.trainer_mode")
    return is_fully_async(work) or bool(threshold) or bool(_MODES.get(str(mode), 0))


def versions_apart(work: Conversion) -> int:
    """Mini-batches between two versions of the weights."""
    mini_batches = work.integer(f"{_ASYNC}.require_batches", 1)
    is_async = "fully_async" in work.settings.module
    default = _SYNC_STEPS if is_async else 1
    return max(mini_batches * work.integer(f"{_ASYNC}.trigger_parameter_sync_step", default), 1)


def convert_async(work: Conversion, batch: int, interval: int) -> None:
    """Converts the bound on how far rollout is ahead, and the number of its tasks."""
    _put_offset(work, interval)
    _put_total(work, batch)
    _put_max_staleness(work, interval)
    work.settings.take(f"{_ASYNC}.use_rollout_log_probs")  # written with the defaults, at the end
    for name in ("partial_rollout", "use_trainer_do_validate", "concurrent_samples_per_replica"):
        work.report_left_out(
            f"{_ASYNC}.{name}",
            "runs go on while new weights are loaded, and each token has its own",
        )
    step = work.settings.take(f"{_V1}.separate_async.parameter_sync_step")
    if step is None:
        return
    if step.value == interval:
        work.report.not_needed.append((step, "it is `synchronizer.sync_interval`"))
    else:
        answer = f"veRL wants `train_batch_size / ppo_mini_batch_size` there, which is {interval}"
        work.report.missing.append((step, answer))


def _put_offset(work: Conversion, interval: int) -> None:
    """Writes how far rollout may be ahead where the script says it."""
    threshold = work.settings.take(f"{_ASYNC}.staleness_threshold")
    mode = work.settings.take(f"{_V1}.trainer_mode")
    if work.choices.sync_offset is not None:
        for setting in (threshold, mode):
            if setting is not None:
                work.report.not_needed.append((setting, "`--sync-offset` decides"))
        return
    if threshold is not None or is_fully_async(work):
        _put_threshold(work, threshold, interval)
    if mode is not None and mode.value in _MODES:
        offset = _MODES[str(mode.value)] * interval
        work.put("synchronizer.sync_offset", offset, mode, "steps that rollout is ahead")
    elif mode is not None:
        work.report.missing.append((mode, "give `synchronizer.sync_offset`, steps it is ahead"))


def _put_threshold(work: Conversion, threshold: VerlSetting | None, interval: int) -> None:
    key = f"{_ASYNC}.staleness_threshold"
    share = _STALENESS if threshold is None or threshold.value is None else threshold.value
    if not isinstance(share, int | float):
        return
    note = f"{share} of the {interval} between two versions, and the one in training"
    origin = threshold or f"veRL's default of {key}={share}"
    work.put("synchronizer.sync_offset", math.ceil(share * interval), origin, note)


def _put_total(work: Conversion, batch: int) -> None:
    """Converts the number of tasks of the run to steps, or an older trainer's passes over them."""
    key = "rollout.total_rollout_steps"
    total, epochs = work.settings.take(key), work.settings.take("rollout.total_epochs")
    if total is None or total.value is None:
        if epochs is not None:
            work.put("buffer.total_epochs", epochs.value, epochs)
        return
    if epochs is not None:
        work.report.not_needed.append((epochs, f"`{key}` decides"))
    if not isinstance(total.value, int):
        work.report.missing.append((total, f"give {key}=<number> behind the script"))
        return
    steps = max(total.value // batch, 1)
    note = f"{total.value} tasks / {batch} (`buffer.batch_size`)"
    work.put("buffer.total_steps", steps, total, note)
    work.put("trainer.total_steps", steps, total, note)


def _put_max_staleness(work: Conversion, interval: int) -> None:
    """Converts the most versions that an experience may span, itself included."""
    most = work.settings.take(f"{_SAMPLER}.max_off_policy_threshold")
    strategy = work.settings.take(f"{_SAMPLER}.max_off_policy_strategy")
    if strategy is not None and strategy.value != "drop":
        answer = "what is too old is left out (`algorithm.sample_strategy: staleness_control`)"
        work.report.missing.append((strategy, answer))
    elif strategy is not None:
        work.report.not_needed.append((strategy, "`staleness_control` leaves old rows out"))
    if most is None or not isinstance(most.value, int):
        return
    note = f"{most.value} versions, {interval} steps each"
    work.put("algorithm.sample_strategy", "staleness_control", most)
    args = "algorithm.sample_strategy_args.max_staleness"
    work.put(args, most.value * interval - 1, most, note)
