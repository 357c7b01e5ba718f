"""Checks on queues of tasks: alone in a stage, in their own order, with a given end."""

from collections.abc import Sequence

from trinity.config.plan_parts import ResolvedTaskset
from trinity.config.root import Config
from trinity.config.taskset import TasksetConfig
from trinity.errors import UserError


def check_queue(tasksets: Sequence[ResolvedTaskset], config: Config, key: str) -> None:
    """Checks a queue: its length is unknown in advance, and its order is the order of arrival."""
    for taskset in tasksets:
        if taskset.storage_type != "queue":
            continue
        if len(tasksets) > 1:
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which cannot be mixed with other tasksets: "
                "submit all tasks to it, or give it a stage of its own"
            )
        if taskset.selector.selector_type != "sequential":
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which gives tasks as they come: "
                "remove its `data_selector`"
            )
        if config.buffer.total_steps is None and config.trainer.total_steps is None:
            raise UserError(
                f"{key}`: `{taskset.name}` is a queue, which has no epochs: give "
                "`buffer.total_steps`"
            )


def check_evaluated(taskset: TasksetConfig, key: str, *, is_eval: bool) -> None:
    """Rejects a queue for evaluation, which needs the same tasks every time."""
    if is_eval and taskset.storage_type == "queue":
        raise UserError(
            f"{key}.storage_type`: an evaluation takes the same tasks each time, which a queue "
            "does not have: give client"
        )
