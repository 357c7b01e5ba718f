"""Joins the turns of a conversation into one sample, where the engine's tokens allow it.

The prompt of a turn continues the previous turn if it begins with exactly that turn's prompt and
response tokens. Chat templates do not guarantee this: some drop reasoning from earlier answers, and
text that is tokenized as a whole may be split differently. Nothing is tokenized again to make it
fit: turns that do not continue one another become separate samples. So do turns that were drawn
from different distributions, for example at another temperature: a sample is trained at one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from trinity.types import Alignment, Array, Experience, VersionSpan
from trinity.types import Sequence as TokenSequence
from trinity.workflows.experience_builder import distribution_of

Quoted = TypeVar("Quoted")
Answer = TypeVar("Answer")


def merge_turns(turns: Sequence[Experience]) -> list[Experience]:
    """Returns as few samples as possible, in the order of the turns, without rewards."""
    if not turns:
        return []
    breaks = [i for i, (old, new) in enumerate(pairwise(turns), 1) if not _continues(old, new)]
    edges = [0, *breaks, len(turns)]
    return [_merge(turns[start:end]) for start, end in pairwise(edges)]


def _continues(old: Experience, new: Experience) -> bool:
    before, prompt = old.sequence.tokens, new.sequence
    begins = len(before) <= prompt.prompt_length and np.array_equal(
        before, prompt.tokens[: len(before)]
    )
    alike = _array_kinds(old) == _array_kinds(new) and (
        distribution_of(old.sampling) == distribution_of(new.sampling)
    )
    return begins and alike and all(_is_along_response(turn) for turn in (old, new))


def _array_kinds(turn: Experience) -> dict[str, object]:
    """Returns dtype and element shape of the arrays; turns with equal ones can be joined."""
    return {name: (array.data.dtype, array.data.shape[1:]) for name, array in turn.arrays.items()}


def _is_along_response(turn: Experience) -> bool:
    return all(array.alignment is Alignment.RESPONSE for array in turn.arrays.values())


def _merge(turns: Sequence[Experience]) -> Experience:
    """Joins turns to one sample; text between responses, such as tool output, is masked out."""
    first, last = turns[0], turns[-1]
    start = first.sequence.prompt_length
    length = len(last.sequence.tokens) - start
    are_answers = all(turn.turns for turn in turns)
    offsets = [(turn.sequence.prompt_length - start, turn) for turn in turns]
    mask = np.zeros(length, dtype=np.bool_)
    logprobs = np.zeros(length, dtype=np.float32)
    for offset, turn in offsets:
        mask[offset : offset + turn.sequence.response_length] = turn.sequence.action_mask
        logprobs[offset : offset + turn.sequence.response_length] = turn.sequence.rollout_logprobs
    body = TokenSequence(
        tokens=last.sequence.tokens,
        prompt_length=start,
        action_mask=mask,
        rollout_logprobs=logprobs,
        prompt_text=first.prompt_text,
        response_text=last.prompt_text[len(first.prompt_text) :] + last.response_text,
        role_spans=last.sequence.role_spans,
    )
    merged = replace(
        first,
        body=body,
        reward=None,
        finish_reason=last.finish_reason,
        version_spans=tuple(spans_of_turns(offsets)),
        blobs=last.blobs,
        turns=tuple(turn for own in turns for turn in own.turns) if are_answers else (),
        arrays={name: _merge_array(name, offsets, length) for name in first.arrays},
        info={},
        metrics={},
    )
    merged.origin = merged.copied()
    return merged


def spans_of_turns(offsets: Iterable[tuple[int, Experience]]) -> Iterable[VersionSpan]:
    """Yields version spans: text before a response belongs to it, equal neighbours are merged."""
    last: VersionSpan | None = None
    for offset, turn in offsets:
        for span in turn.version_spans:
            start, end = (last.end if last else 0), offset + span.end
            if last and (last.version, last.incarnation) == (span.version, span.incarnation):
                start = last.start
            elif last:
                yield last
            last = replace(span, start=start, end=end)
    if last:
        yield last


def _merge_array(name: str, offsets: Sequence[tuple[int, Experience]], length: int) -> Array:
    """Concatenates an array of all turns along the sample, with 0 between responses."""
    kind = offsets[0][1].arrays[name].data
    data = np.zeros((length, *kind.shape[1:]), dtype=kind.dtype)
    for offset, turn in offsets:
        data[offset : offset + turn.sequence.response_length] = turn.arrays[name].data
    return Array(data, Alignment.RESPONSE)


def lcs_pairs(
    quoted: Sequence[Quoted], answers: Sequence[Answer], is_same: Callable[[Quoted, Answer], bool]
) -> list[tuple[int, int]]:
    """Returns the pairs of indices of a longest common subsequence of `quoted` and `answers`.

    A quotation may equal an answer, so that matching the first equal one could leave no room for
    earlier answers. Among equal answers the later ones are taken: after a retry, the last answer
    is the one that was kept.
    """
    row, column = len(quoted), len(answers)
    pairs: list[tuple[int, int]] = []
    while row and column and is_same(quoted[row - 1], answers[column - 1]):  # usually all match
        row, column = row - 1, column - 1
        pairs.append((row, column))
    same = [[is_same(said, answer) for answer in answers[:column]] for said in quoted[:row]]
    lengths = _lengths(same, column)
    while row and column:
        if same[row - 1][column - 1]:
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif lengths[row - 1][column] >= lengths[row][column - 1]:
            row -= 1
        else:
            column -= 1
    return pairs[::-1]


def _lengths(same: Sequence[Sequence[bool]], width: int) -> list[list[int]]:
    """Returns the lengths of the longest common subsequences of all prefixes."""
    lengths = [[0] * (width + 1)]
    for of_row in same:
        above, row = lengths[-1], [0]
        for index, is_found in enumerate(of_row):
            row.append(above[index] + 1 if is_found else max(above[index + 1], row[index]))
        lengths.append(row)
    return lengths
