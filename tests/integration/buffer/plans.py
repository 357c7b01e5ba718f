"""Small stages for the buffer to work on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

from tests.unit.config.builders import SFT, stage
from trinity.config.plan.parts import ResolvedOperator
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import JsonValue

REPEAT_TIMES = 2
BATCH_SIZE = 3
ROWS = REPEAT_TIMES * BATCH_SIZE


def write_tasks(file: Path, num_rows: int) -> str:
    """A jsonl file of sums; answers its path."""
    rows = [{"prompt": f"{i}+{i}=", "response": str(2 * i)} for i in range(num_rows)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


class Sizes(TypedDict, total=False):
    """What else callers of `rollout_plan` hand on to it."""

    num_tasks: int
    num_eval: int
    eval_repeats: int
    total_steps: int | None
    train_batch_size: int
    sync_offset: int
    sync_interval: int
    max_refill_rounds: int
    keep_steps: int
    await_feedback: bool
    feedback_timeout: float


def rollout_plan(
    directory: Path,
    *,
    num_tasks: int = 12,
    num_eval: int = 0,
    eval_repeats: int = 1,
    eval_failed_runs: str = "zero",
    total_steps: int | None = 4,
    train_batch_size: int = ROWS,
    sync_offset: int = 0,
    sync_interval: int = 1,
    algorithm: Mapping[str, object] | None = None,
    over_rollout: Mapping[str, object] | None = None,
    **buffer: object,
) -> StagePlan:
    """Three tasks an explore step, two runs each."""
    evals: Sequence[object] = []
    if num_eval:
        path = write_tasks(directory / "eval.jsonl", num_eval)
        evals = [{"name": "held_out", "path": path, "repeat_times": eval_repeats}]
    taskset = {
        "name": "train",
        "path": write_tasks(directory / "train.jsonl", num_tasks),
    }
    return stage(
        algorithm=algorithm or {"repeat_times": REPEAT_TIMES},
        buffer={
            "batch_size": BATCH_SIZE,
            "total_steps": total_steps,
            "train_batch_size": train_batch_size,
            "explorer_input": {"taskset": taskset, "eval_tasksets": evals},
            **buffer,
        },
        synchronizer={"sync_offset": sync_offset, "sync_interval": sync_interval},
        explorer={
            "max_retry_times": 1,
            "eval_interval": 2,
            "eval_on_startup": True,
            "eval_failed_runs": eval_failed_runs,
            "over_rollout": over_rollout or {},
        },
        trainer={"max_checkpoints_to_keep": 2},
    )


def with_advantage(
    plan: StagePlan, name: str, *, in_trainer: bool = False, **arguments: JsonValue
) -> StagePlan:
    """The same plan with another advantage function."""
    changed = {
        "advantage_fn": name,
        "advantage_fn_args": arguments,
        "advantage_in_trainer": in_trainer,
    }
    return plan.model_copy(update={"algorithm": plan.algorithm.model_copy(update=changed)})


def with_operators(plan: StagePlan, *names: str, **arguments: Mapping[str, JsonValue]) -> StagePlan:
    """The same plan with experience operators; `arguments` are by name."""
    operators = [ResolvedOperator(name=one, args=dict(arguments.get(one, {}))) for one in names]
    return plan.model_copy(update={"operators": tuple(operators)})


def fresh_plan(
    directory: Path, *, max_staleness: int, unit: str = "row", **sizes: Unpack[Sizes]
) -> StagePlan:
    """Rows, or tokens, of older weights are left out."""
    strict = {
        "repeat_times": REPEAT_TIMES,
        "sample_strategy": "staleness_control",
        "sample_strategy_args": {"max_staleness": max_staleness, "staleness_unit": unit},
    }
    return rollout_plan(directory, algorithm=strict, **sizes)


def mixed_plan(
    directory: Path,
    *,
    ratio: float = 0.5,
    num_expert_rows: int = 10,
    max_staleness: int | None = None,
    **sizes: Unpack[Sizes],
) -> StagePlan:
    """Some of the rows of each batch come from a file, in shuffled order."""
    experts = {
        "storage_type": "file",
        "path": write_tasks(directory / "expert.jsonl", num_expert_rows),
        "format": {"prompt_type": "plaintext"},
        "data_selector": {"selector_type": "shuffle"},
    }
    mix = {
        "algorithm_type": "mix",
        "repeat_times": REPEAT_TIMES,
        "sample_strategy_args": {"expert_data_ratio": ratio, "max_staleness": max_staleness},
    }
    return rollout_plan(
        directory,
        algorithm=mix,
        trainer_input={"auxiliary_buffers": {"sft_dataset": experts}},
        **sizes,
    )


def data_plan(directory: Path, *, num_rows: int = 10, selector: str = "shuffle") -> StagePlan:
    """Supervised training on rows of a file, four a step, one epoch."""
    data = {
        "storage_type": "file",
        "path": write_tasks(directory / "sft.jsonl", num_rows),
        "format": {"prompt_type": "plaintext"},
        "data_selector": {"selector_type": selector},
    }
    return stage(
        SFT,
        buffer={
            "train_batch_size": 4,
            "total_steps": None,
            "trainer_input": {"experience_buffer": data},
        },
    )
