"""Postgres notifications: one connection that informs any number of waiters of changes."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from trinity.runtime.postgres import libpq_dsn
from trinity.runtime.telemetry import metrics, names

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5


class Subscription:
    """Remembers that something changed; several changes before one `wait` count as one."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wakes the waiter, or its next `wait`."""
        self._changed.set()

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Returns true after a change since the last `wait`, false on timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


class Listener:
    """Waits on one connection for the notifications of a channel and wakes its subscribers.

    A notification is a hint to read again, never content: some are lost while the database is
    away, so every subscriber is woken after each reconnect. Subscribe first, read, then wait:

        async with Listener(dsn, "synchronizer") as listener:
            with listener.subscribe(experiment_id) as changes:
                while True:
                    yield await snapshot()
                    await changes.wait()
    """

    def __init__(self, dsn: str, channel: str) -> None:
        self._dsn = libpq_dsn(dsn, application_name=f"trinity-listen-{channel}")
        self._channel = channel
        self._subscriptions: set[Subscription] = set()
        self._connected = asyncio.Event()
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._run(), name=f"listen to {self._channel}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._task.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    async def wait_connected(self) -> None:
        """Returns when notifications arrive."""
        await self._connected.wait()

    @contextlib.contextmanager
    def subscribe(self, topic: str = "") -> Iterator[Subscription]:
        """Follows the notifications whose payload is `topic`; an empty topic follows all."""
        subscription = Subscription(topic)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)

    def wake_all(self) -> None:
        """Wakes every subscriber, as if everything had changed."""
        self._wake("")

    async def _run(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._listen()
            except Exception as error:  # without it, waits end by their own time alone
                if self._connected.is_set():
                    pause_seconds = _FIRST_PAUSE_SECONDS
                is_unexpected = not isinstance(error, psycopg.OperationalError)
                if is_unexpected or self._connected.is_set():
                    extra = {"why": str(error)}
                    logger.warning(
                        "lost the database's notifications", extra=extra, exc_info=is_unexpected
                    )
                if is_unexpected:
                    metrics.LOOP_FAILURES.add(1, {names.LOOP_NAME: "notifications"})
            self._connected.clear()
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def _listen(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as connection:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            self._connected.set()
            self.wake_all()
            async for notification in connection.notifies():
                self._wake(notification.payload)

    def _wake(self, payload: str) -> None:
        for subscription in self._subscriptions:
            if not payload or subscription.topic in ("", payload):
                subscription.notify()
