"""A run without a model that has ended, in whose directory everybody may look."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from tests.model_free.experiment import experiment_plan, run_to_end
from tests.model_free.stack import model_free_stack
from trinity.config.plan import ExperimentPlan
from trinity.launch.resume import remember

REPOSITORY = Path(__file__).resolve().parents[3]
SECONDS = 120


class Trinity(Protocol):
    """Calls the command line; answers its exit code, what it printed and its errors."""

    def __call__(self, *words: str, job_dir: Path | None = None) -> tuple[int, str, str]: ...


@pytest.fixture(scope="session")
def trinity() -> Trinity:
    def call(*words: str, job_dir: Path | None = None) -> tuple[int, str, str]:
        where = [] if job_dir is None else ["--job-dir", str(job_dir)]
        done = subprocess.run(
            [sys.executable, "-m", "trinity.cli.main", *words, *where],
            cwd=REPOSITORY,
            env={**os.environ, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return done.returncode, done.stdout, done.stderr

    return call


async def ended_run(root: Path) -> ExperimentPlan:
    """A run of eight steps, with checkpoints of steps 3, 6 and 8."""
    plan = experiment_plan(root)
    async with model_free_stack(plan.job_path) as stack:
        remember(plan)
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.reason == ""
    return plan
