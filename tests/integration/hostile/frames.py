"""HTTP/2 by hand: frames as no library would send them."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 0x1, 0x4
CANCEL = struct.pack(">I", 8)


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """One frame."""
    length = struct.pack(">I", len(payload))[1:]
    return length + struct.pack(">BBI", kind, flags, stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    """One header field, not compressed and not to be remembered."""
    return b"\x00" + _text(name) + _text(value)


def call_headers(path: str, *more: bytes) -> bytes:
    """What a gRPC call begins with."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": path.encode(),
        b":authority": b"localhost",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    return b"".join(header(name, value) for name, value in fields.items()) + b"".join(more)


def grpc_message(content: bytes, *, is_compressed: bool = False) -> bytes:
    """A message as it stands in DATA frames."""
    return struct.pack(">BI", is_compressed, len(content)) + content


def _text(value: bytes) -> bytes:
    """Length, in HPACK's way with a prefix of seven bits, and content."""
    if len(value) < 127:
        return bytes([len(value)]) + value
    length, more = len(value) - 127, bytearray([127])
    while length >= 128:
        more.append(length % 128 + 128)
        length //= 128
    return bytes([*more, length]) + value


@contextlib.asynccontextmanager
async def connected(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A plain connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def send(address: str, *parts: bytes, wait_seconds: float = 0.5) -> bytes:
    """Send all of it; answers what comes back until the peer closes or the time is over."""
    answer = bytearray()
    with contextlib.suppress(OSError, TimeoutError):
        async with connected(address) as (reader, writer), asyncio.timeout(wait_seconds):
            for part in parts:
                writer.write(part)
                await writer.drain()
            while some := await reader.read(65_536):
                answer += some
    return bytes(answer)
