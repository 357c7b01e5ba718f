"""Transactions on the synchronizer's database, and the notification at the end of each change."""

import contextlib
import uuid
from collections.abc import AsyncIterator

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from trinity.runtime.postgres import map_database_errors
from trinity.runtime.sql import READ_ONLY, Connection, transaction

CHANNEL = "synchronizer"


class SynchronizerDatabase:
    """Opens transactions; connection errors are raised as Unavailable."""

    def __init__(self, engine: AsyncEngine, async_commit: AsyncEngine) -> None:
        """Takes two engines; commits of `async_commit` do not wait for the disk."""
        self._engine = engine
        self._async_commit = async_commit

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Opens a transaction that commits at the end of the block."""
        with map_database_errors():
            async with transaction(self._engine) as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Connection]:
        """Opens an autocommit connection for frequent writes that are repeated soon (heartbeats).

        A statement takes one round trip, and no write to disk is awaited.
        """
        with map_database_errors():
            async with transaction(self._async_commit, None) as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Connection]:
        """Opens a read-only transaction whose queries all see the same snapshot."""
        with map_database_errors():
            async with transaction(self._engine, READ_ONLY) as connection:
                yield connection


async def notify(connection: Connection, experiment_id: uuid.UUID) -> None:
    """Wakes watchers of the experiment on every replica, once this transaction commits."""
    await connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(experiment_id))))
