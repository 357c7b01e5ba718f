"""Digests of origin are what their definition says, and any other record has others."""

from itertools import pairwise

import numpy as np

from tests.support import origin_by_hand as by_hand
from tests.unit.subtests import as_subtests
from trinity.runtime.origin import (
    NOTHING_BEFORE,
    SpanNumbers,
    answered_turn,
    batch_digest,
    chain_turns,
    data_row_digest,
    turn_contents,
    version_digest,
)

TOKENS = np.array([5, 6, 7, 8, 9, 10, 11], np.int32)
LOGPROBS = np.array([-0.25, -1.5, 0.0, -0.125, -3.0], np.float32)


def span(start: int, end: int, version: int = 3, incarnation: int = 1) -> SpanNumbers:
    return SpanNumbers(start, end, version, incarnation)


def test_an_answer_is_its_prompt_its_tokens_and_who_made_them() -> None:
    turn = answered_turn(TOKENS, 2, LOGPROBS, [span(0, 5)])
    expected = by_hand.content([5, 6], [7, 8, 9, 10, 11], LOGPROBS.tolist(), [(0, 5, 3, 1)])
    assert (turn.prompt_length, turn.end, turn.content_sha256) == (2, 7, expected)
    assert chain_turns([expected]) == [by_hand.turn(by_hand.ZEROS, expected)]
    others = [by_hand.turn(by_hand.ZEROS, expected, b"trinity sample 1")]
    assert chain_turns([expected], are_answers=False) == others


def test_turns_of_a_sample_are_those_that_each_call_had_alone() -> None:
    """Tokens 9 and 10 came between two answers; the spans of a sample cover them, too."""
    spans = [span(0, 2, 3), span(2, 5, 4)]
    contents = turn_contents(TOKENS, 2, LOGPROBS, spans, [(2, 4), (6, 7)])
    first = by_hand.content([5, 6], [7, 8], [-0.25, -1.5], [(0, 2, 3, 1)])
    second = by_hand.content([5, 6, 7, 8, 9, 10], [11], [-3.0], [(0, 1, 4, 1)])
    assert contents == [first, second]
    end = by_hand.turn(by_hand.turn(by_hand.ZEROS, first), second)
    assert chain_turns(contents)[-1] == end
    assert chain_turns([second], chain_turns([first])[0]) == [end]


def test_neighbours_of_the_same_weights_are_one_span_and_empty_ones_none() -> None:
    split = [span(0, 2), span(2, 2, 9), span(2, 5)]
    whole = answered_turn(TOKENS, 2, LOGPROBS, [span(0, 5)])
    assert answered_turn(TOKENS, 2, LOGPROBS, split) == whole
    empty = answered_turn(TOKENS, 7, LOGPROBS[:0], [span(0, 0)])
    assert empty.content_sha256 == by_hand.content(TOKENS.tolist(), [], [], [])


@as_subtests(
    ("tokens", "prompt_length", "logprobs", "own"),
    [
        ([4, 6, 7, 8, 9, 10, 11], 2, LOGPROBS.tolist(), span(0, 5)),
        ([5, 6, 7, 8, 9, 10, 12], 2, LOGPROBS.tolist(), span(0, 5)),
        (TOKENS.tolist(), 3, LOGPROBS[1:].tolist(), span(0, 4)),
        (TOKENS.tolist(), 2, [*LOGPROBS[:-1].tolist(), -3.0000002], span(0, 5)),
        (TOKENS.tolist(), 2, LOGPROBS.tolist(), span(0, 5, 4)),
        (TOKENS.tolist(), 2, LOGPROBS.tolist(), span(0, 5, 3, 2)),
        (TOKENS.tolist(), 2, LOGPROBS.tolist(), span(0, 4)),
    ],
)
def test_every_part_counts(
    tokens: list[int], prompt_length: int, logprobs: list[float], own: SpanNumbers
) -> None:
    right = answered_turn(TOKENS, 2, LOGPROBS, [span(0, 5)])
    arrays = np.array(tokens, np.int32), np.array(logprobs, np.float32)
    made = answered_turn(arrays[0], prompt_length, arrays[1], [own])
    assert made.content_sha256 != right.content_sha256


def test_batches_and_versions_are_chained() -> None:
    rows = [bytes([number]) * 32 for number in range(3)]
    assert batch_digest(rows) == by_hand.batch(rows) != batch_digest(rows[::-1])
    first = version_digest(NOTHING_BEFORE, batch_digest(rows))
    assert first == by_hand.version(by_hand.ZEROS, by_hand.batch(rows))
    chain = [first, *(version_digest(first, batch_digest([row])) for row in rows)]
    assert all(old != new for old, new in pairwise(chain))
    assert data_row_digest("ü") == by_hand.sha256_of(b"\xc3\xbc")
