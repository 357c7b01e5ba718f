"""Serves an aiohttp application within bounds; errors of HTTP itself are answered in JSON too."""

import asyncio
import logging
import socket
import ssl
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Middleware

from services.explorer.openai_api.bodies import body_arrived_key
from services.explorer.openai_api.connections import ConnectionTable, HttpConnection
from services.explorer.openai_api.errors import (
    INVALID,
    MAX_SHOWN_CHARACTERS,
    Handler,
    error_response,
)
from trinity.runtime.logs import RateLimitedLog

logger = logging.getLogger(__name__)
_limited = RateLimitedLog(logger)

SWEEP_SECONDS = 1.0
RETRY_SECONDS = 0.5
"""Pause after a connection could not be accepted."""
LINGER_SECONDS = 2.0
"""Time to read the rest of a body that is refused, so that its client reads why."""
TLS_CLOSE_SECONDS = 2.0


class OpenAiProtocol(web.RequestHandler):
    """aiohttp's protocol; it logs a client's mistakes in one line, and answers them in JSON."""

    def data_received(self, data: bytes) -> None:
        """Parses what has arrived; an error of the parser ends this connection only."""
        try:
            super().data_received(data)
        except Exception as error:  # the edge: without it, asyncio logs each
            _limited.error("a request could not be parsed", error)
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Returns the answer to a request that is not HTTP, or to a fault of aiohttp."""
        if status >= 500 and exc is not None:
            _limited.error("a request failed", exc)
        else:
            # The message may quote a header with a key.
            reason = type(exc).__name__
            _limited.warning("requests are not HTTP", reason=reason, peer=request.remote)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun")
        text = f"this is not a request of HTTP/1.1: {_one_line(message)}"
        response = error_response(status, INVALID, text)
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        """Logs a fault of a handler once in a while."""
        error = kw.get("exc_info")
        if isinstance(error, BaseException):
            _limited.error("a connection failed", error)
        else:
            _limited.warning("a connection failed", reason=_one_line(str(args)))


class BoundedHttpServer:
    """Accepts connections as far as a table has room, and ends those that take too long.

    aiohttp and asyncio bound neither: asyncio accepts until the process has no files left.

        server = BoundedHttpServer(app, table=table)
        await server.start(listening)
        await server.stop()
    """

    def __init__(self, app: web.Application, *, table: ConnectionTable) -> None:
        app.middlewares.append(_request_marker(table))
        # A client's disconnect cancels its handler and thereby the generation for it.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._table = table
        self._listening: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begins to accept connections at a bound socket."""
        await self._runner.setup()
        self._tls = tls
        self._listening = listening
        listening.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._accept_all(listening)),
            asyncio.create_task(self._sweep()),
        ]

    async def stop(self) -> None:
        """Stops accepting, and closes all connections; requests in progress are cancelled."""
        tasks = [*self._tasks, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:  # no files are left, or the client has gone
                _limited.warning("connections are not accepted", reason=str(error))
                self._table.close_expired()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await self._admit(accepted)
            # sock_accept does not yield while connections are pending; the accepted ones must open.
            await asyncio.sleep(0)

    async def _admit(self, accepted: socket.socket) -> None:
        try:
            connection = await self._table.add(accepted)
        except BaseException:
            accepted.close()
            raise
        connection.handshake = asyncio.create_task(self._open(connection))
        self._handshakes.add(connection.handshake)
        connection.handshake.add_done_callback(self._handshakes.discard)
        connection.handshake.add_done_callback(connection.end_handshake)

    async def _open(self, connection: HttpConnection) -> None:
        """Connects an accepted socket with a protocol, after the handshake of TLS."""
        seconds = self._table.limits.head_seconds if self._tls is not None else None
        try:
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._new_protocol(connection),
                connection.socket,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=None if seconds is None else TLS_CLOSE_SECONDS,
            )
        except OSError as error:
            _limited.warning("connections end in their handshake", reason=str(error))

    def _new_protocol(self, connection: HttpConnection) -> OpenAiProtocol:
        assert self._runner.server is not None
        protocol = OpenAiProtocol(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp documents it as no log
            keepalive_timeout=self._table.limits.idle_seconds,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
        )
        self._table.bind(connection, protocol)
        return protocol

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._table.close_expired()


def _request_marker(table: ConnectionTable) -> Middleware:
    """Returns the middleware that tells the table which connections wait for an answer."""

    @web.middleware
    async def mark(request: web.Request, handler: Handler) -> web.StreamResponse:
        table.begin_request(request.protocol)
        request[body_arrived_key()] = partial(table.begin_answer, request.protocol)
        try:
            return await handler(request)
        finally:
            table.end_request(request.protocol)

    return mark


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())[:MAX_SHOWN_CHARACTERS]
