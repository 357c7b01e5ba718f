"""Clients of nats-py with behaviour that the library has no setting for.

This file alone uses the library's insides: `_process_op_err`, `_transport._io_writer`,
`_process_msg`, `_ps` and the states of its parser. They hold for nats-py 2.16;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import re

from nats.aio.client import Client
from nats.protocol.parser import AWAITING_CONTROL_LINE, CRLF_SIZE, Parser

from trinity.runtime.telemetry import tracing

REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
STORED = b"$JS.ACK."
"""Prefix of the reply subject of messages from a stream; the broker's own messages lack it."""
END_OF_LINE = b"\r\n"
CONTEXT = re.compile(rb"\r\n(traceparent: [0-9a-f-]{55}\r\n)")
NOT_IN_SUBJECTS = dict.fromkeys([0x0B, 0x0C], REPLACEMENT_CHARACTER)
"""The broker accepts these characters in a subject; the library takes them for its end."""


class FastReconnectClient(Client):  # type: ignore[misc]  # the library has no types
    """Aborts a connection that is dead.

    The library closes it gracefully, which over TLS takes 30 s when the other end is silent, and
    reconnects only after that.
    """

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting) and self._transport:
            self._transport._io_writer.transport.abort()
        await super()._process_op_err(e)


class LenientClient(FastReconnectClient):
    """Reads any message that the broker delivers, whatever its subject and headers hold.

    The library closes its connection on a subject that it cannot decode or split and on headers
    that it cannot parse, and may take headers of a stored message for a status of the broker. Such
    a message would be delivered again on every reconnect. Of a result's headers only the trace
    context is used.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = _LineParser(self)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        own = trace_context_in(headers) if reply.startswith(STORED) else headers
        await super()._process_msg(sid, subject, reply, data, own)


def trace_context_in(headers: bytes | None) -> bytes | None:
    """Returns a header block with only the trace context, if there is a valid one."""
    found = CONTEXT.search(headers) if headers and tracing.is_on() else None
    return b"NATS/1.0\r\n" + found[1] + b"\r\n" if found else None


class _LineParser(Parser):  # type: ignore[misc]  # the library has no types
    """Passes the library one line or one message body at a time, and only readable lines."""

    def reset(self) -> None:
        """Discards incomplete input."""
        super().reset()
        self._received = bytearray()

    async def parse(self, data: bytes = b"") -> None:
        """Parses complete parts; an incomplete one waits for the rest."""
        self._received += data
        while part := self._next_part():
            await super().parse(part)

    def _next_part(self) -> bytes:
        """Returns a whole line, made readable, or a whole message body; empty if incomplete."""
        if self.state == AWAITING_CONTROL_LINE:
            length = self._received.find(END_OF_LINE)
            line = self._take(length + CRLF_SIZE) if length >= 0 else b""
            return line.decode(errors="replace").translate(NOT_IN_SUBJECTS).encode()
        return self._take(self.needed + CRLF_SIZE)

    def _take(self, length: int) -> bytes:
        if length > len(self._received):
            return b""
        part = bytes(self._received[:length])
        del self._received[:length]
        return part
