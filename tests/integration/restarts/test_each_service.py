"""Every process is restarted while an experiment runs, and nothing is lost."""

import asyncio
import os
import signal
from pathlib import Path

from tests.integration.together.seen import PATIENCE_SECONDS, rows, until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.local.process_spec import EventKind
from trinity.local.stack import LocalStack

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
STORES = {"nats": signal.SIGTERM, "postgres": signal.SIGINT}
"""How each is asked to stop."""
LAST_STEP = 8


async def test_each_process_is_restarted_during_a_run(tmp_path: Path, calm_weights: str) -> None:
    plan = experiment_plan(tmp_path)
    slow = {"trainer": {STEP_SECONDS_VARIABLE: "0.2"}}
    async with model_free_stack(plan.job_path, environment=slow) as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        for name in SERVICES:
            await train_a_step(plan.job_path)
            await restart(stack, {name: signal.SIGTERM})
        await train_a_step(plan.job_path)
        await restart(stack, STORES)
        assert await trained_step(plan.job_path) < LAST_STEP, "all of it happened during the run"
        ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
    assert weights_of(ended) == calm_weights
    assert ended.start_count == 1


async def restart(stack: LocalStack, signals: dict[str, signal.Signals]) -> None:
    """Ask processes to stop and return when the supervisor has started each of them again."""
    for name, number in signals.items():
        os.kill(stack.pids[name], number)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await until_back(stack, set(signals))


async def until_back(stack: LocalStack, away: set[str]) -> None:
    """Each of them ended in order, and answers again."""
    ended: set[str] = set()
    async for event in stack.events():
        if event.process in away and event.kind is EventKind.EXITED:
            assert event.exit_code == 0, event.log_tail
            ended.add(event.process)
        if event.process in ended and event.kind is EventKind.READY:
            away.discard(event.process)
        if not away:
            return


async def train_a_step(job_dir: Path) -> None:
    before = await trained_step(job_dir)

    async def is_further() -> bool:
        return await trained_step(job_dir) > before

    await until(is_further)


async def trained_step(job_dir: Path) -> int:
    """Of the one stage; 0 before there is one."""
    found = await rows(job_dir, "buffer", "SELECT trained_step FROM stage")
    return int(str(found[0][0])) if found else 0
