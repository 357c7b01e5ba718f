"""A run without a model that has ended, in whose directory everybody may look."""

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.model_free.engine import LOG_VARIABLE
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import model_free_stack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.resume import store_plan

ENGINE_LOG = "engine.jsonl"


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run of eight steps, with checkpoints of steps 3, 6 and 8."""

    root: Path
    plan: ExperimentPlan
    untouched: Path
    """A copy of its directory, to be copied by those who change what is in it."""

    @property
    def engine_log(self) -> Path:
        """Prompts and answers of the engine, a line each."""
        return self.root / ENGINE_LOG


@pytest.fixture(scope="session")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> EndedRun:
    """Others may start in its directory, under other names."""
    root = tmp_path_factory.mktemp("ended")
    plan = asyncio.run(_run_to_end(root))
    untouched = root / "untouched"
    shutil.copytree(plan.job_path, untouched)
    return EndedRun(root, plan, untouched)


async def _run_to_end(root: Path) -> ExperimentPlan:
    plan = experiment_plan(root)
    environment = {"explorer": {LOG_VARIABLE: str(root / ENGINE_LOG)}}
    async with model_free_stack(plan.job_path, environment=environment) as stack:
        store_plan(plan)
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.reason == ""
    return plan
