"""Stages and results for the domain's tests."""

import uuid
from typing import Literal

from services.buffer.domain.results import AssignmentView, Result, RunProgress
from services.buffer.domain.stage import (
    AssignmentKind,
    AssignmentState,
    RunState,
    Stage,
    StageState,
)
from tests.unit.config.builders import stage as plan_stage
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import StageKey

KEY = StageKey(tenant="default", experiment_id=str(uuid.UUID(int=1)), stage="rft")
ASSIGNMENT = str(uuid.UUID(int=2))
PRODUCER = str(uuid.UUID(int=3))


def plan(
    *,
    batch_size: int = 4,
    repeat_times: int = 2,
    train_batch_size: int = 8,
    sync_interval: int = 1,
    sync_offset: int = 0,
    short_batch: Literal["train", "fail"] = "train",
    sync_style: str = "fixed",
    eval_interval: int = 2,
    expert_data_ratio: float | None = None,
) -> StagePlan:
    """Ten explore steps of four tasks with two runs each."""
    mix: dict[str, object] = {
        "algorithm_type": "mix",
        "sample_strategy_args": {"expert_data_ratio": expert_data_ratio},
    }
    experts = {"sft_dataset": {"storage_type": "file", "path": "/data/sft.jsonl"}}
    return plan_stage(
        algorithm={"repeat_times": repeat_times, **(mix if expert_data_ratio else {})},
        buffer={
            "trainer_input": {"auxiliary_buffers": experts},
            "batch_size": batch_size,
            "train_batch_size": train_batch_size,
            "short_batch": short_batch,
        },
        synchronizer={
            "sync_interval": sync_interval,
            "sync_offset": sync_offset,
            "sync_style": sync_style,
        },
        explorer={"eval_interval": eval_interval},
    )


def stage(
    stage_plan: StagePlan | None = None,
    *,
    explore_step: int = 0,
    published: int | None = 0,
    recorded_step: int = 0,
    trained_step: int = 0,
    finished_step: int | None = None,
    step_version: int = 0,
) -> Stage:
    """An open stage of a plan."""
    own = stage_plan or plan()
    return Stage(
        key=KEY,
        plan=own,
        seed=1,
        state=StageState.OPEN,
        reason="",
        num_rows=100,
        total_train_steps=own.num_train_steps(100),
        total_explore_steps=own.num_explore_steps(100),
        explore_step=explore_step,
        num_drawn=0,
        num_stale=0,
        line=1,
        incarnation=1,
        published=published,
        recorded_step=recorded_step,
        trained_step=trained_step,
        finished_step=finished_step,
        segment_id=1,
        step_version=step_version,
    )


def result(
    run: int = 0,
    attempt: int = 0,
    *,
    sequence: int = 1,
    is_complete: bool = True,
    content: bytes = b"a",
    producer: str = PRODUCER,
) -> Result:
    """An attempt without samples."""
    return Result(
        key=KEY,
        assignment_id=ASSIGNMENT,
        taskset="train",
        task_index=0,
        explore_step=1,
        position=0,
        run=run,
        attempt=attempt,
        is_complete=is_complete,
        reason="" if is_complete else "it broke",
        metrics={},
        duration_seconds=0.0,
        producer=producer,
        sequence=sequence,
        content_hash=content,
        experiences=(),
    )


def view(num_runs: int = 2, state: AssignmentState = AssignmentState.LEASED) -> AssignmentView:
    """An assignment none of whose runs has ended."""
    return AssignmentView(
        assignment_id=ASSIGNMENT,
        kind=AssignmentKind.TRAIN,
        state=state,
        taskset="train",
        task_index=0,
        explore_step=1,
        position=0,
        required_version=0,
        runs={i: RunProgress(state=RunState.OPEN, num_failed=0) for i in range(num_runs)},
    )
