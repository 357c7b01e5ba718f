"""Synchronous client for tasksets."""

from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from trinity.client.async_tasksets import AsyncTasksets
from trinity.client.background_loop import BackgroundLoop
from trinity.client.packing import Row
from trinity.client.results import SubmitResult, TasksetInfo
from trinity.runtime.security.credentials import Credentials

ValueT = TypeVar("ValueT")


class Tasksets:
    """The calls of `AsyncTasksets` for code that does not await, also in a notebook."""

    def __init__(
        self,
        address: str,
        *,
        tenant: str = "default",
        patience_seconds: float = 60.0,
        security: Credentials | None = None,
    ) -> None:
        self._loop = BackgroundLoop()
        self._calls = self._run(_connect(address, tenant, patience_seconds, security))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._run(self._calls.close())
        self._loop.close()

    def submit(
        self,
        name: str,
        rows: Iterable[Row],
        *,
        is_queue: bool = False,
        request_id: str | None = None,
    ) -> SubmitResult:
        """Stores rows under a name; returns which of them were refused, and why."""
        return self._run(self._calls.submit(name, rows, is_queue=is_queue, request_id=request_id))

    def list(self) -> list[TasksetInfo]:
        """Returns all tasksets of the tenant, the newest first."""
        return self._run(self._calls.list())

    def get(self, taskset: str, *, first_row: int = 0, num_rows: int = 0) -> TasksetInfo:
        """Returns one taskset, by name or id, with some of its rows, at most 100."""
        return self._run(self._calls.get(taskset, first_row=first_row, num_rows=num_rows))

    def delete(self, taskset: str) -> int:
        """Deletes a taskset; returns how many rows it had."""
        return self._run(self._calls.delete(taskset))

    def close_queue(self, taskset: str) -> int:
        """Closes a queue to further tasks; returns how many it had in all."""
        return self._run(self._calls.close_queue(taskset))

    def _run(self, call: Coroutine[Any, Any, ValueT]) -> ValueT:
        return self._loop.wait_for(call)


async def _connect(
    address: str, tenant: str, patience_seconds: float, security: Credentials | None
) -> AsyncTasksets:
    """Connects in the event loop that all calls will run in."""
    return AsyncTasksets(
        address, tenant=tenant, patience_seconds=patience_seconds, security=security
    )
