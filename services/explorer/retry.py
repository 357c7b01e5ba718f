"""Retries of calls to other services, and the errors that end a stage."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from trinity.errors import RpcError, TrinityError, Unavailable, UserError
from trinity.runtime.presence import WaitRegistry

logger = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 0.5
"""A killed peer is back within seconds, and a retry costs it little."""


class RolloutStageFailed(TrinityError):
    """The stage cannot go on here; the text is shown to users."""


_USER_FACING = (RolloutStageFailed, UserError, RpcError)


def user_message(error: BaseException) -> str | None:
    """Returns the text to show to users; None when any of the errors is unexpected."""
    leaves = list(_flatten(error))
    if not all(isinstance(leaf, _USER_FACING) for leaf in leaves):
        return None
    return str(leaves[0])


def _flatten(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flatten(inner)
    else:
        yield error


class RetryPolicy:
    """The deadline of waits; infinite by default, which is only right outside of a stage.

    plan = await retry_policy.retry(read_plan, waits_for="synchronizer", purpose="read the plan")
    """

    def __init__(self, waits: WaitRegistry, seconds: float = math.inf) -> None:
        self.waits = waits
        self.seconds = seconds

    @property
    def deadline_seconds(self) -> float:
        """The deadline as waits show it: 0 if there is none."""
        return self.seconds if math.isfinite(self.seconds) else 0.0

    def deadline_error(self, waits_for: str, what: str) -> RolloutStageFailed:
        """Returns the error that ends a wait."""
        return RolloutStageFailed(f"waited {self.seconds:g} s for the {waits_for} {what}")

    def start_outage(self, *, waits_for: str, purpose: str) -> "Outage":
        """Returns an outage that records failures of one kind."""
        return Outage(self, waits_for=waits_for, purpose=purpose)

    async def retry(self, call: Callable[[], Awaitable[T]], *, waits_for: str, purpose: str) -> T:
        """Returns the result of `call`, retrying for as long as it raises Unavailable.

        Raises: RolloutStageFailed when that takes too long.
        """
        outage = self.start_outage(waits_for=waits_for, purpose=purpose)
        try:
            while True:
                try:
                    return await call()
                except Unavailable as error:
                    outage.record_failure(str(error))
                await asyncio.sleep(outage.next_pause())
        finally:
            outage.end()


class Outage:
    """Consecutive failures, shown as one wait that begins with the first of them."""

    def __init__(self, retry_policy: RetryPolicy, *, waits_for: str, purpose: str) -> None:
        self._policy = retry_policy
        self._waits_for = waits_for
        self._purpose = purpose
        self._reason = ""
        self._began_at: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def record_failure(self, reason: str) -> None:
        """Shows the newest failure.

        Raises: RolloutStageFailed when the first one is too long ago.
        """
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        text = f"to {self._purpose}: {reason}"
        if now - self._began_at >= self._policy.seconds:
            raise self._policy.deadline_error(self._waits_for, text)
        if reason != self._reason:
            logger.warning("will retry", extra={"purpose": self._purpose, "reason": reason})
        self._reason = reason
        self._policy.waits.set(
            self._name,
            waits_for=self._waits_for,
            reason=text,
            deadline_seconds=self._policy.deadline_seconds,
        )

    def end(self) -> None:
        """Ends the outage: it works again, or is given up."""
        self._began_at, self._reason, self._pause = None, "", FIRST_PAUSE_SECONDS
        self._policy.waits.clear(self._name)

    def next_pause(self) -> float:
        """Returns the seconds until the next try: longer each time, but cut at the deadline."""
        pause, self._pause = self._pause, min(2 * self._pause, MAX_PAUSE_SECONDS)
        waited = time.monotonic() - self._began_at if self._began_at is not None else 0.0
        return min(pause, max(self._policy.seconds - waited, 0.0))

    @property
    def _name(self) -> str:
        return f"{self._waits_for}: {self._purpose}"
