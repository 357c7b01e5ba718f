"""One attempt at a run, as the runner makes it of a plan."""

from collections.abc import Sequence
from pathlib import Path

from services.explorer.engines import LoadedModel
from services.explorer.media import MediaStore
from services.explorer.rollout.runner import AttemptRunner, DeadlineTasks, RunTimeLimit
from services.explorer.rollout.user_process_pool import UserProcessPool
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import Assignment, Attempt, AttemptResult, WeightsId
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


def taskset(**values: JsonObject | str) -> JsonObject:
    """The section of a plan that says these of its taskset."""
    return {"explorer_input": {"taskset": dict(values)}}


async def outcome_of(
    folder: Path,
    engine: ArithmeticEngine | None = None,
    assignment: Assignment | None = None,
    timeout_seconds: float = 10.0,
    threads: DaemonThreads | None = None,
    tasks: DeadlineTasks | None = None,
    processes: UserProcessPool | None = None,
    explorer: JsonObject | None = None,
    batch_size: int = 4,
    repeat_times: int = 2,
    auxiliary: Sequence[LoadedModel] = (),
    media: MediaStore | None = None,
    **values: JsonObject | str,
) -> AttemptResult:
    """Of an attempt over a taskset with these values."""
    engine = engine or ArithmeticEngine()
    plan = build_plan(
        folder,
        buffer={**taskset(**values), "batch_size": batch_size},
        explorer=explorer or {},
        algorithm={"repeat_times": repeat_times},
    )
    workbench = WorkflowFactory(
        plan=plan.stages[0],
        seed=plan.seed,
        generator=engine,
        tokenizer=CharacterTokenizer(),
        processes=processes,
        auxiliary=auxiliary,
        media=media,
    )
    runner = AttemptRunner(
        factory=workbench,
        engine=engine,
        limit=RunTimeLimit(ExplorerConfig(max_timeout=timeout_seconds)),
        threads=threads or DaemonThreads(name="test", max_threads=1),
        tasks=tasks or DeadlineTasks(),
    )
    attempt = Attempt(key=KEY, assignment=assignment or build_assignment(), run=1, number=2)
    return await runner.run_attempt(attempt, WeightsId(version=4, incarnation=2))
