"""An experiment on services that run already is shown by a monitor wherever somebody feeds one."""

import asyncio
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.deploy.submission import ExperimentSubmission

STEPS = 3
RUN_SECONDS = 240
pytestmark = [ON_IT, pytest.mark.timeout(300)]


async def submit(stack: SharedStack, plan: ExperimentPlan, monitor: Path | None) -> None:
    submission = ExperimentSubmission(
        plan=plan,
        synchronizer=stack.synchronizer,
        buffer=stack.buffer,
        monitor=monitor,
    )
    async with asyncio.timeout(RUN_SECONDS):
        await submission.submit_and_follow()


def shown(folder: Path, scalar: str) -> list[int]:
    """Steps at which a scalar was shown, by any file under the folder."""
    steps: list[int] = []
    for directory in {file.parent for file in folder.rglob("*tfevents*")}:
        read = EventAccumulator(str(directory)).Reload()
        if scalar in read.Tags()["scalars"]:
            steps += [one.step for one in read.Scalars(scalar)]
    return steps


async def test_a_monitor_is_fed_by_whoever_submits_with_one(
    tmp_path: Path, shared_stack: SharedStack
) -> None:
    """Begun when everything is over, it still shows all of it, once."""
    plan = experiment_plan(
        tmp_path,
        name="submitted",
        buffer={"total_steps": STEPS},
        monitor={"monitor_type": "tensorboard"},
    )
    await submit(shared_stack, plan, None)
    assert shown(tmp_path, "time/step") == []
    folder = tmp_path / "shown"
    for _ in range(2):
        await submit(shared_stack, plan, folder)
    for scalar in ("time/step", "rollout/reward/mean"):
        assert shown(folder, scalar) == [1, 2, 3]
