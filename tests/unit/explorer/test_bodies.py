"""Bodies of requests are bounded in time and in bytes, and answers in the time to take them."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from services.explorer.openai_api import handler
from services.explorer.openai_api.bodies import BodyReader
from services.explorer.openai_api.errors import Answer, json_response, new_application
from trinity.runtime.http.connections import ConnectionTable, HttpLimits
from trinity.runtime.http.server import HttpServer

SECONDS = 30.0
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


class Reading:
    """An address whose answers are the bodies of its requests."""

    def __init__(self, bodies: BodyReader, **routes: Answer) -> None:
        self.table = ConnectionTable(HttpLimits(max_connections=9, idle_seconds=0.2))
        self.num_asked = 0
        self._bodies = bodies
        self._routes = {f"GET /{name}": answer for name, answer in routes.items()}
        self._port = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Reading"]:
        app = new_application({"POST /": self._answer, **self._routes})
        listening = socket.create_server(("127.0.0.1", 0))
        self._port = listening.getsockname()[1]
        server = HttpServer(app, table=self.table)
        await server.start(listening)
        try:
            yield self
        finally:
            await server.stop()

    async def status(self, request: bytes) -> bytes:
        """The first line of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            async with asyncio.timeout(SECONDS):
                return await reader.readline()
        finally:
            writer.close()

    async def send(self, request: bytes) -> bytes:
        """The whole answer to a request that closes its connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(request)
            async with asyncio.timeout(SECONDS):
                return await reader.read()
        finally:
            writer.close()

    async def _answer(self, request: Request, _: Send) -> Response:
        self.num_asked += 1
        body = await self._bodies.read_json(request)
        assert isinstance(body, dict)
        return json_response(body)


async def test_a_slow_body_is_given_up() -> None:
    async with Reading(BodyReader(seconds=0.2)).open() as reading:
        assert b" 408 " in await reading.status(HEAD % 1000 + b'{"a')
        assert b" 200 " in await reading.status(HEAD % 2 + b"{}")


async def test_of_many_bodies_the_largest_is_given_up() -> None:
    async with Reading(BodyReader(max_bytes=1000)).open() as reading:
        large = asyncio.ensure_future(reading.status(HEAD % 1000 + b'{"' + b"a" * 898))
        while not reading.num_asked:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert b" 200 " in await reading.status(HEAD % 308 + b'{"a": "' + b"b" * 299 + b'"}')
        assert b" 408 " in await large


async def test_errors_of_the_router_are_openais() -> None:
    async with Reading(BodyReader()).open() as reading:
        answer = await reading.send(b"GET /no HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] is None


async def test_a_client_that_does_not_read_its_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handler, "SEND_SECONDS", 0.2)
    ended = asyncio.Event()

    async def stream(_: Request, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await handler.send_event(send, b"a" * (1 << 20))
        finally:
            ended.set()

    reading = Reading(BodyReader(), stream=stream)
    async with reading.open():
        _, writer = await asyncio.open_connection("127.0.0.1", reading._port)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await ended.wait()
            while reading.table.num_open:  # noqa: ASYNC110 - a table has no event
                await asyncio.sleep(0.01)
        writer.close()
