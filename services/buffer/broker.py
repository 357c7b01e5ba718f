"""The broker's client, made safe against what strangers put on the stream."""

import re

from nats.aio.msg import Msg
from nats.protocol.parser import AWAITING_CONTROL_LINE, CRLF_SIZE, Parser

from trinity.nats import PromptClient
from trinity.telemetry import tracing

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
STORED = b"$JS.ACK."
"""How the reply of a message begins that comes from a stream; the broker's own words have none."""
END_OF_LINE = b"\r\n"
CONTEXT = re.compile(rb"\r\n(traceparent: [0-9a-f-]{55}\r\n)")
NOT_IN_SUBJECTS = dict.fromkeys([0x0B, 0x0C], UNREADABLE)
"""The broker takes them in a subject, the library for the end of one."""


class ResultsClient(PromptClient):
    """Reads any message that the broker delivers.

    The library ends its connection at a subject that it cannot decode or split and at headers that
    it cannot parse, and may take headers of a stored message for the broker's own word. Such a
    message would come again with each new connection. Of a result's headers the trace context
    alone matters.
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
    """A block with nothing but the trace context, if the sender gave one that is readable."""
    found = CONTEXT.search(headers) if headers and tracing.is_on() else None
    return b"NATS/1.0\r\n" + found[1] + b"\r\n" if found else None


class _LineParser(Parser):  # type: ignore[misc]  # the library has no types
    """Gives the library one line, or one message's content, at a time, and only readable lines."""

    def reset(self) -> None:
        """Forget what came in part."""
        super().reset()
        self._received = bytearray()

    async def parse(self, data: bytes = b"") -> None:
        """Take what came; what is not complete waits for the rest."""
        self._received += data
        while part := self._next_part():
            await super().parse(part)

    def _next_part(self) -> bytes:
        """A whole line, made readable, or the whole content of a message; empty if incomplete."""
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
    """Where a message came, as a database can hold it."""
    return str(message.subject).replace("\x00", UNREADABLE)
