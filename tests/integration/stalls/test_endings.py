"""What never comes back is named, and ends the experiment with a reason."""

import asyncio
import os
import re
import signal
from pathlib import Path

from pydantic import JsonValue

from tests.integration.stalls.stalled import Stalled, stalled_stack
from tests.support.model_free.experiment import (
    experiment_plan,
    giving_up_after,
    run_to_end,
    start_experiment,
    wait_until_ended,
)
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.stage_plan import ExperimentPlan

FAULTS = "tests.integration.stalls.faults"


def short_plan(
    root: Path,
    name: str,
    *,
    workflow: str = "simple_workflow",
    batch_wait_seconds: float = 5.0,
    **buffer: JsonValue,
) -> ExperimentPlan:
    """An experiment whose waits end soon."""
    inputs: dict[str, JsonValue] = {
        "explorer_input": {"default_workflow_type": workflow},
    }
    plan = experiment_plan(
        root,
        name=name,
        num_tasks=200,
        buffer={**inputs, **buffer},
        explorer={"max_retry_times": 0},
        synchronizer={"sync_timeout": 5.0},
    )
    return giving_up_after(plan, batch_wait_seconds)


async def test_what_comes_to_nothing_or_to_no_end_is_named_and_ends_with_a_reason(
    tmp_path: Path,
) -> None:
    async with stalled_stack(tmp_path / "job", step_seconds=0.5, max_restarts=0) as run:
        await _stuck_gang(run, tmp_path)
        await _mostly_filtered(run, tmp_path)
        await _mostly_failing(run, tmp_path)
        await _broker_stands_still(run, tmp_path)
        await _explorer_is_gone(run, tmp_path)


async def _stuck_gang(run: Stalled, root: Path) -> None:
    """Ranks that do nothing, in the middle of a step, are started anew and make that step."""
    plan = short_plan(root, "stuck", total_steps=1)
    synchronizer = run.stack.addresses.synchronizer
    experiment = await start_experiment(synchronizer, plan)
    await run.until_event(experiment, "batch")
    await asyncio.sleep(0.1)
    stuck = run.rank()
    os.kill(stuck, signal.SIGSTOP)
    await run.until_named(
        "the trainer", f"process {stuck} (tests.support.model_free.rank) is stopped"
    )
    ended = await wait_until_ended(synchronizer, experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert run.rank() != stuck


async def _mostly_filtered(run: Stalled, root: Path) -> None:
    """Short batches go by the plan: they are trained."""
    plan = short_plan(
        root,
        "filtered",
        workflow=f"{FAULTS}.Filtered",
        batch_wait_seconds=60.0,  # refills take their time on a busy machine
        total_steps=2,
    )
    synchronizer = run.stack.addresses.synchronizer
    experiment = await start_experiment(synchronizer, plan)
    await run.until_event(experiment, "opened")
    await run.until_named("runs gave nothing to train on", "its reward is still awaited")
    ended = await wait_until_ended(synchronizer, experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason


async def _mostly_failing(run: Stalled, root: Path) -> None:
    """Short batches go by the plan: they fail."""
    plan = short_plan(
        root,
        "failing",
        workflow=f"{FAULTS}.Failing",
        batch_wait_seconds=60.0,
        short_batch="fail",
    )
    ended = await run_to_end(run.stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "3 rounds of refill" in ended.reason and "the tool that this task needs" in ended.reason
    verdict = await run.until_named("model-free/failing is failed", "the tool that this task needs")
    assert not verdict.is_healthy


async def _broker_stands_still(run: Stalled, root: Path) -> None:
    plan = short_plan(root, "without-broker", total_steps=100_000)
    synchronizer = run.stack.addresses.synchronizer
    experiment = await start_experiment(synchronizer, plan)
    await run.until_steps(1)
    with run.stopped("nats") as pid:
        await run.until_named("the broker", f"process {pid} is stopped")
        ended = await wait_until_ended(synchronizer, experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    # What the broker took before it stood still is awaited from the buffer.
    reason = "waited 5 s for the (broker|buffer) to have results committed"
    assert re.search(reason, ended.reason), ended.reason


async def _explorer_is_gone(run: Stalled, root: Path) -> None:
    """Nobody starts it again: the supervisor has given it up."""
    plan = short_plan(root, "without-explorer", total_steps=100_000)
    synchronizer = run.stack.addresses.synchronizer
    experiment = await start_experiment(synchronizer, plan)
    await run.until_steps(1)
    gone = run.stack.pids["explorer"]
    os.kill(gone, signal.SIGKILL)
    await run.until_named("the explorer", f"process {gone} is gone")
    ended = await wait_until_ended(synchronizer, experiment.id)
    assert ended.state == pb.EXPERIMENT_STATE_FAILED
    assert "no batch for train step" in ended.reason
    assert "rollouts are there: " in ended.reason
