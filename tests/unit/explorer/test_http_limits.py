"""Connections and bodies have their bounds; what is within them is not touched."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from services.explorer.openai_api import handler
from services.explorer.openai_api.bodies import BodyReader
from services.explorer.openai_api.errors import Handler, new_application, response_for_error
from services.explorer.openai_api.http_server import BoundedHttpServer
from services.explorer.serving.access import ServingAccessPolicy
from trinity.runtime.http_connections import ConnectionTable, HttpLimits
from trinity.runtime.security.certificates import CredentialIssuer, parts_of
from trinity.runtime.security.credentials import Credentials

SECONDS = 30.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"


class Echo:
    """An application that reads a body, and answers when it may."""

    def __init__(
        self, limits: HttpLimits, bodies: BodyReader | None = None, stream: Handler | None = None
    ) -> None:
        self.table = ConnectionTable(limits)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_asked = 0
        self._bodies = bodies or BodyReader()
        self._stream = stream
        self.tls: ssl.SSLContext | None = None
        self.address = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Echo"]:
        app = new_application()
        app.router.add_post("/", self._answer)
        if self._stream is not None:
            app.router.add_get("/stream", self._stream)
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server = BoundedHttpServer(app, table=self.table)
        await server.start(listening, self.tls)
        try:
            yield self
        finally:
            await server.stop()

    async def connect(
        self, begun: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = int(self.address.rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        await writer.drain()
        return reader, writer

    async def ask(self, body: object = "a") -> tuple[int, object]:
        async with aiohttp.ClientSession() as session, session.post(self.address, json=body) as got:
            return got.status, await got.json()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.num_asked += 1
        try:
            body = await self._bodies.read_json(request)
        except Exception as error:
            return response_for_error(error)
        await self.may_answer.wait()
        return web.json_response(body)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - a table tells nobody
            await asyncio.sleep(0.01)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes the connection."""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    return True


async def test_the_oldest_idle_connection_gives_way() -> None:
    async with Echo(HttpLimits(max_connections=3)).open() as echo:
        held = [await echo.connect() for _ in range(3)]
        await until(lambda: echo.table.num_open == 3)
        assert await echo.ask() == (200, "a")
        assert await is_closed(held[0][0])
        assert not held[1][0].at_eof() and not held[2][0].at_eof()
        for _, writer in held:
            writer.close()


async def test_a_body_that_does_not_come_gives_way_after_idle_connections() -> None:
    async with Echo(HttpLimits(max_connections=3)).open() as echo:
        held = [await echo.connect(begun) for begun in (HEAD, HEAD, b"")]
        await until(lambda: (echo.table.num_open, echo.num_asked) == (3, 2))
        later = await echo.connect(HEAD)
        assert await is_closed(held[2][0])
        assert not held[0][0].at_eof() and not held[1][0].at_eof()
        await until(lambda: echo.num_asked == 3)
        assert await echo.ask() == (200, "a")
        assert await is_closed(held[0][0])
        for _, writer in (*held, later):
            writer.close()


async def test_connections_that_are_answered_do_not_give_way() -> None:
    """A new one waits in the meantime, and is answered afterwards."""
    async with Echo(HttpLimits(max_connections=2)).open() as echo:
        echo.may_answer.clear()
        asked = [asyncio.ensure_future(echo.ask(number)) for number in range(2)]
        await until(lambda: echo.num_asked == 2)
        later = asyncio.ensure_future(echo.ask(2))
        await asyncio.sleep(0.2)
        assert (echo.num_asked, later.done()) == (2, False)
        echo.may_answer.set()
        async with asyncio.timeout(SECONDS):
            assert await asyncio.gather(*asked, later) == [(200, 0), (200, 1), (200, 2)]


@pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nX-"])
async def test_a_head_that_does_not_come_ends_its_connection(begun: bytes) -> None:
    async with Echo(HttpLimits(max_connections=9, head_seconds=0.2)).open() as echo:
        reader, writer = await echo.connect(begun)
        assert await is_closed(reader)
        writer.close()


async def test_an_answer_may_take_longer_than_a_head() -> None:
    limits = HttpLimits(max_connections=9, head_seconds=0.1, idle_seconds=0.1)
    async with Echo(limits).open() as echo:
        echo.may_answer.clear()
        asked = asyncio.ensure_future(echo.ask())
        await until(lambda: echo.num_asked == 1)
        await asyncio.sleep(1.5)  # longer than both, and a look for those whose time is over
        echo.may_answer.set()
        assert await asked == (200, "a")


async def test_a_slow_body_is_given_up() -> None:
    bodies = BodyReader(seconds=0.2)
    async with Echo(HttpLimits(max_connections=9), bodies).open() as echo:
        reader, writer = await echo.connect(HEAD + b'"a')
        async with asyncio.timeout(SECONDS):
            assert b" 408 " in await reader.readline()
        writer.close()
        assert await echo.ask() == (200, "a")


async def test_of_many_bodies_the_largest_is_given_up() -> None:
    bodies = BodyReader(max_bytes=1000)
    async with Echo(HttpLimits(max_connections=9), bodies).open() as echo:
        large, held = await echo.connect(HEAD + b'"' + b"a" * 899)
        await until(lambda: echo.num_asked == 1)
        await asyncio.sleep(0.1)
        assert await echo.ask("b" * 300) == (200, "b" * 300)
        async with asyncio.timeout(SECONDS):
            assert b" 408 " in await large.readline()
        held.close()


async def test_errors_of_the_router_are_openais() -> None:
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        reader, writer = await echo.connect(b"GET /no HTTP/1.1\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            answer = await reader.read()
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] is None
        writer.close()


async def test_a_client_that_does_not_read_its_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handler, "SEND_SECONDS", 0.2)
    ended = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await handler._send(response, b"a" * (1 << 20))
        finally:
            ended.set()

    limits = HttpLimits(max_connections=9, idle_seconds=0.2)
    async with Echo(limits, stream=stream).open() as echo:
        _, writer = await echo.connect(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await ended.wait()
        await until(lambda: echo.table.num_open == 0)
        writer.close()


async def test_handshakes_of_tls_give_way_and_have_an_end(tmp_path: Path) -> None:
    explorer = next(part for part in parts_of({}) if part.name == "explorer")
    folder = CredentialIssuer(tmp_path).issue(explorer, timedelta(hours=1))
    echo = Echo(HttpLimits(max_connections=3, head_seconds=1.0))
    echo.tls = ServingAccessPolicy(
        host="127.0.0.1", security=Credentials(folder), key="", tenant="a"
    ).tls
    trusted = ssl.create_default_context(cafile=folder / "ca.crt")
    async with echo.open():
        held = [await echo.connect(b"\x16\x03\x01") for _ in range(6)]
        url = echo.address.replace("http:", "https:").replace("127.0.0.1", "localhost")
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json="a", ssl=trusted, timeout=aiohttp.ClientTimeout(20)) as got,
        ):
            assert await got.json() == "a"
        await until(lambda: echo.table.num_open <= 1)  # the one that has asked
        for _, writer in held:
            writer.close()
