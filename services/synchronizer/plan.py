"""The part of an experiment's plan that decides its life cycle."""

import json
import os
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from services.synchronizer.domain import PlannedStage, Role
from services.synchronizer.validation import MAX_NAME_LENGTH, text
from trinity.config.plan.stage_length import ExperimentLengths
from trinity.config.schema.base import redact_secrets
from trinity.errors import InvalidRequest, PreconditionFailed, TooLarge
from trinity.runtime.json_values import holds_null
from trinity.runtime.rpc.bounds import BOUNDS

NUM_THREADS = "num_threads"
"""The key of a stage that is kept for all lives of an experiment."""
MAX_STAGES = 200
"""Their names and final versions fit into an answer together with the plan."""

MAX_PLAN_BYTES = BOUNDS["CreateExperimentRequest.plan_json"]


class _Stage(BaseModel):
    name: str
    roles: Annotated[tuple[Literal["trainer", "explorer"], ...], Field(min_length=1)]


class _Plan(BaseModel):
    stages: Annotated[tuple[_Stage, ...], Field(min_length=1, max_length=MAX_STAGES)]


class _JobDirectory(BaseModel):
    job_dir: object = ""


def planned_stages(plan_json: str) -> tuple[PlannedStage, ...]:
    """Parses the stages of a plan; its other parts are for the other services.

    Raises: InvalidRequest.
    """
    try:
        plan = _Plan.model_validate_json(plan_json)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"plan_json: {where}: {first['msg']}") from error
    names = [text(s.name, "plan_json: a stage's name", MAX_NAME_LENGTH) for s in plan.stages]
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidRequest(f"plan_json: two stages are called {min(twice)!r}")
    if holds_null(plan_json):
        raise InvalidRequest("plan_json: holds a NUL character")
    return tuple(
        PlannedStage(name=name, roles=tuple(dict.fromkeys(Role(role) for role in stage.roles)))
        for name, stage in zip(names, plan.stages, strict=True)
    )


def longer_stages(before: str, now: str) -> frozenset[str]:
    """Returns the stages that may have more steps by the second plan than by the first."""
    try:
        known, wanted = (ExperimentLengths.model_validate_json(plan) for plan in (before, now))
    except ValidationError:
        return frozenset()  # a client's plan that does not say how long it is
    return wanted.longer_than(known)


def is_same_plan(one: str, other: str) -> bool:
    """Returns True if two plans are the same JSON value; formatting does not matter."""
    return bool(json.loads(one) == json.loads(other))


def keep_threads(begun: str, plan_json: str) -> str:
    """Returns the plan with the threads of the one that its experiment began with.

    Sums in another order would end in other bits.
    """
    old, new = json.loads(begun), json.loads(plan_json)
    for before, stage in zip(old["stages"], new["stages"], strict=False):
        stage.pop(NUM_THREADS, None)
        if NUM_THREADS in before:
            stage[NUM_THREADS] = before[NUM_THREADS]
    return plan_json if new == json.loads(plan_json) else json.dumps(new, separators=(",", ":"))


def without_secrets(plan_json: str) -> str:
    """Returns the plan with keys and passwords replaced by `***`, as short as it came.

    Raises: TooLarge when it has grown beyond the limit of an answer.
    """
    redacted = redact_secrets("", json.loads(plan_json))
    text = json.dumps(redacted, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode(errors="replace")) > MAX_PLAN_BYTES:
        raise TooLarge(f"plan_json has more than {MAX_PLAN_BYTES:,} bytes as it is shown")
    return text


def check_owner(directory: str, tenant: str, owner: tuple[str, str] | None) -> None:
    """Refuses a run that would write to the directory of another experiment.

    Raises: PreconditionFailed.
    """
    if owner is not None:
        whose, label = owner
        who = f"experiment {label!r}" if whose == tenant else "another tenant's experiment"
        raise PreconditionFailed(
            f"plan_json: job_dir: {who} works in {directory}: give the "
            f"experiment another `name` or `checkpoint_root_dir`"
        )


def directory_of(plan_json: str) -> str:
    """Returns the directory of a run's files; empty if its plan does not name one."""
    directory = _JobDirectory.model_validate_json(plan_json).job_dir
    return os.path.normpath(directory) if directory and isinstance(directory, str) else ""
