"""Every process is restarted while an experiment runs, and nothing is lost or waited for."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from tests.integration.together.seen import PATIENCE_SECONDS, rows, until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.run.local.process_spec import EventKind
from trinity.run.local.stack import LocalStack
from trinity.runtime.rpc.channel import open_channel

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
STORES = {"nats": signal.SIGTERM, "postgres": signal.SIGINT}
"""How each is asked to stop."""
LAST_STEP = 8


ENVIRONMENT = {
    "trainer": {STEP_SECONDS_VARIABLE: "0.2"},
    "explorer": {RUN_SECONDS_VARIABLE: "0.5", "TRINITY_EXPLORER_LEASE_SECONDS": "600"},
}


@dataclass(frozen=True, slots=True)
class Slow:
    """A stack whose steps take a while and whose leases are never over."""

    stack: LocalStack
    job_dir: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slow]:
    job_dir = tmp_path_factory.mktemp("slow")
    async with model_free_stack(job_dir, environment=ENVIRONMENT) as stack:
        yield Slow(stack, job_dir)


async def test_each_process_is_restarted_during_a_run(
    tmp_path: Path, slow: Slow, calm_weights: str
) -> None:
    plan = experiment_plan(tmp_path)
    stack, job_dir = slow.stack, slow.job_dir
    experiment = await start_experiment(stack.addresses.synchronizer, plan)
    for name in SERVICES:
        await train_a_step(job_dir)
        await restart(stack, {name: signal.SIGTERM})
    await train_a_step(job_dir)
    await restart(stack, STORES)
    assert await trained_step(job_dir) < LAST_STEP, "all of it happened during the run"
    ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
    assert weights_of(ended) == calm_weights
    assert ended.start_count == 1


async def test_work_of_a_killed_explorer_does_not_wait_for_its_lease(
    tmp_path: Path, slow: Slow
) -> None:
    """The one that is started in its place takes it up."""
    plan = experiment_plan(tmp_path, name="killed", buffer={"total_steps": 2})
    at = slow.stack.addresses
    experiment = await start_experiment(at.synchronizer, plan)
    await until_leased(at.buffer)
    os.kill(slow.stack.pids["explorer"], signal.SIGKILL)
    ended = await wait_until_ended(at.synchronizer, experiment.id)
    assert ended.state == synchronizer_pb2.EXPERIMENT_STATE_FINISHED, ended.reason


async def until_leased(buffer: str) -> None:
    async with open_channel(buffer) as channel:
        stub = BufferServiceStub(channel)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):  # its tables are being made
                status = await stub.GetBufferStatus(buffer_pb2.GetBufferStatusRequest(), timeout=10)
                if any(stage.num_leased for stage in status.stages):
                    return
            await asyncio.sleep(0.05)


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
