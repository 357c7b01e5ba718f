"""A stopped run that is looked at: it is opened once, and closed at once when a run wants it."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.model_free.experiment import experiment_plan, start_experiment
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.launch.resume import store_plan
from trinity.run.local.given_run import TRUSTED_VARIABLE
from trinity.run.local.reaper import viewer_pid
from trinity.run.local.stack import LocalStack
from trinity.run.stored import only_needed
from trinity.studio.connection import Phase, RunConnection
from trinity.studio.runs import RunDirectoryState, run_state

pytestmark = pytest.mark.timeout(300)
PATIENCE_SECONDS = 100.0
NOTICE_SECONDS = 1.0
SPREAD = 3.0
"""Two stops on a busy machine differ by less than this factor."""


async def stored_run(root: Path) -> tuple[ExperimentPlan, float]:
    """A run that was created and has stopped, with the seconds that its stop took."""
    plan = experiment_plan(root)
    async with LocalStack(job_dir=plan.job_path, services=only_needed) as stack:
        store_plan(plan)
        await start_experiment(stack.addresses.synchronizer, plan)
        began = time.monotonic()
    return plan, time.monotonic() - began


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # a state of files
            await asyncio.sleep(0.02)


@asynccontextmanager
async def looked_at(job_dir: Path) -> AsyncIterator[RunConnection]:
    connection = RunConnection(job_dir)
    keeping = asyncio.create_task(connection.keep())
    try:
        yield connection
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def test_a_run_takes_the_place_of_a_look_at_it_and_the_look_goes_on(tmp_path: Path) -> None:
    plan, stop_seconds = await stored_run(tmp_path)
    job = plan.job_path
    assert run_state(job) is RunDirectoryState.STOPPED
    async with looked_at(job) as connection:
        await until(lambda: connection.opened is not None)
        assert connection.opened is not None
        assert not connection.opened.is_live
        stored = connection.opened.system
        assert (viewer_pid(job), run_state(job)) == (os.getpid(), RunDirectoryState.STOPPED)
        began = time.monotonic()
        run = LocalStack(job_dir=job, services=only_needed)
        starting = asyncio.create_task(run.__aenter__())
        await until(
            lambda: viewer_pid(job) is None and run_state(job) is RunDirectoryState.CHANGING
        )
        taken = time.monotonic() - began
        await starting
        try:
            await until(lambda: connection.opened is not None and connection.opened.is_live)
            assert connection.opened.system.buffer == run.addresses.buffer != stored.buffer
            assert run_state(job) is RunDirectoryState.RUNNING
        finally:
            await run.stop()
        await until(lambda: connection.opened is not None and not connection.opened.is_live)
    assert connection.state.phase is Phase.CLOSED
    assert viewer_pid(job) is None
    assert taken < NOTICE_SECONDS + SPREAD * stop_seconds  # the stop itself takes 0.7 s when idle


async def test_a_run_of_others_is_opened_as_a_copy_once_a_person_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = await stored_run(tmp_path)
    given = shutil.copytree(plan.job_path, tmp_path / "given")
    monkeypatch.delenv(TRUSTED_VARIABLE)
    async with looked_at(given) as connection:
        await until(lambda: connection.state.phase is Phase.ASKING)
        assert "can hold code of others" in connection.state.detail
        assert viewer_pid(given) is None
        connection.is_confirmed = True
        await until(lambda: connection.opened is not None)
        assert viewer_pid(given) is None  # nothing is opened or written there


async def test_what_is_no_run_says_so_and_is_tried_again(tmp_path: Path) -> None:
    async with looked_at(tmp_path) as connection:
        await until(lambda: connection.state.phase is Phase.FAILED)
        assert f"{tmp_path} holds no run" in connection.state.detail
