"""Rows with large bytes, streamed into a table: the driver writes no byte of them as text."""

import uuid
from collections.abc import Sequence

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.ext.asyncio import AsyncConnection

from services.buffer.store.database import Row

_TYPE_NAMES: dict[type[object], str] = {
    sa.Text: "text",
    sa.Uuid: "uuid",
    sa.BigInteger: "int8",
    sa.Integer: "int4",
    sa.LargeBinary: "bytea",
}


async def copy_rows(connection: AsyncConnection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert rows of the same columns within the transaction; none is fine."""
    if not rows:
        return
    names = list(rows[0])
    types = [_TYPE_NAMES[type(table.c[name].type)] for name in names]
    driver = (await connection.get_raw_connection()).driver_connection
    assert isinstance(driver, psycopg.AsyncConnection)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, names))
    )
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            await copy.write_row([_adapted(row[n], t) for n, t in zip(names, types, strict=True)])


def _adapted(value: object, type_name: str) -> object:
    """Ids are texts everywhere else."""
    return uuid.UUID(value) if type_name == "uuid" and isinstance(value, str) else value
