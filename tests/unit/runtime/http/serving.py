"""An application behind a bounded address, and its clients."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.http.server import HttpServer

SECONDS = 30.0
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"


class Echo:
    """An application that reads a body, and answers when it may."""

    def __init__(self, limits: HttpLimits, routes: Sequence[BaseRoute] = ()) -> None:
        self.table = ConnectionTable(limits)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_asked = 0
        self.num_cancelled = 0
        self.tls: ssl.SSLContext | None = None
        self.address = ""
        self._routes = routes
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Echo"]:
        app = Starlette(routes=[Route("/", self._answer, methods=["POST"]), *self._routes])
        listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server = HttpServer(app, table=self.table, max_frame_bytes=1000)
        await server.start(listening, self.tls)
        try:
            yield self
        finally:
            for writer in self._writers:
                writer.close()
            await server.stop()

    async def connect(self, begun: bytes = b"") -> asyncio.StreamReader:
        """A connection with the beginning of a request."""
        port = int(self.address.rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers.append(writer)
        writer.write(begun)
        await writer.drain()
        return reader

    async def ask(self, body: object = "a") -> tuple[int, object]:
        """The answer to a request that arrives at once."""
        async with aiohttp.ClientSession() as session, session.post(self.address, json=body) as got:
            return got.status, await got.json()

    async def _answer(self, request: Request) -> Response:
        self.num_asked += 1
        try:
            body = await request.json()
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        return JSONResponse(body)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that has no event."""
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Returns true if the other side closes the connection."""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    return True
