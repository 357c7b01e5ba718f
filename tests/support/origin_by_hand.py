"""Digests of origin from lists of numbers, written from their definition alone."""

import hashlib
import struct

SpanNumbers = tuple[int, int, int, int]
"""First sampled token, the one after the last, version, incarnation."""
ZEROS = bytes(32)


def sha256_of(data: bytes) -> bytes:
    """Of one string of bytes."""
    return hashlib.sha256(data).digest()


def of_parts(*parts: bytes) -> bytes:
    """SHA-256 over the parts, each after its length."""
    return sha256_of(b"".join(struct.pack("<Q", len(part)) + part for part in parts))


def content(
    prompt: list[int], sampled: list[int], logprobs: list[float], spans: list[SpanNumbers]
) -> bytes:
    """The prompt and the answer of one call of the engine."""
    return of_parts(
        b"trinity turn content 1",
        sha256_of(struct.pack(f"<{len(prompt)}i", *prompt)),
        struct.pack(f"<{len(sampled)}i", *sampled),
        struct.pack(f"<{len(logprobs)}f", *logprobs),
        b"".join(struct.pack("<4q", *span) for span in spans),
    )


def turn(before: bytes, of_content: bytes, kind: bytes = b"trinity turn 1") -> bytes:
    """A turn after another."""
    return of_parts(kind, before, of_content)


def batch(rows: list[bytes]) -> bytes:
    """Rows in their order."""
    return of_parts(b"trinity batch 1", b"".join(rows))


def version(before: bytes, of_batch: bytes) -> bytes:
    """Weights after a batch."""
    return of_parts(b"trinity version 1", before, of_batch)
