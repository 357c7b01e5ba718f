"""Where a queue of tasks may stand: alone, in its own order, with an end that somebody gave."""

from collections.abc import Sequence

from trinity.config.plan_parts import ResolvedTaskset
from trinity.config.root import Config
from trinity.config.taskset import TasksetConfig
from trinity.errors import UserError


def check_queue(tasksets: Sequence[ResolvedTaskset], config: Config, key: str) -> None:
    """Nobody knows how long a queue gets, and its order is that of its arrival."""
    for one in tasksets:
        if one.storage_type != "queue":
            continue
        if len(tasksets) > 1:
            raise UserError(
                f"{key}`: `{one.name}` is a queue, which cannot be mixed with other tasksets: "
                "submit all tasks to it, or give it a stage of its own"
            )
        if one.selector.selector_type != "sequential":
            raise UserError(
                f"{key}`: `{one.name}` is a queue, which gives tasks as they come: "
                "remove its `data_selector`"
            )
        if config.buffer.total_steps is None and config.trainer.total_steps is None:
            raise UserError(
                f"{key}`: `{one.name}` is a queue, which has no epochs: give `buffer.total_steps`"
            )


def check_evaluated(given: TasksetConfig, key: str, *, is_eval: bool) -> None:
    """An evaluation is of the same tasks, whenever it is."""
    if is_eval and given.storage_type == "queue":
        raise UserError(
            f"{key}.storage_type`: an evaluation takes the same tasks each time, which a queue has "
            "not: give client"
        )
