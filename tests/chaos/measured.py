"""Evaluations in the experiments under fire: what is measured, and which versions are due."""

import json
from pathlib import Path

from pydantic import JsonValue

from trinity.config.plan.stage_plan import StagePlan

NAME = "held-out"
NUM_TASKS = 5
EXPLORER: JsonValue = {"eval_interval": 2, "eval_on_startup": True}


def held_out(folder: Path) -> JsonValue:
    """A taskset of its own, as a plan names it."""
    path = folder / f"{NAME}.jsonl"
    rows = [{"prompt": f"{i}*{i}=", "response": str(i * i)} for i in range(NUM_TASKS)]
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": NAME, "path": str(path), "repeat_times": 2}


def due_versions(plan: StagePlan, total_train_steps: int) -> tuple[int, ...]:
    """At the start, after each interval, and the last."""
    if not plan.eval_tasksets:
        return ()
    at_intervals = range(plan.eval_interval, total_train_steps, plan.eval_interval)
    first = (0,) if plan.config.explorer.eval_on_startup else ()
    return (*first, *at_intervals, total_train_steps)
