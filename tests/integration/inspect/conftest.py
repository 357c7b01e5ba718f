"""A run without a model that has ended, in whose directory everybody may look."""

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import model_free_stack
from trinity.cli.main import make_app
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.launch.resume import store_plan

WIDTH = {"COLUMNS": "200"}


async def trinity(*words: str, job_dir: Path) -> tuple[str, str, BaseException | None]:
    """What a command prints, says beside it, and what it fails with."""
    arguments = [*words, "--job-dir", str(job_dir)]
    done = await asyncio.to_thread(CliRunner(env=WIDTH).invoke, make_app(arguments), arguments)
    return done.stdout, done.stderr, done.exception


async def ended_run(root: Path) -> ExperimentPlan:
    """A run of eight steps, with checkpoints of steps 3, 6 and 8."""
    plan = experiment_plan(root)
    async with model_free_stack(plan.job_path) as stack:
        store_plan(plan)
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.reason == ""
    return plan
