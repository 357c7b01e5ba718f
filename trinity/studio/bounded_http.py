"""Uvicorn within bounds: idle connections and slow requests keep no browser out."""

import asyncio
import socket
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from trinity.runtime.bounded_listener import BoundedListener
from trinity.runtime.http_connections import BACKLOG, ConnectionTable, HttpLimits


class BoundedServer(uvicorn.Server):
    """A uvicorn server whose connections have places in a table; see `ConnectionTable`.

    BoundedServer(uvicorn.Config(app), HttpLimits.from_open_files()).run_at(listening)
    """

    def __init__(self, config: uvicorn.Config, limits: HttpLimits) -> None:
        super().__init__(config)
        self.table = ConnectionTable(limits)
        self.listening: socket.socket | None = None
        self._listener = BoundedListener(self.table, self._new_protocol)

    def run_at(self, listening: socket.socket) -> None:
        """Serves at a bound socket until the process is interrupted."""
        listening.listen(BACKLOG)
        self.listening = listening
        # asyncio's own loop, whose transports close the sockets that the table looks at.
        asyncio.run(self.serve(sockets=[]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the application, then accepts connections."""
        await super().startup(sockets=sockets)
        assert self.listening is not None, "`run_at` serves"
        self._listener.start(self.listening, self.config.ssl)

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
