"""A database that recovers is awaited for as long as it says so."""

import asyncio
import struct
from pathlib import Path

import pytest

from trinity.errors import RunFailed, UserError
from trinity.run.local.addresses import free_port
from trinity.run.local.postgres import PostgresServer
from trinity.runtime.security.secret_files import SecretFiles

STARTS = "57P03", "the database system is starting up"
REFUSES = "28P01", 'password authentication failed for user "admin"'
ENCRYPTED = (80877103, 80877104)
"""What a client asks for before it says who it is."""


class Stub:
    """Says that it starts for a while, and then that the password is wrong."""

    def __init__(self, seconds: float) -> None:
        self._up_at = asyncio.get_running_loop().time() + seconds

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            length, code = struct.unpack("!ii", await reader.readexactly(8))
            await reader.readexactly(length - 8)
            if code not in ENCRYPTED:
                break
            writer.write(b"N")
        is_up = asyncio.get_running_loop().time() > self._up_at
        state, text = REFUSES if is_up else STARTS
        fields = f"SFATAL\0VFATAL\0C{state}\0M{text}\0\0".encode()
        writer.write(b"E" + struct.pack("!i", len(fields) + 4) + fields)
        await writer.drain()
        writer.close()


def server_on(port: int, root: Path) -> PostgresServer:
    secrets = SecretFiles(root / "secrets")
    return PostgresServer(folder=root / "server", secrets=secrets, port=port, programs=root)


async def test_who_says_that_it_starts_is_awaited_beyond_the_limit(tmp_path: Path) -> None:
    port = free_port()
    async with await asyncio.start_server(Stub(1.0).answer, "127.0.0.1", port):
        with pytest.raises(UserError, match="refuses the password"):
            await server_on(port, tmp_path).wait_ready(0.2)


async def test_who_says_nothing_is_not(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="did not answer"):
        await server_on(free_port(), tmp_path).wait_ready(0.2)
