"""An asynchronous workflow that blocks the event loop is found, named, and fails alone."""

import asyncio
import re
import time
from pathlib import Path
from typing import ClassVar

import pytest

from services.explorer.rollout.runner import DeadlineTasks
from services.explorer.rollout.workflow_execution import LoopWatchdog
from tests.unit.explorer.runs import outcome_of
from trinity.plugins import WORKFLOWS
from trinity.types import Experience
from trinity.workflows.workflow import Workflow


class Blocking(Workflow):
    """Blocks the loop in one of several ways, and goes on after any Exception."""

    is_async = True
    shares_loop = True
    known_args: ClassVar[frozenset[str] | None] = frozenset({"way"})

    async def run_async(self) -> list[Experience]:
        try:
            await getattr(self, str(self.task.workflow_args["way"]))()
        except Exception as error:
            raise AssertionError("caught") from error
        [made] = await self.model.chat_async([{"role": "user", "content": "a"}])
        made.reward = 1.0
        return [made]

    async def sleep(self) -> None:
        time.sleep(60)  # noqa: ASYNC251  # it blocks on purpose

    async def compute(self) -> None:
        while True:
            pass

    async def pattern(self) -> None:
        re.match(r"(\d+\s*)+x$", "1" * 40)

    async def in_a_task(self) -> None:
        await asyncio.wait([asyncio.create_task(self.sleep())])

    async def awaits(self) -> None:
        await asyncio.sleep(1.5)


@pytest.fixture(autouse=True)
def registered() -> None:
    WORKFLOWS.register("test_blocks_the_loop", Blocking)


@pytest.mark.parametrize("way", ["sleep", "compute", "pattern", "in_a_task"])
async def test_a_workflow_that_blocks_the_loop_fails_and_is_named(tmp_path: Path, way: str) -> None:
    async with LoopWatchdog(blocked_seconds=1.0):
        outcome = await outcome_of(
            tmp_path,
            timeout_seconds=100.0,
            default_workflow_type="test_blocks_the_loop",
            workflow_args={"way": way},
        )
        other = await outcome_of(tmp_path)
    assert "it blocked the explorer's event loop for " in outcome.failure
    assert "test_loop_watchdog.py, line " in outcome.failure
    assert outcome.duration_seconds < 30.0
    assert other.is_complete


async def test_a_workflow_that_awaits_is_left_alone(tmp_path: Path) -> None:
    async with LoopWatchdog(blocked_seconds=1.0):
        outcome = await outcome_of(
            tmp_path,
            default_workflow_type="test_blocks_the_loop",
            workflow_args={"way": "awaits"},
        )
    assert outcome.is_complete, outcome.failure


async def test_control_without_the_watchdog_it_blocks_on(tmp_path: Path) -> None:
    class Short(Blocking):
        async def sleep(self) -> None:
            time.sleep(3.0)  # noqa: ASYNC251  # it blocks on purpose

    WORKFLOWS.register("test_blocks_for_a_while", Short)
    outcome = await outcome_of(
        tmp_path,
        timeout_seconds=100.0,
        default_workflow_type="test_blocks_for_a_while",
        workflow_args={"way": "sleep"},
    )
    assert outcome.is_complete
    assert outcome.duration_seconds > 3.0


async def test_what_blocks_outside_of_a_run_is_not_interrupted() -> None:
    async with LoopWatchdog(blocked_seconds=0.5):
        time.sleep(1.5)  # noqa: ASYNC251  # it blocks on purpose
        tasks = DeadlineTasks()

        async def nothing() -> int:
            return 3

        assert await tasks.run_with_deadline(nothing, seconds=5.0, before_cancel=_nothing) == 3


async def _nothing() -> None:
    return None
