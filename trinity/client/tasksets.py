"""Tasksets from ordinary code."""

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from trinity.client.async_tasksets import AsyncTasksets
from trinity.client.packing import Row
from trinity.client.results import Submission, TasksetInfo
from trinity.security.folder import Security

T = TypeVar("T")


class Tasksets:
    """As `AsyncTasksets`, for code without an event loop; not to be shared by threads."""

    def __init__(
        self,
        address: str,
        *,
        tenant: str = "default",
        patience_seconds: float = 60.0,
        security: Security | None = None,
    ) -> None:
        self._runner = asyncio.Runner()
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
        """End the connection."""
        self._run(self._calls.close())
        self._runner.close()

    def submit(
        self,
        name: str,
        rows: Iterable[Row],
        *,
        is_queue: bool = False,
        request_id: str | None = None,
    ) -> Submission:
        """Store rows under a name; says which of them were refused, and why."""
        return self._run(self._calls.submit(name, rows, is_queue=is_queue, request_id=request_id))

    def list(self) -> list[TasksetInfo]:
        """All tasksets of the tenant, the newest first."""
        return self._run(self._calls.list())

    def get(self, taskset: str, *, first_row: int = 0, num_rows: int = 0) -> TasksetInfo:
        """One taskset, by its name or its id, with some of its rows, 100 at the most."""
        return self._run(self._calls.get(taskset, first_row=first_row, num_rows=num_rows))

    def delete(self, taskset: str) -> int:
        """Delete a taskset; answers how many rows it had."""
        return self._run(self._calls.delete(taskset))

    def close_queue(self, taskset: str) -> int:
        """Say that a queue gets no more tasks; answers how many it had in all."""
        return self._run(self._calls.close_queue(taskset))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


async def _connect(
    address: str, tenant: str, patience_seconds: float, security: Security | None
) -> AsyncTasksets:
    """In the loop that all calls will run in."""
    return AsyncTasksets(
        address, tenant=tenant, patience_seconds=patience_seconds, security=security
    )
