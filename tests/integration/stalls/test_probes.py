"""Parts are asked for a sign of life on their ports."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from trinity.run.diagnosis.gather import host_and_port, probe_nats, probe_postgres
from trinity.run.diagnosis.snapshot import ProbeState
from trinity.run.local.addresses import free_port

Says = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(says: Says) -> AsyncIterator[str]:
    """An address at which somebody says that."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"//127.0.0.1:{server.sockets[0].getsockname()[1]}/x"


def refusing(code: str, text: str) -> Says:
    """A database that answers a start with an error."""

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(length - 4)
        fields = f"SFATAL\0C{code}\0M{text}\0\0".encode()
        writer.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)

    return says


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other side has had enough."""
    del writer
    await reader.read()


async def test_a_real_database_and_a_real_broker_answer(postgres_dsn: str, nats_url: str) -> None:
    assert (await probe_postgres(postgres_dsn)).reply is ProbeState.ANSWERS
    assert (await probe_nats(nats_url)).reply is ProbeState.ANSWERS


async def test_a_database_that_starts_says_so_and_is_not_taken_for_one_that_serves() -> None:
    async with serving(refusing("57P03", "the database system is starting up")) as address:
        sign = await probe_postgres(address)
    assert sign.reply is ProbeState.REFUSES and "is starting up" in sign.detail
    async with serving(refusing("28000", "no entry for this host")) as address:
        assert (await probe_postgres(address)).reply is ProbeState.ANSWERS


async def test_who_says_nothing_is_silent_and_who_is_not_there_refuses() -> None:
    async with serving(silence) as address:
        assert (await probe_nats(address, 0.2)).reply is ProbeState.SILENT
        assert (await probe_postgres(address, 0.2)).reply is ProbeState.SILENT
    nobody = f"nats://127.0.0.1:{free_port()}"
    assert (await probe_nats(nobody)).reply is ProbeState.REFUSES


def test_addresses_are_understood_with_and_without_a_scheme() -> None:
    assert host_and_port("nats://u:p@host:77", 4222) == ("host", 77)
    assert host_and_port("host:77", 4222) == ("host", 77)
    assert host_and_port("postgresql://host/db", 5432) == ("host", 5432)
    assert host_and_port("postgresql:///db", 5432) == ("", 5432)
