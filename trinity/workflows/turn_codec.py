"""Turns as they travel: the part that each adds to its parent, compressed."""

import json
import zlib
from dataclasses import replace

import numpy as np

from trinity.api.v1.experience_pb2 import SessionTurn, TurnPayload
from trinity.data.codec import experience_from_proto, set_content
from trinity.types import IntArray, RoleSpan, Sequence
from trinity.workflows.answers import TurnNode

LEVEL = 1
"""Texts stand twice in a payload, as messages and as the prompt: the fastest level finds that."""
MAX_PAYLOAD_BYTES = 64 << 20
EMPTY = Sequence(
    tokens=np.zeros(0, np.int32),
    prompt_length=0,
    action_mask=np.zeros(0, np.bool_),
    rollout_logprobs=np.zeros(0, np.float32),
)


def encode_payload(turn: TurnNode) -> bytes:
    """Returns what follows the parent's tokens, text, spans and messages."""
    own, before = turn.answer.sequence, _before(turn.parent)
    # A sequence has a token of prompt at least.
    num_tokens = min(_num_shared(own.tokens, before.tokens), own.prompt_length - 1)
    text = before.prompt_text + before.response_text
    num_characters = _num_shared_characters(own.prompt_text, text)
    num_spans = 0
    for span, other in zip(own.role_spans, before.role_spans, strict=False):
        if span != other:
            break
        num_spans += 1
    message = TurnPayload(
        num_shared_tokens=num_tokens,
        num_shared_characters=num_characters,
        num_shared_spans=num_spans,
        messages_json=json.dumps(list(turn.messages)),
        messages_sha256=turn.messages_sha256,
        told_json="" if turn.told is None else json.dumps(turn.told),
    )
    for span in own.role_spans[num_spans:]:
        message.role_spans.add(role=span.role, start=span.start, end=span.end)
    rest = replace(
        own,
        tokens=own.tokens[num_tokens:],
        prompt_length=own.prompt_length - num_tokens,
        prompt_text=own.prompt_text[num_characters:],
        role_spans=(),
    )
    set_content(message.answer, replace(turn.answer, body=rest))
    return zlib.compress(message.SerializeToString(), LEVEL)


def decode_turn(message: SessionTurn, parent: TurnNode | None) -> TurnNode:
    """Returns the turn that was encoded after this parent.

    Raises: ValueError when the payload is none.
    """
    payload = TurnPayload.FromString(_decompressed(message.payload))
    answer, before = experience_from_proto(payload.answer), _before(parent)
    rest, num_tokens = answer.sequence, payload.num_shared_tokens
    text = before.prompt_text + before.response_text
    given = tuple(RoleSpan(role=s.role, start=s.start, end=s.end) for s in payload.role_spans)
    answer.body = replace(
        rest,
        tokens=np.concatenate([before.tokens[:num_tokens], rest.tokens]),
        prompt_length=num_tokens + rest.prompt_length,
        prompt_text=text[: payload.num_shared_characters] + rest.prompt_text,
        role_spans=before.role_spans[: payload.num_shared_spans] + given,
    )
    return TurnNode(
        id=message.id,
        parent=parent,
        prompt_sha256=message.prompt_sha256,
        ordinal=message.ordinal,
        answer=answer,
        messages=json.loads(payload.messages_json),
        messages_sha256=payload.messages_sha256,
        told=json.loads(payload.told_json) if payload.told_json else None,
    )


def _before(parent: TurnNode | None) -> Sequence:
    return EMPTY if parent is None else parent.answer.sequence


def _decompressed(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(body, MAX_PAYLOAD_BYTES)
    except zlib.error as error:
        raise ValueError(f"the payload of a turn is damaged: {error}") from error
    if unpacking.unconsumed_tail:
        raise ValueError(f"the payload of a turn has more than {MAX_PAYLOAD_BYTES} bytes")
    return content


def _num_shared(tokens: IntArray, others: IntArray) -> int:
    length = min(len(tokens), len(others))
    different = np.flatnonzero(tokens[:length] != others[:length])
    return int(different[0]) if len(different) else length


def _num_shared_characters(text: str, other: str) -> int:
    """Compares halves, as slices are compared a hundred times faster than characters."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
