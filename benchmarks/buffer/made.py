"""Sizes of the measurement, stages with batches of 256, and experiences as an engine makes them.

A batch has 32 tasks with eight runs each; an experience has two numbers a token, its id and its
log-probability.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.explorer.types import Assignment, Attempt, AttemptResult
from tests.unit.config.builders import stage
from trinity.config.plan.stage_plan import StagePlan
from trinity.types import EID, Experience, SamplingParams, Sequence, StageKey, VersionSpan

BATCH_ROWS = 256
REPEAT_TIMES = 8
NUM_TASKS = 64
BYTES_A_TOKEN = 8
"""A token id of four bytes and its log-probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one run; steps are batches of 256 experiences."""

    large_steps: int = 20
    """16 KiB each."""
    small_steps: int = 40
    """2 KiB each."""
    huge_steps: int = 8
    """64 KiB each."""
    awaited: int = 200
    outstanding: int = 2_048
    leases: int = 8
    wakes: int = 40
    load_seconds: float = 60.0
    """While the trainer is stopped."""
    load_steps: int = 1_200
    """More than are loaded in that time."""


SMALLEST = Sizes(
    large_steps=1,
    small_steps=1,
    huge_steps=1,
    awaited=4,
    outstanding=16,
    leases=1,
    wakes=2,
    load_seconds=2.0,
    load_steps=8,
)


def rollout_plan(
    directory: Path,
    *,
    num_steps: int,
    batch_rows: int = BATCH_ROWS,
    task_bytes: int = 100,
) -> StagePlan:
    """All steps are explored with the first version of the weights."""
    file = directory / f"tasks-{task_bytes}.jsonl"
    file.write_text(f"{task_of(task_bytes)}\n" * NUM_TASKS)
    return stage(
        algorithm={"repeat_times": REPEAT_TIMES},
        buffer={
            "batch_size": batch_rows // REPEAT_TIMES,
            "train_batch_size": batch_rows,
            "total_steps": num_steps,
            "explorer_input": {"taskset": {"name": "train", "path": str(file)}},
        },
        synchronizer={"sync_interval": num_steps},
    )


def task_of(num_bytes: int) -> str:
    """A task whose prompt has this size."""
    return json.dumps({"prompt": "x" * num_bytes, "response": "1"})


def num_tokens_of(num_bytes: int) -> int:
    """Response tokens of an experience of this size."""
    return num_bytes // BYTES_A_TOKEN


def outcomes_of(key: StageKey, assignment: Assignment, num_tokens: int) -> Iterator[AttemptResult]:
    """A complete run for each that the assignment asks for, with other numbers in each."""
    for run in assignment.runs:
        attempt = Attempt(key=key, assignment=assignment, run=run, number=assignment.first_attempt)
        eid = EID(
            stage=key.stage,
            batch=assignment.explore_step,
            task=assignment.position,
            run=run,
            attempt=attempt.number,
            suffix="",
        )
        yield AttemptResult(
            attempt=attempt,
            experiences=[_experience(eid, num_tokens, reward=float(run % 2))],
            duration_seconds=0.5,
        )


def _experience(eid: EID, num_tokens: int, reward: float) -> Experience:
    chance = np.random.default_rng([int(eid.batch), int(eid.task), eid.run])
    return Experience(
        body=Sequence(
            tokens=chance.integers(0, 150_000, 1 + num_tokens, dtype=np.int32),
            prompt_length=1,
            action_mask=np.ones(num_tokens, dtype=np.bool_),
            rollout_logprobs=-chance.random(num_tokens, dtype=np.float32),
        ),
        eid=eid,
        reward=reward,
        reward_parts={"accuracy": reward},
        version_spans=(VersionSpan(start=0, end=num_tokens, version=0, incarnation=1),),
        sampling=SamplingParams(seed=int(eid.task)),
    )
