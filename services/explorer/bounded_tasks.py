"""Runs users' coroutines with a time limit that holds even if they ignore cancellation."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from trinity.threads import MAX_LOST

logger = logging.getLogger(__name__)

T = TypeVar("T")
GRACE_SECONDS = 2.0
"""Time for cleanup after a cancellation; a task that takes longer is abandoned."""


class TimeOver(Exception):
    """A coroutine exceeded its time limit."""


class BoundedTasks:
    """Runs each coroutine in its own task, which is cancelled when its time is over.

    A cancelled task may not end. One that still runs after the grace period counts as lost: its
    result is discarded, and it does not keep the process from exiting. Once `max_lost` tasks are
    lost, further coroutines are refused.

        result = await tasks.run(workflow.run_async, seconds=60.0, before_end=close_models)
    """

    def __init__(self, *, max_lost: int = MAX_LOST, grace_seconds: float = GRACE_SECONDS) -> None:
        self._max_lost = max_lost
        self._grace_seconds = grace_seconds
        self._lost: set[asyncio.Task[Any]] = set()

    @property
    def num_lost(self) -> int:
        """The number of abandoned tasks that still run."""
        return len(self._lost)

    async def run(
        self,
        function: Callable[[], Coroutine[None, None, T]],
        *,
        seconds: float,
        before_end: Callable[[], Awaitable[None]],
    ) -> T:
        """Returns the coroutine's result; `before_end` is awaited before it is cancelled.

        Raises: TimeOver, RuntimeError when too many tasks are lost, any error of the coroutine.
        """
        if len(self._lost) >= self._max_lost:
            raise RuntimeError(
                f"{self._max_lost} workflows still run past their time limit though they were "
                "cancelled, and no more are started: let the workflow end at asyncio.CancelledError"
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
        result = task.result()
        if isinstance(result, SystemExit):
            raise result
        return result

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
        """Unregisters a task that still runs, so that closing the event loop does not await it."""
        if not task.done():
            logger.warning("a workflow still runs though it was cancelled")
            self._lost.add(task)
            asyncio.tasks._unregister_task(task)

    def _is_over(self, task: asyncio.Task[Any]) -> None:
        """Retrieves the exception of an abandoned task, so that asyncio does not log it."""
        self._lost.discard(task)
        if not task.cancelled():
            task.exception()


async def _kept(function: Callable[[], Coroutine[None, None, T]]) -> T | SystemExit:
    """Returns SystemExit as a value: raised by a task, it would end the event loop."""
    try:
        return await function()
    except SystemExit as error:
        return error
