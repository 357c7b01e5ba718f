"""The codec's checks on protobuf messages, for services that do not decode the samples."""

from collections.abc import Iterable

import numpy as np

from trinity.api.v1 import experience_pb2
from trinity.data.codec import (
    ALIGNMENT_NAMES,
    check_reward,
    check_spans,
    experience_from_proto,
    finish_reason_of,
    sequence_from_proto,
)
from trinity.runtime.origin import SpanNumbers, chain_turns, turn_contents
from trinity.types import Experience, Pair, VersionSpan
from trinity.types import Sequence as TokenSequence

Tensor = experience_pb2.Tensor
LENGTH_DELIMITED = 2
"""The wire type of embedded messages."""


def check_experience_message(message: experience_pb2.Experience) -> tuple[int, int]:
    """Returns the number of all tokens and of response tokens, without making arrays.

    For a pair, both sides count together.

    Raises: ValueError when `experience_from_proto` would.
    """
    finish_reason_of(message)
    kind = message.WhichOneof("body")
    if kind != "sequence" or message.arrays or message.info.fields:
        return _lengths(experience_from_proto(message))
    length, response_length = check_sequence_message(message.sequence)
    if message.HasField("reward"):
        check_reward(message.reward)
    if "\x00" in message.eid.suffix:
        raise ValueError("the suffix of the EID holds a null character")
    if message.version_spans:
        check_spans(message.version_spans, response_length)
    return length, response_length


def _lengths(experience: Experience) -> tuple[int, int]:
    body = experience.body
    sides = (body.chosen, body.rejected) if isinstance(body, Pair) else (body,)
    return sum(len(side.tokens) for side in sides), sum(side.response_length for side in sides)


def check_sequence_message(message: experience_pb2.Sequence) -> tuple[int, int]:
    """Returns the number of all tokens and of response tokens of a valid message.

    The common case, thousands of times a second, makes no array.

    Raises: ValueError when the arrays' lengths do not fit together.
    """
    lengths = _plain_lengths(message)
    if lengths is None:
        sequence = sequence_from_proto(message)
        return len(sequence.tokens), sequence.response_length
    return lengths


def checked_turn_digests(message: experience_pb2.Experience) -> list[bytes]:
    """Returns the digests of a valid sample's turns; see `turn_digests`.

    Raises: ValueError when its turns are not the engine's answers that it says.
    """
    if not message.turns:
        return turn_digests(message)
    if not message.HasField("sequence"):
        raise ValueError("turns are parts of one sequence, and the experience is a pair")
    sequence = sequence_from_proto(message.sequence)
    outside_R = sequence.action_mask.copy()
    begin = last = sequence.prompt_length
    for turn in message.turns:
        if not last <= turn.prompt_length <= turn.end <= len(sequence.tokens):
            raise ValueError("turns overlap, or do not lie in the response")
        outside_R[turn.prompt_length - begin : turn.end - begin] = False
        last = turn.end
    if outside_R.any():
        raise ValueError("the action mask is true for tokens of no turn")
    contents = _contents(message, sequence)
    if contents != [turn.content_sha256 for turn in message.turns]:
        raise ValueError("a turn has other tokens, log-probabilities or versions than the answer")
    return chain_turns(contents)


def turn_digests(message: experience_pb2.Experience) -> list[bytes]:
    """Returns the chained digests of a sample's turns, by its tokens; else those of its sequences.

    Raises: ValueError when the arrays of the sample are not valid.
    """
    if message.turns:
        return chain_turns(_contents(message, sequence_from_proto(message.sequence)))
    is_pair = message.HasField("pair")
    sides = (message.pair.chosen, message.pair.rejected) if is_pair else (message.sequence,)
    contents = []
    for side in map(sequence_from_proto, sides):
        place, spans = (side.prompt_length, len(side.tokens)), span_numbers(message.version_spans)
        contents += turn_contents(
            side.tokens, side.prompt_length, side.rollout_logprobs, spans, [place]
        )
    return chain_turns(contents, are_answers=False)


def _contents(message: experience_pb2.Experience, sequence: TokenSequence) -> list[bytes]:
    places = [(turn.prompt_length, turn.end) for turn in message.turns]
    return turn_contents(
        sequence.tokens,
        sequence.prompt_length,
        sequence.rollout_logprobs,
        span_numbers(message.version_spans),
        places,
    )


def span_numbers(
    spans: Iterable[VersionSpan | experience_pb2.VersionSpan],
) -> list[SpanNumbers]:
    """Returns version spans as digests of origin take them."""
    return [SpanNumbers(own.start, own.end, own.version, own.incarnation) for own in spans]


def _plain_lengths(message: experience_pb2.Sequence) -> tuple[int, int] | None:
    """Returns the lengths of a surely valid message; `sequence_from_proto` checks others."""
    length = _plain_length(message.tokens, Tensor.DTYPE_INT32, 4)
    if length is None or not 1 <= message.prompt_length <= length:
        return None
    response_length = length - message.prompt_length
    mask, logprobs = message.action_mask, message.rollout_logprobs
    is_plain = (
        _plain_length(mask, Tensor.DTYPE_BOOL, 1) == response_length
        and not mask.data.translate(None, b"\0\1")
        and _plain_length(logprobs, Tensor.DTYPE_FLOAT32, 4) == response_length
        and np.isfinite(np.frombuffer(logprobs.data, "<f4")).all()
    )
    return (length, response_length) if is_plain else None


def _plain_length(
    tensor: experience_pb2.Tensor, dtype: experience_pb2.Tensor.Dtype, item_size: int
) -> int | None:
    shape = tensor.shape
    if tensor.dtype != dtype or len(shape) != 1 or tensor.alignment not in ALIGNMENT_NAMES:
        return None
    length = shape[0]
    return length if length * item_size == len(tensor.data) else None


def encode_repeated_field(field_number: int, parts: Iterable[bytes]) -> bytes:
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
