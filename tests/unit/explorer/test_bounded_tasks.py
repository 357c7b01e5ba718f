"""Coroutines that are ended in time, some of which do not want to."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.explorer.rollout.runner import DeadlineExceeded, DeadlineTasks
from tests.unit.explorer.runs import outcome_of
from trinity.plugins import WORKFLOWS
from trinity.types import Experience
from trinity.workflows.workflow import Workflow

PATIENCE_SECONDS = 30.0


@dataclass
class Stubborn:
    """Goes on whenever it is cancelled, until it may end."""

    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> str:
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
        return "late"


@pytest.fixture
async def stubborn() -> AsyncIterator[Stubborn]:
    stubborn = Stubborn()
    yield stubborn
    stubborn.may_end.set()
    await asyncio.sleep(0)


async def nothing() -> None:
    """Is to be done before the end."""


async def settled(tasks: DeadlineTasks) -> None:
    """Lost ones have ended, and are counted no more."""
    await asyncio.wait(set(tasks._abandoned), timeout=PATIENCE_SECONDS)
    await asyncio.sleep(0)
    assert tasks.num_abandoned == 0


async def test_a_coroutine_gives_its_result_or_its_error() -> None:
    async def fail() -> None:
        raise LookupError("no such thing")

    async def leave() -> None:
        raise SystemExit(3)

    async def give_up() -> None:
        raise asyncio.CancelledError

    tasks = DeadlineTasks()
    for function, error in ((fail, LookupError), (leave, SystemExit), (give_up, BaseException)):
        with pytest.raises(error):
            await tasks.run_with_deadline(function, seconds=60.0, before_cancel=nothing)
    assert await tasks.run_with_deadline(
        lambda: asyncio.sleep(0, "done"), seconds=60.0, before_cancel=nothing
    )


async def test_one_that_goes_on_after_its_time_is_lost_until_it_ends(stubborn: Stubborn) -> None:
    tasks = DeadlineTasks(grace_seconds=0.01)
    with pytest.raises(DeadlineExceeded):
        await tasks.run_with_deadline(stubborn.run, seconds=0.01, before_cancel=nothing)
    assert tasks.num_abandoned == 1
    stubborn.may_end.set()
    await settled(tasks)


async def test_one_that_ends_within_the_grace_was_late_all_the_same(stubborn: Stubborn) -> None:
    tasks = DeadlineTasks(grace_seconds=PATIENCE_SECONDS)
    running = asyncio.create_task(
        tasks.run_with_deadline(stubborn.run, seconds=0.01, before_cancel=nothing)
    )
    await stubborn.cancelled.wait()
    stubborn.may_end.set()
    with pytest.raises(DeadlineExceeded):
        await running
    assert tasks.num_abandoned == 0


async def test_what_is_to_be_done_before_the_end_is_done_before(stubborn: Stubborn) -> None:
    async def look() -> None:
        assert not stubborn.cancelled.is_set()

    tasks = DeadlineTasks(grace_seconds=0.01)
    with pytest.raises(DeadlineExceeded):
        await tasks.run_with_deadline(stubborn.run, seconds=0.01, before_cancel=look)


@pytest.mark.parametrize("times", [1, 2])
async def test_who_waits_for_it_may_be_cancelled_and_is_not_held_up(
    stubborn: Stubborn, times: int
) -> None:
    tasks = DeadlineTasks(grace_seconds=0.01 if times == 1 else PATIENCE_SECONDS)
    running = asyncio.create_task(
        tasks.run_with_deadline(stubborn.run, seconds=60.0, before_cancel=nothing)
    )
    await asyncio.sleep(0)
    for _ in range(times):
        running.cancel()
        await stubborn.cancelled.wait()
    async with asyncio.timeout(PATIENCE_SECONDS / 2):
        await asyncio.wait([running])
    assert running.cancelled()
    assert tasks.num_abandoned == 1


async def test_there_are_so_many_lost_ones_and_no_more(stubborn: Stubborn) -> None:
    tasks = DeadlineTasks(max_abandoned=1, grace_seconds=0.0)
    with pytest.raises(DeadlineExceeded):
        await tasks.run_with_deadline(stubborn.run, seconds=0.0, before_cancel=nothing)
    with pytest.raises(RuntimeError, match="1 workflows still run past their time limit though"):
        await tasks.run_with_deadline(stubborn.run, seconds=0.0, before_cancel=nothing)
    stubborn.may_end.set()
    await settled(tasks)
    assert await tasks.run_with_deadline(
        lambda: asyncio.sleep(0, "done"), seconds=60.0, before_cancel=nothing
    )


class Endless(Workflow):
    """Takes being cancelled for a mistake."""

    is_async = True
    shares_loop = True
    may_end = False

    async def run_async(self) -> list[Experience]:
        while not Endless.may_end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)
        return []


async def test_a_workflow_that_swallows_its_cancellation_ends_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WORKFLOWS.register("test_endless_workflow", Endless)
    tasks = DeadlineTasks(grace_seconds=0.01)
    outcome = await outcome_of(
        tmp_path, tasks=tasks, timeout_seconds=0.05, default_workflow_type="test_endless_workflow"
    )
    assert "more than 0.05 s" in outcome.failure
    assert tasks.num_abandoned == 1
    monkeypatch.setattr(Endless, "may_end", True)
    for lost in list(tasks._abandoned):
        lost.cancel()
    await settled(tasks)


def test_one_that_never_ends_keeps_no_process_from_ending() -> None:
    code = """
import asyncio
from services.explorer.rollout.runner import DeadlineExceeded, DeadlineTasks

async def never():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    try:
        await DeadlineTasks(grace_seconds=0.0).run_with_deadline(
            never, seconds=0.01, before_cancel=lambda: asyncio.sleep(0)
        )
    except DeadlineExceeded:
        print("over")

asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], timeout=PATIENCE_SECONDS, check=True, capture_output=True
    )
    assert ended.stdout == b"over\n"
