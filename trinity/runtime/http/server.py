"""The HTTP server of all addresses: uvicorn for ASGI applications, within the bounds of a table."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from trinity.runtime.http.connections import ConnectionTable
from trinity.runtime.http.listener import BoundedListener
from trinity.runtime.logs import RateLimitedLog

MAX_HEAD_BYTES = 16 * 1024
"""Limit of what a client sends without a body: the parser itself has none."""
MAX_HEADERS = 128
DISCARD_SECONDS = 2.0
"""Time to read the rest of a body that was refused, so that its client reads why."""
DATE_SECONDS = 1.0
UVICORN_LOG = logging.getLogger("uvicorn.error")
_limited = RateLimitedLog(logging.getLogger(__name__))


class OneLineEach(logging.Filter):
    """Makes one line of uvicorn's many about requests: clients decide how many there are."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns false for a warning or an error, which is counted instead."""
        if record.levelno < logging.WARNING:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            _limited.warning(f"uvicorn: {record.msg}")
        else:
            _limited.error(f"uvicorn: {record.msg}".strip(), error)
        return False


def plain_refusal(text: str) -> Response:
    """Returns a plain-text answer to bytes that are not HTTP."""
    return PlainTextResponse(text, 400)


def bearer_token(request: Request) -> str:
    """Returns the key or token of a request, or an empty text.

    The scheme may be written in any case (RFC 9110, 11.1). Anthropic's clients send `x-api-key`.
    """
    scheme, _, bearer = request.headers.get("authorization", "").strip().partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


class HttpServer:
    """Serves an ASGI application at a socket; it leaves the process's signals to the process.

    A client that leaves cancels its request.

        server = HttpServer(app, table=table)
        await server.start(listening)
        await server.stop()
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        table: ConnectionTable,
        refuse: Callable[[str], Response] = plain_refusal,
        max_frame_bytes: int | None = None,
    ) -> None:
        self._table = table
        self._refuse = refuse
        self._one_line = OneLineEach()
        self._config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=int(table.limits.idle_seconds) + 1,  # the table closes it before
            ws="none" if max_frame_bytes is None else "auto",
            ws_max_size=max_frame_bytes or 0,
        )
        self._state = ServerState()
        self._listener = BoundedListener(table, self._new_protocol)

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Starts the application, and begins to accept connections at a bound socket."""
        UVICORN_LOG.addFilter(self._one_line)
        self._config.load()
        self._lifespan = self._config.lifespan_class(self._config)
        await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise RuntimeError("the application did not start: see the log")
        self._dating = asyncio.create_task(self._keep_date())
        self._listener.start(listening, tls)

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Stops accepting, gives requests in progress their grace, and cancels the others."""
        await self._listener.stop()
        self._dating.cancel()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=grace_seconds)
        self._table.close_all()
        tasks = tuple(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lifespan.shutdown()
        UVICORN_LOG.removeFilter(self._one_line)

    async def _keep_date(self) -> None:
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            await asyncio.sleep(DATE_SECONDS)

    def _new_protocol(self) -> asyncio.Protocol:
        protocol = BoundedProtocol(self._config, self._state, self._lifespan.state)
        protocol.table, protocol.refuse = self._table, self._refuse
        protocol.app, protocol.inner = protocol.serve, protocol.app
        return protocol


class BoundedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which reports the progress of its request to the table.

    Cancels the request when its client disconnects.
    """

    table: ConnectionTable
    refuse: Callable[[str], Response]
    inner: ASGIApp
    _task: "asyncio.Task[None] | None" = None
    """Answers the request that is not answered yet."""
    _num_head_bytes = 0
    """Bytes since the last of a body, or the last request."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the application for one request."""
        self._task = task = asyncio.current_task()
        self.table.begin_request(self)
        if not self.cycle.more_body:
            self.table.begin_answer(self)
        request = _Request(receive, send)
        try:
            await self.inner(scope, request.receive, request.send)
        except asyncio.CancelledError:
            if not self.transport.is_closing():
                raise
        except ConnectionError:  # its client has gone, or does not read
            self.transport.abort()
        finally:
            if self._task is task:
                self._task = None
                self.table.end_request(self)

    def data_received(self, data: bytes) -> None:
        """Parses received bytes, and refuses a head that is too long."""
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the head of a request is too long")

    def on_headers_complete(self) -> None:
        """Begins a request, unless its head is too long."""
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            raise ValueError("the head of a request is too long")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a part of a body."""
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes that a request has arrived."""
        self._num_head_bytes = 0
        super().on_message_complete()
        if self._task is not None:
            self.table.begin_answer(self)

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to a websocket, which keeps its place until it is closed."""
        self.table.begin_answer(self)
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the request of a client that has left."""
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP, unless another answer has started."""
        if self._task is not None and self.cycle.response_started:
            self.transport.abort()
            return
        answer = self.refuse(msg)
        lines = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        head = b"HTTP/1.1 400 Bad Request\r\n" + lines + b"connection: close\r\n\r\n"
        self.transport.write(head + bytes(answer.body))
        self.transport.close()


class _Request:
    """A request as the application sees it; the unread rest of its body is discarded."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_read = False

    async def receive(self) -> Message:
        """Returns the next part of the body."""
        message = await self._receive()
        self._is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Sends a part of the answer; its end waits a moment for the rest of the body.

        A connection that is closed before would take the answer from a client that still sends.
        """
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last and not self._is_read:
            await self._send({**message, "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DISCARD_SECONDS):
                    while not self._is_read:
                        await self.receive()
            message = {"type": "http.response.body"}
        await self._send(message)
