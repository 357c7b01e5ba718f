"""Deadlines and retries of calls to other services, and the errors that end a stage."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

from trinity.errors import RpcError, TrinityError, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import Retry, RetryWait

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RolloutStageFailed(TrinityError):
    """The stage cannot go on here; the text is shown to users."""


_USER_FACING = (RolloutStageFailed, UserError, RpcError)


def user_message(error: BaseException) -> str | None:
    """Returns the text to show to users; None when any of the errors is unexpected."""
    leaves = list(leaves_of(error))
    if not all(isinstance(leaf, _USER_FACING) for leaf in leaves):
        return None
    return str(leaves[0])


def leaves_of(error: BaseException) -> Iterator[BaseException]:
    """Yields the errors in a group of them, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves_of(inner)
    else:
        yield error


@asynccontextmanager
async def deadline(seconds: float, error: Exception) -> AsyncIterator[None]:
    """Raises `error` if the block takes longer; a TimeoutError of the block's own passes."""
    limit = asyncio.timeout(seconds if math.isfinite(seconds) else None)
    try:
        async with limit:
            yield
    except TimeoutError as timeout:
        if not limit.expired():
            raise
        raise error from timeout


class RetryPolicy:
    """The deadline of waits and retries; infinite by default, which is for code outside of a stage.

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

    def new_retry(self, *, waits_for: str, purpose: str) -> Retry:
        """Returns the retries of one operation, which report a wait of their own."""
        prefix = f"to {purpose}: "
        return Retry(
            seconds=self.seconds,
            timeout_error=lambda reason: self.deadline_error(waits_for, prefix + reason),
            log=lambda reason: logger.warning(
                "will retry", extra={"purpose": purpose, "reason": reason}
            ),
            prefix=prefix,
            wait=RetryWait(
                reporter=self.waits, name=f"{waits_for}: {purpose}", waits_for=waits_for
            ),
        )

    async def retry(self, call: Callable[[], Awaitable[T]], *, waits_for: str, purpose: str) -> T:
        """Returns the result of `call`, retrying for as long as it raises Unavailable.

        Raises: RolloutStageFailed when that takes too long.
        """
        return await self.new_retry(waits_for=waits_for, purpose=purpose).call_async(call)
