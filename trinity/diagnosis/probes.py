"""Liveness probes of the parts, which need no account or password."""

import asyncio
import contextlib
import struct
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.diagnosis.snapshot import Reply

ANSWER_SECONDS = 3.0
POSTGRES_PORT, NATS_PORT = 5432, 4222
PROTOCOL = 3 << 16
CANNOT_SERVE = ("57P03", "53300")
"""Postgres' codes: it is starting or ending; it has too many connections."""
MAX_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Sign:
    """The result of a probe."""

    reply: Reply
    detail: str = ""


ALIVE = Sign(Reply.ANSWERS)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def place(url: str, default_port: int) -> tuple[str, int]:
    """Returns host and port of an address; the host is empty where there is nothing to probe."""
    parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
    return parts.hostname or "", parts.port or default_port


async def ask_service(channel: grpc.aio.Channel, seconds: float = ANSWER_SECONDS) -> Sign:
    """Checks that a service answers at all."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Sign(Reply.SILENT)
        return Sign(Reply.REFUSES)
    return ALIVE


async def ask_nats(url: str, seconds: float = ANSWER_SECONDS) -> Sign:
    """Checks the greeting that a broker sends to every client."""
    return await _ask(place(url, NATS_PORT), _introduction, seconds)


async def ask_postgres(url: str, seconds: float = ANSWER_SECONDS) -> Sign:
    """Checks that a database asks for a password, or returns its reason not to."""
    return await _ask(place(url, POSTGRES_PORT), _first_answer, seconds)


async def _ask(
    where: tuple[str, int], question: Callable[[Connection], Awaitable[Sign]], seconds: float
) -> Sign:
    host, port = where
    if not host:
        return ALIVE
    try:
        async with asyncio.timeout(seconds), _connection(host, port) as connection:
            return await question(connection)
    except TimeoutError:
        return Sign(Reply.SILENT)
    except (OSError, asyncio.IncompleteReadError) as error:
        if isinstance(error, ConnectionRefusedError):
            return Sign(Reply.REFUSES)
        return Sign(Reply.REFUSES, f"{host}:{port} cannot be reached ({error})")


@asynccontextmanager
async def _connection(host: str, port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await writer.wait_closed()


async def _introduction(connection: Connection) -> Sign:
    reader, _ = connection
    greeting = await reader.readline()
    if greeting.startswith(b"INFO"):
        return ALIVE
    raise ConnectionError("it does not greet like a broker")


async def _first_answer(connection: Connection) -> Sign:
    reader, writer = connection
    fields = b"user\0trinity_probe\0database\0postgres\0\0"
    writer.write(struct.pack("!ii", len(fields) + 8, PROTOCOL) + fields)
    await writer.drain()
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    body = await reader.readexactly(min(length - 4, MAX_ANSWER_BYTES))
    if kind != b"E":
        return ALIVE
    error_fields = {
        part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part
    }
    if error_fields.get(b"C") in CANNOT_SERVE:
        return Sign(Reply.REFUSES, f"it says: {error_fields.get(b'M', 'it cannot serve')}")
    return ALIVE
