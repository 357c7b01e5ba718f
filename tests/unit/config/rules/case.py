"""A case: changes to a small configuration, and what follows or is said."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.unit.config.builders import GRPO
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.base import KeyStatus

Tree = Mapping[str, Any]
PLANNED, NO_EFFECT, RENAMED = KeyStatus.PLANNED, KeyStatus.NO_EFFECT, KeyStatus.RENAMED
ERROR, ADVICE, SILENT = "mistake", "advice", "nothing"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rule."""

    name: str
    changes: Tree = field(default_factory=dict)
    base: Tree = field(default_factory=lambda: GRPO)
    told: str = SILENT
    said: str = ""
    holds: Callable[[StagePlan], bool] = lambda _: True


def follows(name: str, changes: Tree, holds: Callable[[StagePlan], bool], **more: Any) -> Case:
    """Something follows in the plan."""
    return Case(name=name, changes=changes, holds=holds, **more)


def refused(name: str, changes: Tree, said: str, base: Tree = GRPO) -> Case:
    """The file is mistaken."""
    return Case(name=name, changes=changes, base=base, told=ERROR, said=said)


def told(name: str, changes: Tree, status: KeyStatus | str, said: str, **more: Any) -> Case:
    """The file is told something, and is right."""
    return Case(name=name, changes=changes, told=status, said=said, **more)


def at(path: str, value: object) -> dict[str, Any]:
    """A tree with one value."""
    first, _, rest = path.partition(".")
    return {first: at(rest, value) if rest else value}


INPUT = "buffer.explorer_input"
ROLLOUT = "explorer.rollout_model"
LENGTHS = ("max_model_len", "max_prompt_tokens", "max_response_tokens", "min_response_tokens")


def lengths(*given: int | None) -> dict[str, Any]:
    return {"model": {"max_model_len": None} | dict(zip(LENGTHS, given, strict=False))}


def have(*wanted: int) -> Callable[[StagePlan], bool]:
    return lambda plan: tuple(getattr(plan, name) for name in LENGTHS) == wanted


def part(name: str, value: object) -> Callable[[StagePlan], bool]:
    return lambda plan: getattr(plan.algorithm, name) == value


def first(name: str, value: object) -> Callable[[StagePlan], bool]:
    return lambda plan: getattr(plan.tasksets[0], name) == value


def tasksets(*given: Tree) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"taskset": None, "tasksets": list(given)}}}


def evaluated(**given: Any) -> dict[str, Any]:
    return {"buffer": {"explorer_input": {"eval_tasksets": [{"path": "/e", **given}]}}}
