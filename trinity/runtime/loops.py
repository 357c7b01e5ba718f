"""Loops of a process that are started again when they fail, instead of ending it.

    keeper = LoopKeeper(waits=heartbeats.waits, report=server.health.set_loop)
    tasks.create_task(keeper.keep_running("retention", run_retention))

A failed loop waits longer each time. Until it has run for a while again, a wait shows it (`trinity
why`, `trinity status`), its entry in the service's health is NOT_SERVING, and a metric counts.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from trinity.runtime.retry import WaitReporter
from trinity.runtime.telemetry import metrics, names

logger = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""A loop that has run for so long works again."""


class LoopKind(StrEnum):
    """Kinds of loops, by the work that a failure blocks; waits for a loop use this name."""

    DATA_PATH = "data path"
    """A run, which stalls without it."""
    UPKEEP = "upkeep"
    """No run: it cleans up, measures or copies."""


async def _report_nowhere(_: str, __: bool) -> None:
    """Replaces the health report of a process without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopKeeper:
    """Starts loops again, and shows those that fail."""

    waits: WaitReporter
    report: Callable[[str, bool], Awaitable[None]] = _report_nowhere
    """Sets the health of a loop by its name."""
    first_pause_seconds: float = FIRST_PAUSE_SECONDS
    steady_seconds: float = STEADY_SECONDS
    ends_with: tuple[type[Exception], ...] = ()
    """Errors by which a loop ends its caller on purpose."""

    async def keep_running(
        self, name: str, loop: Callable[[], Awaitable[object]], kind: LoopKind = LoopKind.UPKEEP
    ) -> None:
        """Runs a loop until it returns or is cancelled."""
        await self.report(name, True)
        pause_seconds, has_failed = self.first_pause_seconds, False
        while True:
            begun = time.monotonic()
            try:
                async with self._clearing(name, has_failed):
                    await loop()
                return
            except self.ends_with:
                raise
            except Exception as error:  # the edge of the loop
                if time.monotonic() - begun > self.steady_seconds:
                    pause_seconds = self.first_pause_seconds
                await self._show(name, kind, error, pause_seconds)
            has_failed = True
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, MAX_PAUSE_SECONDS)

    async def _show(self, name: str, kind: LoopKind, error: Exception, seconds: float) -> None:
        why = describe_failure(error)
        extra = {"loop": name, "why": why, "seconds": seconds}
        logger.error("a loop has failed and is started again", extra=extra, exc_info=error)
        metrics.LOOP_FAILURES.add(1, {names.LOOP_NAME: name})
        self.waits.set(f"loop {name}", waits_for=kind, reason=f"{name}: {why}")
        await self.report(name, False)

    @contextlib.asynccontextmanager
    async def _clearing(self, name: str, has_failed: bool) -> AsyncIterator[None]:
        """Shows that a loop works once it has run for a while within the block."""

        async def clear() -> None:
            await asyncio.sleep(self.steady_seconds)
            self.waits.clear(f"loop {name}")
            await self.report(name, True)

        clearing = asyncio.create_task(clear()) if has_failed else None
        try:
            yield
        finally:
            if clearing is not None:
                clearing.cancel()
                await asyncio.gather(clearing, return_exceptions=True)


def describe_failure(error: BaseException) -> str:
    """Returns `KeyError: 'number'`, of a group the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def of_stage(name: str, experiment_id: str, stage: str, error: BaseException) -> str:
    """Describes the failure of a loop for one stage, so that other runs are not told of it."""
    about = f"experiment {experiment_id}, stage {stage}"
    return f"{name} ({about}): {describe_failure(error)}"
