"""An address that asks for TLS is followed: the database's certificate decides.

The embedded database is built without TLS, so one stands in front of it that ends TLS and hands on.
"""

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.infra_fixtures import Database
from trinity.errors import UserError
from trinity.runtime.postgres import async_engine, wait_until_up
from trinity.runtime.security.certificates import CredentialIssuer, CredentialRole
from trinity.runtime.security.credentials import AUTHORITY, CERTIFICATE, KEY

SSL_REQUEST = struct.pack("!II", 8, 80_877_103)
WAIT_SECONDS = 0.5


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while content := await source.read(65_536):
            target.write(content)
            await target.drain()
    target.close()


@contextlib.asynccontextmanager
async def in_front_of(port: int, folder: Path) -> AsyncIterator[int]:
    """A port that takes TLS only, with the certificate in the folder."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
            writer.write(b"S")
            await writer.start_tls(context)
            behind, to_behind = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        await asyncio.gather(copy(reader, to_behind), copy(behind, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_the_services_way_to_the_database_asks_for_its_certificate(
    postgres_database: Database, tmp_path: Path
) -> None:
    part, hour = CredentialRole(name="postgres"), timedelta(hours=1)
    own, other = (CredentialIssuer(tmp_path / name).issue(part, hour) for name in ("own", "other"))
    port = postgres_database.server.port
    plain = postgres_database.buffer_dsn
    async with in_front_of(port, own) as secured:
        address = plain.replace(f":{port}/", f":{secured}/") + "?sslmode=verify-full&sslrootcert="
        assert await wait_until_up(f"{address}{own / AUTHORITY}", WAIT_SECONDS)
        engine = async_engine(f"{address}{own / AUTHORITY}", "buffer")
        async with engine.connect() as connection:
            assert (await connection.execute(sa.text("SELECT current_schema()"))).scalar() == (
                "buffer"
            )
        await engine.dispose()
        with pytest.raises(UserError, match="does not answer"):
            await wait_until_up(f"{address}{other / AUTHORITY}", WAIT_SECONDS)
    with pytest.raises(UserError, match="does not answer"):
        await wait_until_up(
            f"{plain}?sslmode=verify-full&sslrootcert={own / AUTHORITY}", WAIT_SECONDS
        )
