"""What may come in on a port besides calls."""

import struct
from random import Random

from tests.integration.hostile.frames import (
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    call_headers,
    frame,
    grpc_message,
    header,
)

BEGIN = PREFACE + frame(SETTINGS)
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def floods(path: str, seed: int) -> dict[str, bytes]:
    """Each to be sent over a connection of its own; `path` is a call that exists."""
    random = Random(seed)
    begun = _opened(path, 1)
    return {
        "garbage": random.randbytes(3_000),
        "HTTP/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": TLS_HELLO + random.randbytes(500),
        "a wrong preface": b"PRI * HTTP/3.0\r\n\r\nSM\r\n\r\n",
        "garbage after the preface": BEGIN + random.randbytes(3_000),
        "an endless frame": BEGIN + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(50_000),
        "a huge message": begun + frame(DATA, b"\x00\xff\xff\xff\xff" + bytes(10_000), stream=1),
        "a call without a message": BEGIN + _opened(path, 1, END_STREAM)[len(BEGIN) :],
        "many settings": BEGIN + frame(SETTINGS, struct.pack(">HI", 4, 65_535) * 2_000) * 3,
        "settings again and again": BEGIN + frame(SETTINGS) * 20_000,
        "pings": BEGIN + frame(PING, b"12345678") * 20_000,
        "empty data": begun + frame(DATA, stream=1) * 20_000,
        "headers without end": BEGIN
        + frame(HEADERS, call_headers(path), stream=1)
        + frame(CONTINUATION, header(b"a", b"b" * 1_000) * 10, stream=1) * 500,
        "empty headers without end": BEGIN
        + frame(HEADERS, call_headers(path), stream=1)
        + frame(CONTINUATION, stream=1) * 20_000,
        "many headers": BEGIN + _opened(path, 1, 0, *_headers(2_000))[len(BEGIN) :],
        "calls that are taken back": BEGIN + b"".join(_reset(path, i) for i in range(2_000)),
        "calls without end": BEGIN + b"".join(_stream(path, i) for i in range(2_000)),
    }


def _opened(path: str, stream: int, flags: int = 0, *more: bytes) -> bytes:
    fields = call_headers(path, *more)
    return BEGIN + frame(HEADERS, fields, flags=END_HEADERS | flags, stream=stream)


def _headers(number: int) -> list[bytes]:
    return [header(b"name-%d" % i, b"v") for i in range(number)]


def _stream(path: str, index: int) -> bytes:
    return frame(HEADERS, call_headers(path), flags=END_HEADERS, stream=2 * index + 1)


def _reset(path: str, index: int) -> bytes:
    stream = 2 * index + 1
    message = frame(DATA, grpc_message(b""), flags=END_STREAM, stream=stream)
    return _stream(path, index) + message + frame(RST_STREAM, CANCEL, stream=stream)
