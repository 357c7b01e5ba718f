"""Checks for failures that can be found before any engine starts."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from trinity.config.data_check import (
    check_auxiliary_buffer,
    check_experience_buffer,
    check_number_of_tasks,
    check_taskset,
)
from trinity.config.model_check import check_auxiliary_model, check_critic, check_model
from trinity.config.monitor_check import check_monitor
from trinity.config.plan import ExperimentPlan
from trinity.config.start_checkpoint import check_start
from trinity.errors import UserError


def check_inputs(plan: ExperimentPlan) -> None:
    """Checks the run's directory, models and data; raises UserError with a line for each error."""
    mistakes: list[str] = []
    for what, check in _checks(plan):
        try:
            check()
        except UserError as error:
            mistakes.append(f"{what}{error}")
        except OSError as error:
            mistakes.append(f"{what}{error.filename} cannot be read: {error.strerror or error}")
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(mistakes)))


def _checks(plan: ExperimentPlan) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields each check with the beginning of its message."""
    yield "", partial(_check_writable, Path(plan.job_dir))
    yield "", partial(check_monitor, plan.stages[0].config.monitor)
    for stage in plan.stages:
        yield "", partial(check_model, stage)
        if stage.mode == "serve":
            continue
        yield "", partial(check_critic, stage)
        for position in range(len(stage.auxiliary_models)):
            what = f"stage `{stage.name}`: "
            yield what, partial(check_auxiliary_model, stage, position)
        yield "", partial(check_start, stage)
        buffer = stage.experience_buffer
        what = f"stage `{stage.name}`, experience buffer `{buffer.name}`: "
        yield what, partial(check_experience_buffer, buffer, stage)
        for buffer in stage.auxiliary_buffers:
            what = f"stage `{stage.name}`, auxiliary buffer `{buffer.name}`: "
            yield what, partial(check_auxiliary_buffer, buffer)
        for taskset in (*stage.tasksets, *stage.eval_tasksets):
            what = f"stage `{stage.name}`, taskset `{taskset.name}`: "
            yield what, partial(check_taskset, taskset)
        yield f"stage `{stage.name}`: ", partial(check_number_of_tasks, stage)


def _check_writable(job_dir: Path) -> None:
    existing = next(place for place in (job_dir, *job_dir.parents) if place.exists())
    if not existing.is_dir():
        raise UserError(
            f"the run's directory {job_dir} cannot be made, {existing} is a file: "
            "change `checkpoint_root_dir`"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(
            f"the run's directory {job_dir} cannot be written, {existing} is read-only: "
            "change `checkpoint_root_dir`"
        )
