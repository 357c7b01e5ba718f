"""A gang of two whose rank dies goes on by itself, a bounded number of times."""

import asyncio
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.integration.together.conftest import Shared
from tests.integration.together.seen import rows, until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.ranks import ranks_of
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = pytest.mark.asyncio(loop_scope="package")
PAUSE_SECONDS = 0.1


async def test_a_rank_that_dies_restarts_the_gang_but_not_for_ever(
    tmp_path: Path, shared: Shared, calm_weights: str
) -> None:
    once = experiment_plan(tmp_path, name="once", trainer={"rank_num": 2})
    always = experiment_plan(tmp_path, name="always", trainer={"rank_num": 2})
    stack, job_dir = shared.stack, shared.job_dir
    at, trainer = stack.addresses, stack.pids["trainer"]
    experiment = await start_experiment(at.synchronizer, once)
    await until(partial(has_trained_beyond_a_checkpoint, job_dir, experiment.id))
    with shared.held():
        assert len(ranks_of(trainer)) == 2
        kill_second_rank(trainer)
    ended = await wait_until_ended(at.synchronizer, experiment.id)
    assert await num_incarnations(job_dir, experiment.id) == 2

    with shared.held():  # no step is trained between two kills, however slow these are
        hopeless = await start_experiment(at.synchronizer, always)
        ending = asyncio.create_task(wait_until_ended(at.synchronizer, hopeless.id))
        await kill_every_second_rank(trainer, ending)
        failed = await ending
    assert stack.pids["trainer"] == trainer
    assert weights_of(ended) == calm_weights
    assert failed.state == pb.EXPERIMENT_STATE_FAILED
    assert failed.reason.startswith("the trainer failed in stage `rft`: rank 1 was killed by SIGK")


async def has_trained_beyond_a_checkpoint(job_dir: Path, experiment: str) -> bool:
    """Whether there is something to go on from, and something to do again."""
    query = """SELECT 1 FROM stage JOIN checkpoint USING (tenant, experiment_id, stage)
        WHERE experiment_id = %s AND trained_step > step"""
    return bool(await rows(job_dir, "buffer", query, experiment))


async def num_incarnations(job_dir: Path, experiment: str) -> int:
    query = "SELECT 1 FROM incarnation WHERE experiment_id = %s"
    return len(await rows(job_dir, "buffer", query, experiment))


def kill_second_rank(trainer: int) -> None:
    ranks_of(trainer)[1].send_signal(signal.SIGKILL)


async def kill_every_second_rank(trainer: int, ending: asyncio.Task[pb.Experiment]) -> None:
    while not ending.done():
        with suppress(psutil.Error, IndexError):
            kill_second_rank(trainer)
        await asyncio.sleep(PAUSE_SECONDS)
