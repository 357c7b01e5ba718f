"""The websockets of pages: which frames reach Streamlit, and how fast."""

import asyncio
import logging
import math
import time
import traceback

from google.protobuf.message import DecodeError
from starlette.types import Message, Receive, Send
from streamlit.proto.BackMsg_pb2 import BackMsg

from trinity.runtime.logs import RateLimitedLog
from trinity.studio.visitors import SOCKET_UNITS, UNIT_BYTES, Share, Visitor

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""A frame holds what all fields of a page hold, such as a pasted script of a megabyte."""
POLICY_VIOLATION, NOT_UNDERSTOOD = 1008, 1003
"""The codes that websockets are closed with."""
KINDS = frozenset(
    (
        "rerun_script",
        "stop_script",
        "app_heartbeat",
        "file_urls_request",
        "backend_operation_request",
    )
)
"""Kinds of frames that pages need; others, such as one that empties all caches, are passed over."""
_limited = RateLimitedLog(logging.getLogger(__name__))


VALUE_LOGGERS = ("streamlit.error_util", "streamlit.components.v2.bidi_component.serialization")
"""Loggers of Streamlit for errors about values from a browser."""
READ_VALUES = frozenset(
    ("unpack_widget_state_value", "deserialize", "_compact_state", "filtered_state")
)
"""The functions of Streamlit that read them; what our pages raise is not below these."""
SILENT_SECONDS = 10.0


class OneLineOfValues(logging.Filter):
    """Makes one line of the tracebacks of values that no field of a page sends."""

    _silent_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Replaces a traceback by one line; returns false for a repetition within seconds."""
        error = record.exc_info[1] if record.exc_info else None
        frames = traceback.walk_tb(error.__traceback__ if error else None)
        if not any(frame.f_code.co_name in READ_VALUES for frame, _ in frames):
            return True
        is_new = time.monotonic() >= self._silent_until
        if is_new:
            self._silent_until = time.monotonic() + SILENT_SECONDS
            record.msg, record.args = "a websocket sends a value that its field does not take", ()
            record.exc_info = None
        return is_new


class PageSocket:
    """A page's websocket as Streamlit sees it.

    It is closed when the token that opened it expires, and at a frame that no page sends. Frames
    beyond the visitor's share wait, and then the browser's next ones do.
    """

    def __init__(self, visitor: Visitor, share: Share, receive: Receive, send: Send) -> None:
        self._expires_at = visitor.expires_at
        self._share = share
        self._receive = receive
        self._send = send
        self._is_closed = False

    async def receive(self) -> Message:
        """Returns the next message of the browser."""
        left = max(self._expires_at - time.time(), 0.0)
        try:
            async with asyncio.timeout(None if math.isinf(left) else left):
                while not self._is_closed:
                    message = await self._receive()
                    if message["type"] == "websocket.receive":
                        kind = await self._kind_of(message.get("bytes"))
                        if kind not in KINDS:
                            continue
                    elif message["type"] == "websocket.connect":
                        await asyncio.sleep(self._share.wait_seconds(SOCKET_UNITS))
                    return message
        except TimeoutError:
            await self._close(POLICY_VIOLATION)
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    async def send(self, message: Message) -> None:
        """Sends what Streamlit says, until the websocket is closed."""
        if not self._is_closed:
            await self._send(message)

    async def _kind_of(self, frame: bytes | None) -> str | None:
        """Returns the kind of a frame when it is its turn; closes at an unparsable frame."""
        try:
            message = BackMsg.FromString(frame or b"")
        except DecodeError:
            frame = None
        if frame is None:
            _limited.warning("a websocket sends what no page sends, and is closed")
            await self._close(NOT_UNDERSTOOD)
            return None
        await asyncio.sleep(self._share.wait_seconds(1 + len(frame) / UNIT_BYTES))
        return message.WhichOneof("type")

    async def _close(self, code: int) -> None:
        self._is_closed = True
        await self._send({"type": "websocket.close", "code": code})
