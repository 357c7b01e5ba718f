"""Validates incoming stage plans against values that would harm the buffer."""

from collections.abc import Iterator

from pydantic import ValidationError

from services.buffer.domain.stage import parse_plan
from services.buffer.handlers.open_stage import MAX_STEPS, needed_tasksets
from services.buffer.servicer.convert import name_of, text_of
from trinity.config.plan import StagePlan
from trinity.config.plan_parts import ResolvedTaskset
from trinity.config.selecting import ANCHORS
from trinity.errors import InvalidRequest, TooLarge, UserError

MAX_PLAN_LENGTH = 1024 * 1024
MAX_PATH_BYTES = 1_000
"""The identity of a taskset's files is part of an index."""
MAX_ROWS = 1_000_000
"""Most rows of one explore step or one batch, which are built in one piece."""
MAX_TIMES = 10_000
"""Most runs of a task, and most attempts at a run."""


def plan_of(text: str) -> StagePlan:
    """Parses and validates a plan.

    Raises: InvalidRequest that says what is wrong with it, TooLarge when it is too long.
    """
    if len(text) > MAX_PLAN_LENGTH:
        raise TooLarge(f"plan_json has more than {MAX_PLAN_LENGTH} characters")
    try:
        plan = parse_plan(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"plan_json is not a stage's plan: {where}: {first['msg']}") from error
    _check_sampling(plan)
    _check_tasksets(plan)
    for name, number, least, most in _numbers(plan):
        if not least <= number <= most:
            raise InvalidRequest(f"plan_json: {name} is {number}, which is not in {least}..{most}")
    return plan


def _check_sampling(plan: StagePlan) -> None:
    try:
        sampling = plan.algorithm.sampling
    except (UserError, TypeError) as error:
        raise InvalidRequest(f"plan_json: sample_strategy: {error}") from error
    if sampling.expert_buffer is not None and plan.expert_buffer is None:
        raise InvalidRequest(f"plan_json: auxiliary_buffers lacks {sampling.expert_buffer!r}")


def _check_tasksets(plan: StagePlan) -> None:
    if plan.mode == "bench" and plan.needs_training and plan.benched is None:
        raise InvalidRequest(
            "plan_json: mode bench without a run whose checkpoints are evaluated: start it with "
            "`trinity run` in that run's directory"
        )
    brings_tasks = plan.mode != "bench" and plan.stored_rollouts is None
    if (plan.has_rollouts and brings_tasks) != bool(plan.tasksets):
        raise InvalidRequest("plan_json: a stage has a taskset exactly when it has an explorer")
    names = [taskset.name for taskset in needed_tasksets(plan)]
    if len(set(names)) < len(names):
        raise InvalidRequest("plan_json: two tasksets have the same name")
    for taskset in plan.tasksets:
        _check_selector(taskset, len(plan.tasksets))
    for needed in needed_tasksets(plan):
        name_of(needed.name, "plan_json: the name of a taskset")
        for part in (needed.path or "", needed.split, needed.subset_name or ""):
            if len(text_of(part, "plan_json: the path of a taskset").encode()) > MAX_PATH_BYTES:
                raise InvalidRequest(
                    f"plan_json: the path of taskset {needed.name} has more than "
                    f"{MAX_PATH_BYTES} bytes"
                )


def _check_selector(taskset: ResolvedTaskset, num_tasksets: int) -> None:
    """Checks again what the configuration guarantees: a client may have written the plan itself."""
    selector = taskset.selector
    learns = selector.selector_type == "difficulty_based"
    num_keys = len(selector.feature_keys)
    if learns != (selector.difficulty is not None) or (learns and num_keys != ANCHORS):
        raise InvalidRequest(
            f"plan_json: taskset {taskset.name}: difficulty_based needs its arguments and "
            "two features"
        )
    if selector.selector_type == "offline_easy2hard" and not num_keys:
        raise InvalidRequest(f"plan_json: taskset {taskset.name}: offline_easy2hard needs features")
    if taskset.storage_type == "queue" and num_tasksets > 1:
        raise InvalidRequest(f"plan_json: taskset {taskset.name}: a queue stands alone")
    for key in selector.feature_keys:
        name_of(key, f"plan_json: a feature of taskset {taskset.name}")


def _numbers(plan: StagePlan) -> Iterator[tuple[str, int, int, int]]:
    """Yields counts that the buffer works with, each with its allowed minimum and maximum."""
    buffer, sync = plan.config.buffer, plan.config.synchronizer
    yield "train_batch_size", plan.train_batch_size, 1, MAX_ROWS
    has_experts = plan.expert_buffer is not None
    yield "num_expert_rows", plan.num_expert_rows, int(has_experts), MAX_ROWS * has_experts
    yield "num_rollout_rows", plan.num_rollout_rows, 1, MAX_ROWS
    yield "rows_per_explore_step", plan.rows_per_explore_step, int(bool(plan.tasksets)), MAX_ROWS
    yield "buffer.batch_size", buffer.batch_size, 1, MAX_ROWS
    yield "buffer.max_refill_rounds", buffer.max_refill_rounds, 0, MAX_TIMES
    yield "buffer.total_epochs", buffer.total_epochs, 1, MAX_STEPS
    yield "algorithm.repeat_times", plan.algorithm.repeat_times, 1, MAX_TIMES
    yield "explorer.max_retry_times", plan.config.explorer.max_retry_times, 0, MAX_TIMES
    yield "synchronizer.sync_interval", sync.sync_interval, 1, MAX_STEPS
    yield "synchronizer.sync_offset", sync.sync_offset, 0, MAX_STEPS
    yield "total_explore_steps", plan.total_explore_steps or 0, 0, MAX_STEPS
    yield "total_train_steps", plan.total_train_steps or 0, 0, MAX_STEPS
    if plan.replay is not None:
        yield "replay.capacity", plan.replay.capacity, plan.num_rollout_rows, MAX_ROWS
        yield "replay.cooldown_steps", plan.replay.cooldown_steps or 1, 1, MAX_STEPS
    for taskset in plan.eval_tasksets:
        yield f"repeat_times of {taskset.name}", taskset.repeat_times, 1, MAX_TIMES
