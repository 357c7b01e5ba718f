"""Runs a workflow that was written for Trinity-RFT through the explorer's runner."""

from pathlib import Path

from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import Attempt, AttemptResult, WeightsId
from tests.unit.explorer.builders import (
    KEY,
    ArithmeticEngine,
    CharacterTokenizer,
    build_assignment,
    build_plan,
)
from trinity.config.schema.explorer import ExplorerConfig
from trinity.runtime.threads import DaemonThreads
from trinity.types import JsonObject
from trinity.workflows.generation import Generator

WEIGHTS = WeightsId(version=4, incarnation=2)


def runner_of(
    folder: Path,
    workflow: str,
    engine: Generator | None = None,
    api: AttemptApiServer | None = None,
    algorithm: JsonObject | None = None,
    lengths: JsonObject | None = None,
    **taskset: JsonObject | str,
) -> AttemptRunner:
    """A runner over a taskset with this workflow; `engine` answers in place of arithmetic."""
    of_taskset: JsonObject = {"default_workflow_type": workflow, **taskset}
    model = lengths or {"max_prompt_tokens": 500, "max_response_tokens": 6}
    plan = build_plan(
        folder,
        buffer={"explorer_input": {"taskset": of_taskset}},
        model={"model_path": str(folder / "model"), **model},
        **({"algorithm": algorithm} if algorithm else {}),
    )
    arithmetic = ArithmeticEngine()
    factory = WorkflowFactory(
        plan=plan.stages[0],
        seed=plan.seed,
        generator=engine or arithmetic,
        tokenizer=CharacterTokenizer(),
        api=api,
    )
    return AttemptRunner(
        factory=factory,
        engine=arithmetic,
        limit=RunTimeLimit(ExplorerConfig(max_timeout=10)),
        threads=DaemonThreads(name="test", max_threads=2),
        tasks=DeadlineTasks(),
    )


def attempts_at(*runs: int, task_json: str = "") -> list[Attempt]:
    """First attempts at runs of one assignment."""
    changes = {"task_json": task_json} if task_json else {}
    assignment = build_assignment(runs=runs, **changes)
    return [Attempt(key=KEY, assignment=assignment, run=run, number=0) for run in runs]


async def made_by(runner: AttemptRunner, *runs: int, task_json: str = "") -> list[AttemptResult]:
    """The results of these runs, in one call of the workflow if it makes several."""
    attempts = attempts_at(*runs, task_json=task_json)
    calls = [attempts] if runner.runs_together(attempts[0].assignment) else [[a] for a in attempts]
    return [result for call in calls for result in await runner.run_attempts(call, WEIGHTS)]
