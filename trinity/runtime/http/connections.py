"""The connections of an HTTP address, with bounds on their number and on how long each may idle."""

import asyncio
import resource
import socket
from dataclasses import dataclass
from enum import IntEnum

MAX_CONNECTIONS = 2048
BACKLOG = 1024
"""Connections that the kernel keeps for an address until they are accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The bounds of an address."""

    max_connections: int
    head_seconds: float = 20.0
    """Time for the handshake and the head of the first request."""
    idle_seconds: float = 60.0
    """Time to take an answer and send the head of the next request; longer than clients keep idle
    connections."""

    @classmethod
    def from_open_files(cls) -> "HttpLimits":
        """Leaves two thirds of the process's open files to its other parts."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        third = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, files // 3)
        return cls(max_connections=min(MAX_CONNECTIONS, third))


class ConnectionPhase(IntEnum):
    """The state of a connection; those of a lower one give way to new connections first."""

    NEW = 0
    """It has never sent the head of a request."""
    WAITING = 1
    """Its last request is answered."""
    SENDING = 2
    """It has sent the head of a request, and its body has not arrived."""
    ANSWERED = 3
    """Its request is being answered; it never gives way."""


@dataclass(eq=False, slots=True, kw_only=True)
class HttpConnection:
    """One accepted connection; it is open until its socket is closed."""

    socket: socket.socket
    phase: ConnectionPhase = ConnectionPhase.NEW
    until: float
    """The time on the loop's clock at which it is closed, if it is new or waiting; for one that
    sends, the time at which its body began."""
    protocol: object = None
    handshake: "asyncio.Task[None] | None" = None
    transport: asyncio.BaseTransport | None = None

    @property
    def is_open(self) -> bool:
        """True until the transport has closed the socket."""
        return self.socket.fileno() >= 0

    def end_handshake(self, _: "asyncio.Task[None]") -> None:
        """Closes the socket if no transport has it: a task may be cancelled before it begins."""
        self.handshake = None
        if self.transport is None:
            self.socket.close()

    def abort(self) -> None:
        """Closes it without waiting for its client."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()
        else:
            self.socket.close()


class ConnectionTable:
    """The open connections of one or several addresses of this process.

    Invariant: there are at most `max_connections`. A new one takes the place of the oldest of the
    first phase of which there are any. Only when all of them are being answered does a new one
    wait. So idle connections and slow bodies keep no client out.

        connection = await table.add(accepted)
        table.bind(connection, protocol)
        table.begin_request(protocol)
        table.begin_answer(protocol)
        table.end_request(protocol)
    """

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._open: set[HttpConnection] = set()
        self._by_protocol: dict[object, HttpConnection] = {}
        self._changed = asyncio.Event()

    @property
    def num_open(self) -> int:
        """Number of connections whose sockets are open."""
        return sum(connection.is_open for connection in self._open)

    async def add(self, accepted: socket.socket) -> HttpConnection:
        """Takes a connection in; waits while there is no room."""
        while not self._make_room():
            self._changed.clear()
            await self._changed.wait()
        connection = HttpConnection(socket=accepted, until=_now() + self.limits.head_seconds)
        self._open.add(connection)
        return connection

    def bind(self, connection: HttpConnection, protocol: object) -> None:
        """Makes the connection known by its protocol, which its requests name."""
        connection.protocol = protocol
        self._by_protocol[protocol] = connection

    def begin_request(self, protocol: object) -> None:
        """Notes that the head of a request has arrived."""
        self._enter(protocol, ConnectionPhase.SENDING, _now())

    def begin_answer(self, protocol: object) -> None:
        """Keeps the connection of a request from being closed until the request has ended."""
        self._enter(protocol, ConnectionPhase.ANSWERED, _now())

    def end_request(self, protocol: object) -> None:
        """Gives the client time to take the answer and to ask again."""
        self._enter(protocol, ConnectionPhase.WAITING, _now() + self.limits.idle_seconds)
        self._changed.set()

    def close_expired(self) -> None:
        """Closes the connections whose time is over, and forgets closed ones."""
        now = _now()
        for connection in list(self._open):
            if connection.phase <= ConnectionPhase.WAITING and connection.until <= now:
                self._close(connection)
        self._forget_closed()

    def close_all(self) -> None:
        """Closes all connections."""
        for connection in list(self._open):
            self._close(connection)

    def _enter(self, protocol: object, phase: ConnectionPhase, until: float) -> None:
        if (connection := self._by_protocol.get(protocol)) is not None:
            connection.phase, connection.until = phase, until

    def _make_room(self) -> bool:
        if len(self._open) < self.limits.max_connections:
            return True
        self._forget_closed()
        if len(self._open) >= self.limits.max_connections:
            oldest = min(self._open, key=lambda connection: (connection.phase, connection.until))
            if oldest.phase is ConnectionPhase.ANSWERED:
                return False
            self._close(oldest)
        return True

    def _close(self, connection: HttpConnection) -> None:
        self._forget(connection)
        connection.abort()

    def _forget_closed(self) -> None:
        for connection in [c for c in self._open if not c.is_open]:
            self._forget(connection)

    def _forget(self, connection: HttpConnection) -> None:
        self._open.discard(connection)
        self._by_protocol.pop(connection.protocol, None)
        self._changed.set()


def _now() -> float:
    return asyncio.get_running_loop().time()
