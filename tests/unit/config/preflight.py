"""Checks a configuration's inputs as a run's start does."""

from pathlib import Path

from tests.unit.config.builders import GRPO, config
from trinity.config.checks.runtime import check_inputs
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

TASK: object = {"prompt": "1+1=", "response": "2"}
TURNS: list[object] = [
    {"role": "user", "content": "1+1="},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]},
]
MESSAGES: object = {"message": TURNS}


def check(root: Path, base: dict[str, object] = GRPO, /, **changes: object) -> str:
    """Returns what `check_inputs` finds; empty if all is right."""
    here: dict[str, object] = {"checkpoint_root_dir": str(root), **changes}
    try:
        check_inputs(plan_experiment(config(base, **here)))
    except UserError as error:
        return str(error)
    return ""


def grpo(model: str, taskset: dict[str, object], **buffer: object) -> dict[str, object]:
    return {
        "model": {"model_path": model},
        "buffer": {"explorer_input": {"taskset": taskset}, **buffer},
    }


def sft(model: str, **experience_buffer: object) -> dict[str, object]:
    return {
        "model": {"model_path": model},
        "buffer": {"trainer_input": {"experience_buffer": experience_buffer}},
    }
