"""Explorers come and go while an experiment runs; the one that stays does not notice."""

import asyncio
import signal
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from services.explorer.settings import ExplorerSettings
from tests.integration.together.conftest import EXPLORER, Shared
from tests.integration.together.further import further
from tests.integration.together.seen import Row, member_at, rows, until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended

pytestmark = pytest.mark.asyncio(loop_scope="package")

QUICK = EXPLORER | {RUN_SECONDS_VARIABLE: "0.2"}
LONGEST_PAUSE_SECONDS = 10.0
"""Far above a lease and a step, far below any patience that would have to end."""


async def test_explorers_join_and_leave_without_a_pause_for_the_first(
    tmp_path: Path, shared: Shared, calm_weights: str
) -> None:
    """With one runner each, so that nobody takes all the work of a step."""
    plan = experiment_plan(tmp_path, name="two-explorers", explorer={"runner_per_model": 1})
    stack, job_dir = shared.stack, shared.job_dir
    first_pid, at = stack.pids["explorer"], stack.addresses
    with ExitStack() as joining:
        with shared.held():
            experiment = await start_experiment(at.synchronizer, plan)
            leaving = joining.enter_context(further("explorer", job_dir, at, QUICK))
            dying = joining.enter_context(further("explorer", job_dir, at, QUICK))
            ids = [
                (await member_at(at.synchronizer, address)).id
                for address in (at.explorer, leaving.address, dying.address)
            ]
        for explorer in ids:
            await until(partial(has_won, job_dir, experiment.id, explorer))
        leaving.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(leaving.process.wait, 20) == 0
        assert await num_leased_at(job_dir, leaving.address) == 0
        await until(partial(has_lease_at, job_dir, dying.address))
        dying.process.kill()
        ended = await wait_until_ended(at.synchronizer, experiment.id)
    assert stack.pids["explorer"] == first_pid
    results, *more = [await results_of(job_dir, experiment.id, explorer) for explorer in ids]
    others = [moment for moments in more for moment in moments]
    assert weights_of(ended) == calm_weights
    assert longest_pause(results) < LONGEST_PAUSE_SECONDS
    assert results[-1] > max(others), "the first goes on alone"


async def has_won(job_dir: Path, experiment: str, explorer: str) -> bool:
    """Whether experiences that it made are stored."""
    won = """SELECT 1 FROM run_attempt
        WHERE experiment_id = %s AND producer = %s AND state = 'won' LIMIT 1"""
    return bool(await rows(job_dir, "buffer", won, experiment, explorer))


async def has_lease_at(job_dir: Path, address: str) -> bool:
    return await num_leased_at(job_dir, address) > 0


async def num_leased_at(job_dir: Path, address: str) -> int:
    """Assignments that the explorer at this address holds."""
    holder = ExplorerSettings.model_construct(listen=address).lease_holder
    held = "SELECT 1 FROM assignment WHERE leased_by = %s AND state = 'leased'"
    return len(await rows(job_dir, "buffer", held, holder))


async def results_of(job_dir: Path, experiment: str, explorer: str) -> list[datetime]:
    """When the buffer got each."""
    received = """SELECT received_at FROM run_attempt
        WHERE experiment_id = %s AND producer = %s ORDER BY received_at"""
    return [_moment(row) for row in await rows(job_dir, "buffer", received, experiment, explorer)]


def longest_pause(moments: list[datetime]) -> float:
    return max((after - before).total_seconds() for before, after in pairwise(moments))


def _moment(row: Row) -> datetime:
    (moment,) = row
    assert isinstance(moment, datetime)
    return moment
