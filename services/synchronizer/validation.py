"""Checks of request fields; every error names the field."""

import math
import uuid

from trinity.errors import InvalidRequest

MAX_NAME_LENGTH = 500
MAX_TEXT_LENGTH = 4_000
SHA256_BYTES = 32


def identifier(value: str, field: str) -> uuid.UUID:
    """Parses a UUID."""
    try:
        return uuid.UUID(value)
    except ValueError as error:
        raise InvalidRequest(f"{field}: {value[:60]!r} is not a UUID") from error


def optional_identifier(value: str, field: str) -> uuid.UUID | None:
    """Parses a UUID; None for an empty text."""
    return identifier(value, field) if value else None


def text(value: str, field: str, max_length: int, *, may_be_empty: bool = False) -> str:
    """Checks a text for Postgres: no NUL, and few enough bytes that two fit into an index entry."""
    if not value and not may_be_empty:
        raise InvalidRequest(f"{field}: is missing")
    if (num_bytes := len(value.encode())) > max_length:
        raise InvalidRequest(f"{field}: has {num_bytes} bytes, at most {max_length} are taken")
    if "\0" in value:
        raise InvalidRequest(f"{field}: holds a NUL character")
    return value


def sentence(value: str) -> str:
    """Truncates and cleans a text for people; not refused, since it may explain a failure."""
    return value.replace("\0", "")[:MAX_TEXT_LENGTH]


def at_least(value: int, minimum: int, field: str) -> int:
    """Checks an integer against a minimum."""
    if value < minimum:
        raise InvalidRequest(f"{field}: is {value}, must be at least {minimum}")
    return value


def seconds(value: float, field: str) -> float:
    """Checks a duration."""
    if not math.isfinite(value) or value < 0:
        raise InvalidRequest(f"{field}: is {value}, must be a duration")
    return value


def root(value: bytes, field: str, *, is_needed: bool) -> bytes:
    """Checks a root of weights; of two roots one is enough."""
    return sha256(value, field) if value or is_needed else b""


def sha256(value: bytes, field: str) -> bytes:
    """Checks a digest of 32 bytes, as SHA-256 and BLAKE3 have."""
    if len(value) != SHA256_BYTES:
        raise InvalidRequest(f"{field}: has {len(value)} bytes, a SHA-256 has {SHA256_BYTES}")
    return value
