"""Rows with large bytes, read as bytes: as text each of them would be sent as two."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import driver_of


async def fetch_rows(
    connection: AsyncConnection, statement: sa.Select[Any], values: Mapping[str, object]
) -> list[tuple[Any, ...]]:
    """What a statement that is built once gives, in the transaction; ids come as `uuid.UUID`."""
    driver = await driver_of(connection)
    async with driver.cursor(binary=True) as cursor:
        text = _text_of(statement, connection.dialect)
        await cursor.execute(text, values, prepare=True)
        return await cursor.fetchall()


@lru_cache
def _text_of(statement: sa.Select[Any], dialect: sa.Dialect) -> bytes:
    """As the driver takes it."""
    return str(statement.compile(dialect=dialect)).encode()
