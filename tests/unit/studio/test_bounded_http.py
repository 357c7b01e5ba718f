"""Connections that idle or send slowly keep no browser out of Studio, and end no process."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from trinity.runtime.http_connections import HttpLimits
from trinity.studio import sign_in
from trinity.studio.bounded_http import BoundedServer

SECONDS = 20.0
HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"
MAX_FILES = 128
CHILD = f"""
import resource, socket, sys
import uvicorn
from trinity.runtime.http_connections import HttpLimits
from trinity.studio.bounded_http import BoundedServer

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"here"}})

resource.setrlimit(resource.RLIMIT_NOFILE, ({MAX_FILES}, {MAX_FILES}))
listening = socket.create_server(("127.0.0.1", 0), backlog=512)
print(listening.getsockname()[1], flush=True)
config = uvicorn.Config(app, log_config=None, lifespan="off")
if sys.argv[1] == "bounded":
    BoundedServer(config, HttpLimits.from_open_files(), listening).serve_forever()
else:
    uvicorn.Server(config).run(sockets=[listening])
"""


@contextmanager
def served(kind: str) -> Iterator[str]:
    """Serves in a process that may open few files; yields the address."""
    words = [sys.executable, "-c", textwrap.dedent(CHILD), kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"127.0.0.1:{int(process.stdout.readline())}"
            assert process.poll() is None, "it goes on serving"
        finally:
            process.kill()


def _answer(address: str, seconds: float) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=seconds) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return f"no answer: {error}"


def _hold_connections(address: str, stack: contextlib.ExitStack) -> None:
    host, port = address.split(":")
    for _ in range(2 * MAX_FILES):
        stack.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))


def test_more_idle_connections_than_files_keep_no_browser_out() -> None:
    with served("bounded") as address, contextlib.ExitStack() as stack:
        _hold_connections(address, stack)
        assert _answer(address, SECONDS) == "here"


def test_a_control_without_bounds_gives_no_answer() -> None:
    with served("plain") as address, contextlib.ExitStack() as stack:
        assert _answer(address, SECONDS) == "here"
        _hold_connections(address, stack)
        assert _answer(address, 2.0).startswith("no answer")


class Page:
    """An application under a bounded server, in this process."""

    def __init__(self, limits: HttpLimits) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._limits = limits
        self.server: BoundedServer
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Page"]:
        routes = [Route("/", self._answer, methods=["GET", "POST"]), WebSocketRoute("/ws", _echo)]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off")
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        self.server = BoundedServer(config, self._limits, listening)
        serving = asyncio.create_task(self.server.serve())
        try:
            await until(lambda: self.server.started)
            yield self
        finally:
            for writer in self._writers:
                writer.close()
            self.server.should_exit = True
            await serving

    async def connect(self, begun: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(begun)
        return reader

    async def ask(self) -> str:
        url = f"http://127.0.0.1:{self.port}/"
        async with aiohttp.ClientSession() as session, session.get(url) as got:
            return await got.text()

    async def _answer(self, request: Request) -> PlainTextResponse:
        await request.body()
        await self.may_answer.wait()
        return PlainTextResponse("here")


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept()
    with contextlib.suppress(Exception):
        while True:
            await websocket.send_text(await websocket.receive_text())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.01)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    return True


async def test_the_oldest_idle_connection_gives_way_before_a_slow_body() -> None:
    async with Page(HttpLimits(max_connections=3)).open() as page:
        slow, idle, later = [await page.connect(begun) for begun in (HEAD, b"", b"")]
        await until(lambda: page.server.table.num_open == 3)
        assert await page.ask() == "here"
        assert await is_closed(idle)
        assert not slow.at_eof() and not later.at_eof()


async def test_what_never_asks_is_closed() -> None:
    async with Page(HttpLimits(max_connections=3, head_seconds=0.1)).open() as page:
        for begun in (b"", b"GET / HTTP/1.1\r\nHos"):
            assert await is_closed(await page.connect(begun))


async def test_a_request_that_is_answered_and_a_websocket_keep_their_places() -> None:
    async with (
        Page(HttpLimits(max_connections=3)).open() as page,
        aiohttp.ClientSession() as web,
        web.ws_connect(f"http://127.0.0.1:{page.port}/ws") as websocket,
    ):
        page.may_answer.clear()
        asked = asyncio.create_task(page.ask())
        await until(lambda: page.server.table.num_open == 2)
        for _ in range(8):
            await page.connect()
        await websocket.send_str("still")
        assert await websocket.receive_str(timeout=SECONDS) == "still"
        page.may_answer.set()
        assert await asked == "here"


async def test_a_place_is_free_again_once_a_websocket_is_closed() -> None:
    async with Page(HttpLimits(max_connections=1)).open() as page, aiohttp.ClientSession() as web:
        for _ in range(3):
            async with web.ws_connect(f"http://127.0.0.1:{page.port}/ws") as websocket:
                await websocket.send_str("a")
                assert await websocket.receive_str(timeout=SECONDS) == "a"
        async with asyncio.timeout(SECONDS):
            assert await page.ask() == "here"


async def test_a_form_that_does_not_arrive_holds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in, "BODY_SECONDS", 0.05)

    async def never() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    assert await sign_in.sent_token(never) == ""


async def test_many_requests_that_are_none_make_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Page(HttpLimits(max_connections=3)).open() as page:
        for _ in range(20):
            assert await is_closed(await page.connect(b"\x00 / HTTP/9\r\n\r\n"))
        assert await page.ask() == "here"
    assert [record.levelname for record in caplog.records if record.levelno > 20] == ["WARNING"]
