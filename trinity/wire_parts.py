"""Encodes repeated message fields as bytes: putting parts into a message object copies them."""

from collections.abc import Iterable

LENGTH_DELIMITED = 2
"""The wire type of embedded messages."""


def with_parts(field_number: int, parts: Iterable[bytes]) -> bytes:
    """Encodes a repeated message field from encoded parts, to append to the other fields."""
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
