"""Accepts connections at a port within bounds, for any HTTP server that runs on asyncio."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TypeAlias

from trinity.runtime.http.connections import BACKLOG, ConnectionTable, HttpConnection
from trinity.runtime.logs import RateLimitedLog

logger = logging.getLogger(__name__)
_limited = RateLimitedLog(logger)

ProtocolFactory: TypeAlias = Callable[[], asyncio.Protocol]
SWEEP_SECONDS = 1.0
RETRY_SECONDS = 0.5
"""Pause after a connection could not be accepted."""
TLS_CLOSE_SECONDS = 2.0


def open_port(host: str, port: int) -> socket.socket:
    """Returns a bound socket that listens; raises OSError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Accepted sockets have it too: with Nagle's algorithm an answer's body waits 40 ms for the ACK
    # of its head. asyncio sets it for its own servers alone.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class BoundedListener:
    """Accepts connections as far as a table has room, and ends those that take too long.

    asyncio's own servers bound neither: they accept until the process has no files left.

        listener = BoundedListener(table, new_protocol)
        listener.start(listening, tls)
        await listener.stop()
    """

    def __init__(self, table: ConnectionTable, new_protocol: ProtocolFactory) -> None:
        self._table = table
        self._new_protocol = new_protocol
        self._listening: socket.socket | None = None
        self._tls: ssl.SSLContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Begins to accept connections at a bound socket; the listener closes it at its end."""
        self._tls = tls
        self._listening = listening
        listening.setblocking(False)
        self._tasks = [
            asyncio.create_task(self._accept_all(listening)),
            asyncio.create_task(self._sweep()),
        ]

    async def stop(self) -> None:
        """Stops accepting, and ends handshakes; accepted connections stay open."""
        tasks = [*self._tasks, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()

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
                lambda: self._bound_protocol(connection),
                connection.socket,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=None if seconds is None else TLS_CLOSE_SECONDS,
            )
        except OSError as error:
            _limited.warning("connections end in their handshake", reason=str(error))

    def _bound_protocol(self, connection: HttpConnection) -> asyncio.Protocol:
        protocol = self._new_protocol()
        self._table.bind(connection, protocol)
        return protocol

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._table.close_expired()
