"""What a test sees of a running stack: its members, and the rows of its tables."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg.sql import Composed

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.rpc.channel import open_channel

PATIENCE_SECONDS = 120.0
PAUSE_SECONDS = 0.1
Row = tuple[object, ...]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for it; the test fails when it does not come."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await holds():  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(PAUSE_SECONDS)


async def rows(
    job_dir: Path, service: str, query: LiteralString | Composed, *values: object
) -> list[Row]:
    """Rows of a service's tables; none before the service has made them."""
    dsn = (job_dir / "infra" / "secrets" / f"{service}-postgres-dsn").read_text()
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        try:
            return await (await connection.execute(query, values)).fetchall()
        except psycopg.errors.UndefinedTable:
            return []


async def members(synchronizer: str) -> dict[str, pb.Member]:
    """Who was heard of lately, by address."""
    async with open_channel(synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        answer: pb.GetStatusResponse = await stub.GetStatus(pb.GetStatusRequest(), timeout=10.0)
        return {member.address: member for member in answer.members}


async def member_at(synchronizer: str, address: str) -> pb.Member:
    """The member that serves there, once it was heard of."""
    found: dict[str, pb.Member] = {}

    async def is_heard_of() -> bool:
        found.update(await members(synchronizer))
        return address in found

    await until(is_heard_of)
    return found[address]
