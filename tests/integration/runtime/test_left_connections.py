"""A connection whose user left in the middle: who has it next gets transactions as always."""

import asyncio
from collections.abc import Mapping

import psycopg.waiting
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from trinity.runtime.postgres import async_engine

AS_ALWAYS = ("read committed", "off", True)
NOW = sa.text(
    "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only'), "
    "pg_current_xact_id()::text"
)


@pytest.mark.parametrize(
    "asked",
    [
        {"isolation_level": "AUTOCOMMIT"},
        {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
    ],
    ids=["autocommit", "reading"],
)
async def test_who_leaves_while_asking_for_other_transactions_leaves_none_behind(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object]
) -> None:
    monkeypatch.setattr(psycopg.waiting, "MAX_BUSY_TIME", 0)  # as in a loop that is always late
    engine = async_engine(postgres_dsn, "buffer", pool_size=1, max_overflow=0)
    try:
        assert await transaction(engine) == AS_ALWAYS
        turns = 0
        while not await leave_after(turns, engine, asked):
            turns += 1
        assert turns > 5, "few left in the middle"
    finally:
        await engine.dispose()


async def leave_after(turns: int, engine: AsyncEngine, asked: Mapping[str, object]) -> bool:
    """Be cancelled after so many turns of the loop; answers whether all was done by then."""
    user = asyncio.create_task(use(engine, asked))
    for _ in range(turns):
        await asyncio.sleep(0)
    is_done = not user.cancel()
    await asyncio.gather(user, return_exceptions=True)
    assert await transaction(engine) == AS_ALWAYS, f"after {turns} turns"
    return is_done


async def use(engine: AsyncEngine, asked: Mapping[str, object]) -> None:
    async with engine.connect() as connection:
        await connection.execution_options(**asked)
        await connection.execute(sa.text("SELECT 1"))


async def transaction(engine: AsyncEngine) -> tuple[str, str, bool]:
    """Its isolation, whether it only reads, and whether two statements are in one."""
    async with engine.begin() as connection:
        isolation, reads_only, first = (await connection.execute(NOW)).one()
        *_, second = (await connection.execute(NOW)).one()
    return isolation, reads_only, first == second
