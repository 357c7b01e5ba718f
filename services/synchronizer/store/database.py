"""Transactions on the synchronizer's database, and the notification that each change ends with."""

import contextlib
import uuid
from collections.abc import AsyncIterator

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from trinity.postgres import map_database_errors

CHANNEL = "synchronizer"


class Database:
    """Hands out transactions; what goes wrong with the connection rises as Unavailable."""

    def __init__(self, engine: AsyncEngine, hasty: AsyncEngine) -> None:
        """`hasty` is an engine whose commits do not wait for the disk."""
        self._engine = engine
        self._hasty = hasty

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that commits at the end of the block."""
        with map_database_errors():
            async with self._engine.begin() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def noting(self) -> AsyncIterator[AsyncConnection]:
        """For what comes often and is said again soon: each statement is a transaction of its own.

        That is one way to the database and back instead of four, and none to the disk.
        """
        with map_database_errors():
            async with self._hasty.connect() as connection:
                yield await connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A transaction whose queries all see the same moment."""
        with map_database_errors():
            async with self._engine.connect() as connection:
                yield await connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )


async def notify(connection: AsyncConnection, experiment_id: uuid.UUID) -> None:
    """Wake whoever watches the experiment, on every replica, once this transaction commits."""
    await connection.execute(sa.select(sa.func.pg_notify(CHANNEL, str(experiment_id))))
