"""A NATS client that is robust against malformed messages on the stream."""

import re

from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_CONTROL_LINE, CRLF_SIZE, Parser

from trinity.nats import PromptClient
from trinity.telemetry import tracing

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
STORED = b"$JS.ACK."
"""Prefix of the reply subject of messages from a stream; the broker's own messages lack it."""
END_OF_LINE = b"\r\n"
CONTEXT = re.compile(rb"\r\n(traceparent: [0-9a-f-]{55}\r\n)")
NOT_IN_SUBJECTS = dict.fromkeys([0x0B, 0x0C], UNREADABLE)
"""The broker accepts these characters in a subject; the library takes them for its end."""


class ResultsClient(PromptClient):
    """Reads any message that the broker delivers.

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
        own = _context_in(headers) if reply.startswith(STORED) else headers
        await super()._process_msg(sid, subject, reply, data, own)


def _context_in(headers: bytes | None) -> bytes | None:
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


def subject_of_message(message: Msg) -> str:
    """Returns the subject of a message in a form that the database can store."""
    return str(message.subject).replace("\x00", UNREADABLE)
