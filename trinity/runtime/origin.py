"""Proof of origin: digests that lead from the weights to the answers of the engine.

    content = digest("trinity turn content 1", SHA-256(prompt), sampled, logprobs, spans)
    turn    = digest("trinity turn 1", turn before, content)
    batch   = digest("trinity batch 1", all its rows, 32 bytes each)
    version = digest("trinity version 1", version before, batch)

`digest` is SHA-256 over its parts, each after its length in bytes (8 bytes). Numbers are
little-endian: tokens int32, log-probabilities float32, lengths and spans int64. A span is the first
sampled token that a version of the weights made, the one after its last, version and incarnation;
neighbours of the same weights are one span. Without a turn or version before there are 32 zero
bytes. A row is its sample's last turn, or SHA-256 of the text of a row of data. A sequence that is
no answer has "trinity sample 1" in the place of "trinity turn 1". Rewards are not part of it.

    turn = answered_turn(tokens, prompt_length, logprobs, spans)
    [digest] = chain_turns([turn.content_sha256])
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NOTHING_BEFORE = bytes(32)
SHA256_BYTES = 32
_CONTENT, _TURN, _SAMPLE = b"trinity turn content 1", b"trinity turn 1", b"trinity sample 1"
_BATCH, _VERSION = b"trinity batch 1", b"trinity version 1"


class SpanNumbers(NamedTuple):
    """Weights that made the tokens [start, end) after a prompt."""

    start: int
    end: int
    version: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A call of the model that was answered, in the tokens of a sample."""

    prompt_length: int
    """Tokens before the first sampled one."""
    end: int
    """One past the last sampled token."""
    content_sha256: bytes


def digest_of(*parts: bytes) -> bytes:
    """Returns SHA-256 over the parts, each after its length."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.digest()


def turn_content(
    prompt_sha256: bytes,
    sampled: npt.NDArray[np.int32],
    logprobs: npt.NDArray[np.float32],
    spans: Iterable[SpanNumbers],
) -> bytes:
    """Returns the digest of a turn's content; `spans` count from the first sampled token."""
    merged: list[SpanNumbers] = []
    for span in spans:
        if span.end <= span.start:
            continue
        if merged and merged[-1][1:] == (span.start, *span[2:]):
            merged[-1] = merged[-1]._replace(end=span.end)
        else:
            merged.append(span)
    return digest_of(
        _CONTENT,
        prompt_sha256,
        sampled.astype("<i4").tobytes(),
        logprobs.astype("<f4").tobytes(),
        np.array(merged, dtype="<i8").tobytes(),
    )


def turn_contents(
    tokens: npt.NDArray[np.int32],
    prompt_length: int,
    logprobs: npt.NDArray[np.float32],
    spans: Sequence[SpanNumbers],
    turns: Iterable[tuple[int, int]],
) -> list[bytes]:
    """Returns the digests of the contents of a sample's turns, each a prompt length and an end.

    `logprobs` and `spans` count from the sample's own prompt length.
    """
    data, prompt, hashed, contents = tokens.astype("<i4").tobytes(), hashlib.sha256(), 0, []
    for start, end in turns:
        prompt.update(data[4 * hashed : 4 * start])
        hashed = max(hashed, start)
        first, last = start - prompt_length, end - prompt_length
        own = [
            SpanNumbers(max(span.start, first) - first, min(span.end, last) - first, *span[2:])
            for span in spans
        ]
        contents.append(turn_content(prompt.digest(), tokens[start:end], logprobs[first:last], own))
    return contents


def answered_turn(
    tokens: npt.NDArray[np.int32],
    prompt_length: int,
    logprobs: npt.NDArray[np.float32],
    spans: Sequence[SpanNumbers],
) -> Turn:
    """Returns the only turn of an answer."""
    place = prompt_length, len(tokens)
    [content] = turn_contents(tokens, prompt_length, logprobs, spans, [place])
    return Turn(prompt_length=prompt_length, end=len(tokens), content_sha256=content)


def chain_turns(
    contents: Iterable[bytes], before: bytes = NOTHING_BEFORE, *, are_answers: bool = True
) -> list[bytes]:
    """Returns the digest of each turn, by the digests of their contents."""
    chained = []
    for content in contents:
        before = digest_of(_TURN if are_answers else _SAMPLE, before, content)
        chained.append(before)
    return chained


def split_digests(joined: bytes) -> list[bytes]:
    """Returns digests that were stored one after another."""
    places = range(0, len(joined), SHA256_BYTES)
    return [joined[place : place + SHA256_BYTES] for place in places]


def batch_digest(rows: Iterable[bytes]) -> bytes:
    """Returns the digest of a batch by those of its rows in order."""
    return digest_of(_BATCH, b"".join(rows))


def data_row_digest(text: str) -> bytes:
    """Returns the digest of a row of data."""
    return hashlib.sha256(text.encode()).digest()


def version_digest(before: bytes, batch: bytes) -> bytes:
    """Returns the digest of the weights that a batch makes of those before."""
    return digest_of(_VERSION, before, batch)
