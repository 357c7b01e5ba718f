"""Runs a workflow in a process of users' code, as the explorer runs it in a thread."""

import asyncio
from collections.abc import Sequence
from typing import Any

from trinity.config.plan.parts import ResolvedSampling
from trinity.config.schema.data import FormatConfig
from trinity.isolation.calls import CallChannel
from trinity.isolation.model import RemoteModel
from trinity.isolation.values import PartRef, experience_to_text
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, JsonObject
from trinity.workflows.task import Task
from trinity.workflows.trinity_rft.experience import preload_tensors
from trinity.workflows.trinity_rft.hosting import HostedRuns, IdleWorkflows, ModelPaths
from trinity.workflows.trinity_rft.task import NamedReward, TaskInputs
from trinity.workflows.trinity_rft.workflow import Workflow as HostedWorkflow
from trinity.workflows.workflow import Workflow

Json = dict[str, Any]
_IDLE = IdleWorkflows()
"""Workflows of this process that serve one task after another."""


def load_workflow(reference: Json) -> None:
    """Imports a workflow with what it needs, before a run's time begins."""
    if issubclass(_workflow(reference), HostedWorkflow):
        preload_tensors()


def run_workflow(channel: CallChannel, request: Json) -> JsonObject:
    """Makes the runs of a request; returns their experiences by run."""
    kind = _workflow(request["workflow"])
    models = [RemoteModel(channel, place, facts) for place, facts in enumerate(request["models"])]
    try:
        if issubclass(kind, HostedWorkflow):
            made = _hosted(kind, models, request).make()
        else:
            made = {request["runs"][0]: _checked(_native(kind, models, request), kind.__name__)}
    finally:
        for model in models:
            model.refuse_calls()
    return {"made": {str(run): [experience_to_text(e) for e in made[run]] for run in made}}


def _workflow(reference: Json) -> Any:
    ref: PartRef[type[Workflow]] = PartRef(**reference)
    return ref.resolve(WORKFLOWS)


def _native(kind: type[Workflow], models: Sequence[RemoteModel], request: Json) -> object:
    task, policy, auxiliary = _task(request, _bound(request)), models[0], models[1:]
    workflow = (
        kind(task=task, model=policy, auxiliary_models=auxiliary)
        if auxiliary  # workflows may leave the argument out
        else kind(task=task, model=policy)
    )
    return asyncio.run(workflow.run_async()) if workflow.is_async else workflow.run()


def _checked(made: object, name: str) -> list[Experience]:
    if not isinstance(made, list) or not made:
        raise ValueError(f"{name} returned no list of experiences")
    for experience in made:
        if not isinstance(experience, Experience):
            raise TypeError(f"{name} returned {type(experience).__name__}, not an Experience")
    return made


def _hosted(kind: type, models: Sequence[RemoteModel], request: Json) -> HostedRuns:
    hosted = request["hosted"]
    inputs = TaskInputs(
        workflow=kind,
        task=_task(request, None),
        sampling=ResolvedSampling.model_validate(hosted["sampling"]),
        reward=_named(request),
        explore_step=hosted["explore_step"],
        repeat_times=hosted["repeat_times"],
        num_runs=len(request["runs"]),
        needs_reward=hosted["needs_reward"],
    )
    return HostedRuns(
        inputs=inputs,
        model=models[0],
        auxiliary_models=models[1:],
        runs=tuple(request["runs"]),
        paths=ModelPaths(hosted["policy_path"], tuple(hosted["auxiliary_paths"])),
        idle=_IDLE,
    )


def _task(request: Json, reward: BoundReward | None) -> Task:
    values = request["task"]
    form = FormatConfig.model_validate(values["format"])
    return Task(**{**values, "format": form}, reward=reward)


def _bound(request: Json) -> BoundReward | None:
    reward = request["reward"]
    named = _named(request)
    if named is None:
        return None
    return BoundReward(named.source, named.args, named.name, on_failure=reward["on_failure"])


def _named(request: Json) -> NamedReward | None:
    reward = request["reward"]
    if reward is None:
        return None
    ref: PartRef[Any] = PartRef(**reward["part"])
    return NamedReward(source=ref.resolve(REWARDS), args=reward["args"], name=ref.name)
