"""Uvicorn within bounds: idle connections and slow requests keep no browser out."""

import asyncio
import logging
import socket
from typing import cast

import uvicorn
from h11 import LocalProtocolError
from uvicorn.protocols.http.h11_impl import H11Protocol

from trinity.runtime.bounded_listener import BoundedListener
from trinity.runtime.http_connections import BACKLOG, ConnectionTable, HttpLimits
from trinity.runtime.logs import RateLimitedLog

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
        elif isinstance(error, LocalProtocolError):  # the client broke off what is being answered
            _limited.warning("requests break off while they are answered")
        else:
            _limited.error(f"uvicorn: {record.msg}".strip(), error)
        return False


class BoundedServer(uvicorn.Server):
    """A uvicorn server whose connections have places in a table; see `ConnectionTable`.

    BoundedServer(uvicorn.Config(app), HttpLimits.from_open_files(), listening).serve_forever()
    """

    def __init__(
        self, config: uvicorn.Config, limits: HttpLimits, listening: socket.socket
    ) -> None:
        super().__init__(config)
        self.table = ConnectionTable(limits)
        self._listening = listening
        self._listener = BoundedListener(self.table, self._new_protocol)

    def serve_forever(self) -> None:
        """Serves until the process is interrupted."""
        # asyncio's own loop, whose transports close the sockets that the table looks at.
        asyncio.run(self.serve())

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves as uvicorn does; its lines about requests are limited in rate."""
        del sockets  # it has a socket of its own
        log, limit = logging.getLogger("uvicorn.error"), OneLineEach()
        log.addFilter(limit)
        self._listening.listen(BACKLOG)
        try:
            await super().serve(sockets=[])
        finally:
            log.removeFilter(limit)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, then accepts connections."""
        await super().startup(sockets=sockets)
        self._listener.start(self._listening, self.config.ssl)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting, and gives open connections their grace."""
        await self._listener.stop()
        await super().shutdown(sockets=sockets)
        self.table.close_all()

    def _new_protocol(self) -> asyncio.Protocol:
        protocol = BoundedProtocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        protocol.table = self.table
        return cast("asyncio.Protocol", protocol)


class BoundedProtocol(H11Protocol):
    """Uvicorn's protocol; it tells the table how far its request is."""

    table: ConnectionTable

    def handle_events(self) -> None:
        """Handles what has arrived of requests."""
        before = self.cycle
        super().handle_events()
        if self.cycle is None or self.cycle.response_complete:
            return
        if self.cycle is not before:
            self.table.begin_request(self)
        if not self.cycle.more_body:
            self.table.begin_answer(self)

    def handle_websocket_upgrade(self, event: object) -> None:
        """Hands the connection to a websocket, which keeps its place until it is closed."""
        self.table.begin_answer(self)
        super().handle_websocket_upgrade(event)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        """Gives the client time to ask again."""
        self.table.end_request(self)
        super().on_response_complete()
