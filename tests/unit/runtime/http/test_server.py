"""Connections have their bounds; what is within them is not touched."""

import asyncio
import contextlib
import logging
import socket
import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from tests.unit.runtime.http.serving import HEAD, SECONDS, Echo, is_closed, until
from trinity.runtime.http import server
from trinity.runtime.http.connections import HttpLimits
from trinity.runtime.http.listener import open_port
from trinity.runtime.http.tls import renewing_context
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.security.certificates import CredentialIssuer, parts_of
from trinity.runtime.security.credentials import CERTIFICATE, KEY

QUICK = HttpLimits(max_connections=9, head_seconds=0.1, idle_seconds=0.1)


async def test_the_oldest_idle_connection_gives_way() -> None:
    async with Echo(HttpLimits(max_connections=3)).open() as echo:
        held = [await echo.connect() for _ in range(3)]
        await until(lambda: echo.table.num_open == 3)
        assert await echo.ask() == (200, "a")
        assert await is_closed(held[0])
        assert not held[1].at_eof() and not held[2].at_eof()


async def test_a_body_that_does_not_come_gives_way_after_idle_connections() -> None:
    async with Echo(HttpLimits(max_connections=3)).open() as echo:
        held = [await echo.connect(begun) for begun in (HEAD, HEAD, b"")]
        await until(lambda: (echo.table.num_open, echo.num_asked) == (3, 2))
        await echo.connect(HEAD)
        assert await is_closed(held[2])
        assert not held[0].at_eof() and not held[1].at_eof()
        await until(lambda: echo.num_asked == 3)
        assert await echo.ask() == (200, "a")
        assert await is_closed(held[0])


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
    async with Echo(QUICK).open() as echo:
        assert await is_closed(await echo.connect(begun))


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n", b"\r\n" + b"A: b\r\n" * 200 + b"\r\n"])
async def test_a_head_that_is_too_long_is_refused(end: bytes) -> None:
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        size = 1 if end.startswith(b"\r\nA") else 20_000
        reader = await echo.connect(b"POST / HTTP/1.1\r\nX: " + b"a" * size + end)
        async with asyncio.timeout(SECONDS):
            assert b" 400 " in await reader.readline()


async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with Echo(QUICK).open() as echo:
        echo.may_answer.clear()
        asked = asyncio.ensure_future(echo.ask())
        await until(lambda: echo.num_asked == 1)
        await asyncio.sleep(1.5)  # longer than both, and a look for those whose time is over
        echo.may_answer.set()
        assert await asked == (200, "a")


async def test_a_client_that_leaves_cancels_its_request(caplog: pytest.LogCaptureFixture) -> None:
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        echo.may_answer.clear()
        asked = asyncio.ensure_future(echo.ask())
        await until(lambda: echo.num_asked == 1)
        asked.cancel()
        await until(lambda: echo.num_cancelled == 1)
        await until(lambda: echo.table.num_open == 0)
    assert not caplog.records


async def test_requests_in_progress_are_cancelled_at_the_end() -> None:
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        echo.may_answer.clear()
        asked = asyncio.ensure_future(echo.ask())
        await until(lambda: echo.num_asked == 1)
    assert echo.num_cancelled == 1
    with pytest.raises(aiohttp.ClientError):
        await asked


async def test_an_answer_that_is_broken_off_leaves_no_connection() -> None:
    class Endless:
        async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    while True:
                        part = {"type": "http.response.body", "body": b"a" * 2**20}
                        await send({**part, "more_body": True})
            raise ConnectionAbortedError

    limits = HttpLimits(max_connections=9)
    async with Echo(limits, [Route("/endless", Endless())]).open() as echo:
        await echo.connect(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: echo.table.num_open == 1)
        await until(lambda: echo.table.num_open == 0)


async def test_requests_that_are_sent_in_one_piece_are_answered_in_their_order() -> None:
    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        reader = await echo.connect(request + b"1" + request + b"2")
        async with asyncio.timeout(SECONDS):
            for number in (b"1", b"2"):
                assert b" 200 " in await reader.readline()
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(1) == number


async def test_a_refused_body_is_read_so_that_its_client_reads_why() -> None:
    head = b"POST /no HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5000000\r\n\r\n"
    async with Echo(HttpLimits(max_connections=9)).open() as echo:
        reader = await echo.connect(head + b"a" * 5_000_000)
        async with asyncio.timeout(SECONDS):
            assert b" 404 " in await reader.readline()
            await reader.read()


async def test_websockets_keep_their_places_and_give_them_back() -> None:
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(Exception):
            while True:
                await websocket.send_text(await websocket.receive_text())

    echo = Echo(HttpLimits(max_connections=1), [WebSocketRoute("/ws", talk)])
    async with echo.open(), aiohttp.ClientSession() as web:
        for _ in range(3):
            async with web.ws_connect(f"{echo.address}ws") as websocket:
                for _ in range(8):
                    await echo.connect()
                await websocket.send_str("a")
                assert await websocket.receive_str(timeout=SECONDS) == "a"
        async with asyncio.timeout(SECONDS):
            assert await echo.ask() == (200, "a")


async def test_many_requests_that_are_none_make_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_limited", RateLimitedLog(logging.getLogger(server.__name__)))
    async with Echo(HttpLimits(max_connections=3)).open() as echo:
        for _ in range(20):
            assert await is_closed(await echo.connect(b"\x00 / HTTP/9\r\n\r\n"))
        assert await echo.ask() == (200, "a")
    assert [record.levelname for record in caplog.records if record.levelno > 20] == ["WARNING"]


async def test_handshakes_of_tls_give_way_and_have_an_end(tmp_path: Path) -> None:
    explorer = next(part for part in parts_of({}) if part.name == "explorer")
    folder = CredentialIssuer(tmp_path).issue(explorer, timedelta(hours=1))
    echo = Echo(HttpLimits(max_connections=3, head_seconds=1.0))
    echo.tls = renewing_context(folder / CERTIFICATE, folder / KEY)
    trusted = ssl.create_default_context(cafile=folder / "ca.crt")
    async with echo.open():
        for _ in range(6):
            await echo.connect(b"\x16\x03\x01")
        url = echo.address.replace("http:", "https:").replace("127.0.0.1", "localhost")
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json="a", ssl=trusted, timeout=aiohttp.ClientTimeout(20)) as got,
        ):
            assert await got.json() == "a"
        await until(lambda: echo.table.num_open <= 1)  # the one that has asked


def test_the_parts_of_an_answer_do_not_wait_for_acknowledgements() -> None:
    """Without it each answer takes 40 ms more: its body waits until the head is acknowledged."""
    with (
        open_port("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
