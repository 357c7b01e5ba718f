"""Stages to measure with: batches of 256, of 32 tasks with eight runs each."""

import json
from pathlib import Path

from tests.unit.config.builders import stage
from trinity.config.plan.stage_plan import StagePlan

BATCH_ROWS = 256
REPEAT_TIMES = 8
NUM_TASKS = 64


def rollout_plan(
    directory: Path,
    *,
    num_steps: int,
    steps_ahead: int | None = None,
    batch_rows: int = BATCH_ROWS,
    task_bytes: int = 100,
) -> StagePlan:
    """Explored may be `steps_ahead` with each version of the weights; else all with the first."""
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
        synchronizer={"sync_interval": steps_ahead or num_steps},
    )


def task_of(num_bytes: int) -> str:
    """A task whose prompt has this size."""
    return json.dumps({"prompt": "x" * num_bytes, "response": "1"})
