"""Coroutines of users, ended in time whatever they do about it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from trinity.threads import MAX_LOST

logger = logging.getLogger(__name__)

T = TypeVar("T")
GRACE_SECONDS = 2.0
"""To clean up in; a cancelled task that takes longer is not waited for."""


class TimeOver(Exception):
    """It took longer than it may."""


class BoundedTasks:
    """Runs each coroutine in a task of its own, which is cancelled when its time is over.

    A task need not end when it is cancelled. One that does not within the grace goes on as a lost
    one: what it gives counts for nothing, and it keeps no process from ending. There are never more
    than `max_lost` of them before coroutines are refused.

        made = await tasks.run(workflow.run_async, seconds=60.0, before_end=close_models)
    """

    def __init__(self, *, max_lost: int = MAX_LOST, grace_seconds: float = GRACE_SECONDS) -> None:
        self._max_lost = max_lost
        self._grace_seconds = grace_seconds
        self._lost: set[asyncio.Task[Any]] = set()

    @property
    def num_lost(self) -> int:
        """Tasks that still run what nobody waits for any more."""
        return len(self._lost)

    async def run(
        self,
        function: Callable[[], Coroutine[None, None, T]],
        *,
        seconds: float,
        before_end: Callable[[], Awaitable[None]],
    ) -> T:
        """Its result; `before_end` is awaited before it is cancelled.

        Raises: TimeOver, RuntimeError where too many are lost, and whatever it raises itself.
        """
        if len(self._lost) >= self._max_lost:
            raise RuntimeError(
                f"{self._max_lost} workflows whose time is over go on though they were cancelled, "
                "and no further one is started: let the workflow end at asyncio.CancelledError"
            )
        task = asyncio.create_task(_kept(function))
        task.add_done_callback(self._is_over)
        try:
            await asyncio.wait({task}, timeout=seconds)
            is_over = not task.done()
        finally:
            await self._end(task, before_end)
        if is_over:
            raise TimeOver
        made = task.result()
        if isinstance(made, SystemExit):
            raise made
        return made

    async def _end(
        self, task: asyncio.Task[Any], before_end: Callable[[], Awaitable[None]]
    ) -> None:
        if task.done():
            return
        try:
            await before_end()
        finally:
            task.cancel()
            try:
                await asyncio.wait({task}, timeout=self._grace_seconds)
            finally:
                self._let_go(task)

    def _let_go(self, task: asyncio.Task[Any]) -> None:
        """Whoever ends the event loop cancels all tasks and waits for them: not for this one."""
        if not task.done():
            logger.warning("a workflow goes on though it was cancelled")
            self._lost.add(task)
            asyncio.tasks._unregister_task(task)

    def _is_over(self, task: asyncio.Task[Any]) -> None:
        """What it raises late is nobody's business."""
        self._lost.discard(task)
        if not task.cancelled():
            task.exception()


async def _kept(function: Callable[[], Coroutine[None, None, T]]) -> T | SystemExit:
    """As a value, what would end the event loop if a task raised it."""
    try:
        return await function()
    except SystemExit as error:
        return error
