"""An HTTP server of threads with bounds on what clients can hold, by the standard library alone."""

import contextlib
import socket
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK_BYTES = 1024 * 1024
LOG_SECONDS = 10.0


class BodyIncomplete(Exception):
    """The client has gone, took too long, or sent more than there is room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds of one server."""

    max_connections: int = 64
    """Each has a thread."""
    request_seconds: float = 60.0
    """Time for a whole request to arrive, from the connection on."""
    max_bodies_bytes: int = 1024**3
    """Limit of the bodies of all requests together."""


@dataclass(eq=False, slots=True)
class _Client:
    """A connection, and what of its request has arrived."""

    connection: socket.socket
    closes_at: float
    is_complete: bool = False
    num_bytes: int = 0

    def cut(self) -> None:
        """Wakes the thread that reads from it; the thread closes it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


class BoundedThreadingServer(ThreadingHTTPServer):
    """Answers each connection in a thread, of which there are at most `max_connections`.

    A new connection takes the place of the oldest whose request is not complete, so idle ones keep
    no client out; if all are complete, it is closed. If bodies exceed their limit together, the
    largest incomplete one is given up.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        limits: ServerLimits | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self._clients: dict[socket.socket, _Client] = {}
        self._lock = threading.Lock()
        self.log = ThreadedRateLimitedLog()
        super().__init__(address, handler)

    @property
    def num_connections(self) -> int:
        """Number of connections that have a thread."""
        return len(self._clients)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection if there is room."""
        with self._lock:
            has_room = self._make_room()
            if has_room:
                until = time.monotonic() + self.limits.request_seconds
                self._clients[request] = _Client(request, until)
        if has_room:
            super().process_request(request, client_address)
        else:
            self.log.write("connections are refused: all are being answered")
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends the connections whose requests take too long; called twice a second."""
        now = time.monotonic()
        with self._lock:
            for client in self._clients.values():
                if not client.is_complete and client.closes_at <= now:
                    client.cut()

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection and forgets it."""
        with self._lock:
            self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs one line once in a while, where the standard library prints each traceback."""
        del request, client_address
        error = sys.exc_info()[1]
        self.log.write(f"requests fail: {type(error).__name__}: {error}")

    def read_body(self, connection: socket.socket, stream: Any, length: int) -> bytes:
        """Reads a body, which counts until the connection is closed.

        Raises: BodyIncomplete.
        """
        body = bytearray()
        while len(body) < length:
            chunk = stream.read1(min(CHUNK_BYTES, length - len(body)))
            if not chunk:
                raise BodyIncomplete
            body += chunk
            self._count(connection, len(chunk))
        self.complete(connection)
        return bytes(body)

    def complete(self, connection: socket.socket) -> None:
        """Notes that a request has arrived: from now on it takes as long as it takes."""
        with self._lock:
            if (client := self._clients.get(connection)) is not None:
                client.is_complete = True

    def _count(self, connection: socket.socket, num_bytes: int) -> None:
        with self._lock:
            if (client := self._clients.get(connection)) is None:
                raise BodyIncomplete
            client.num_bytes += num_bytes
            held = sum(each.num_bytes for each in self._clients.values())
            if held > self.limits.max_bodies_bytes:
                incomplete = [each for each in self._clients.values() if not each.is_complete]
                max(incomplete, key=lambda each: each.num_bytes).cut()

    def _make_room(self) -> bool:
        """Gives up the oldest incomplete connection if need be; call it under the lock."""
        if len(self._clients) < self.limits.max_connections:
            return True
        for client in self._clients.values():  # in the order of their arrival
            if not client.is_complete:
                client.cut()
                self._clients.pop(client.connection)
                return True
        return False


class ThreadedRateLimitedLog:
    """Writes a line to standard error at most once in ten seconds, with the number left out."""

    def __init__(self, interval_seconds: float = LOG_SECONDS) -> None:
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._until = 0.0
        self._num_left_out = 0

    def write(self, line: str) -> None:
        """Writes a line, or counts it."""
        with self._lock:
            if time.monotonic() < self._until:
                self._num_left_out += 1
                return
            self._until = time.monotonic() + self._interval_seconds
            more, self._num_left_out = self._num_left_out, 0
        text = " ".join(line.split())[:500]
        sys.stderr.write(f"{text} ({more} such lines were left out)\n" if more else f"{text}\n")
        sys.stderr.flush()
