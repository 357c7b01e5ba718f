"""Serves an aiohttp application within bounds; errors of HTTP itself are answered in JSON too."""

import asyncio
import logging
import socket
import ssl
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Middleware

from services.explorer.openai_api.bodies import body_arrived_key
from services.explorer.openai_api.errors import (
    INVALID,
    MAX_SHOWN_CHARACTERS,
    Handler,
    error_response,
)
from trinity.runtime.bounded_listener import BoundedListener
from trinity.runtime.http_connections import ConnectionTable
from trinity.runtime.logs import RateLimitedLog

logger = logging.getLogger(__name__)
_limited = RateLimitedLog(logger)

LINGER_SECONDS = 2.0
"""Time to read the rest of a body that is refused, so that its client reads why."""


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
    """Serves an aiohttp application at a socket, within the bounds of a table of connections.

    server = BoundedHttpServer(app, table=table)
    await server.start(listening)
    await server.stop()
    """

    def __init__(self, app: web.Application, *, table: ConnectionTable) -> None:
        app.middlewares.append(_request_marker(table))
        # A client's disconnect cancels its handler and thereby the generation for it.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._idle_seconds = table.limits.idle_seconds
        self._listener = BoundedListener(table, self._new_protocol)

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begins to accept connections at a bound socket."""
        await self._runner.setup()
        self._listener.start(listening, tls)

    async def stop(self) -> None:
        """Stops accepting, and closes all connections; requests in progress are cancelled."""
        await self._listener.stop()
        await self._runner.cleanup()

    def _new_protocol(self) -> OpenAiProtocol:
        assert self._runner.server is not None
        return OpenAiProtocol(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # aiohttp documents it as no log
            keepalive_timeout=self._idle_seconds,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
        )


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
