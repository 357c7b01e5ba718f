"""Messages put together as bytes: what is put into a message object is copied each time."""

from collections.abc import Iterable

LENGTH_DELIMITED = 2
"""The wire type of messages in messages."""


def with_parts(field_number: int, parts: Iterable[bytes]) -> bytes:
    """A repeated field of messages, given as bytes, to stand beside those of the other fields."""
    tag = _varint(field_number << 3 | LENGTH_DELIMITED)
    chunks: list[bytes] = []
    for part in parts:
        chunks += (tag, _varint(len(part)), part)
    return b"".join(chunks)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
