"""Finds the model's answers among the messages of a transcript, by the prompt of each call.

matched = match_answers(messages, answers, model.was_asked)
samples = merge_turns(matched.turns)

A message is the answer to a call if the call's prompt is exactly the messages before it, and if it
has the same content. Re-added stop strings, stripped reasoning, parsed tool calls and a given
beginning of the answer are recognised. If the messages before it were edited since, answers are
matched by text alone, except those to a prompt that the transcript still has: they belong to
another message.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trinity.types import Experience
from trinity.workflows.messages import (
    as_mapping,
    content_of,
    names_of_calls,
    role_of,
    values_of_calls,
)
from trinity.workflows.turns import lcs_pairs

_END_MARK = re.compile(r"(?:<\|\w+\|>|</s>|<end_of_turn>)\s*$")
"""End token that a tokenizer may write after an answer."""
_SIMPLE = re.compile(r"[\w ]+")
_MARKS = re.compile(
    r"(?:\s|<[^<>]*>|\[/?[A-Z_]+\]|assistant|final|(?:here is my )?response:?)*", re.IGNORECASE
)
"""Marks between thoughts and answer that models write and parsers leave out."""
WasAsked = Callable[[Sequence[Any], Experience], bool]
"""Returns true if an answer is the answer to exactly these messages."""
ASSISTANT = "assistant"
END_OF_THOUGHTS = "</think>"
THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class MatchedAnswers:
    """The answers that are messages, in the order of the transcript, and the unused answers."""

    turns: list[Experience]
    unused: list[Experience]


def match_answers(
    messages: Sequence[Any],
    answers: Sequence[Experience],
    was_asked: WasAsked,
    *,
    by_text: bool = True,
) -> MatchedAnswers:
    """Matches messages with answers, each at most once.

    Of several equal answers to one prompt the last is taken: after a retry, that one was kept.
    Without `by_text` a message whose call is not found has no answer.
    """
    messages = [as_mapping(message) for message in messages]
    places = [i for i, message in enumerate(messages) if role_of(message) == ASSISTANT]
    found = _by_call(messages, places, answers, was_asked)
    if by_text:
        found |= _of_changed(messages, places, answers, was_asked, found)
    used = set(found.values())
    return MatchedAnswers(
        turns=[answers[found[place]] for place in places if place in found],
        unused=[answer for number, answer in enumerate(answers) if number not in used],
    )


def _by_call(
    messages: Sequence[Any],
    places: Sequence[int],
    answers: Sequence[Experience],
    was_asked: WasAsked,
) -> dict[int, int]:
    """Returns the numbers of answers by the places of the messages that they are."""
    found: dict[int, int] = {}
    for place in places:
        left = set(range(len(answers))) - set(found.values())
        for number in sorted(left, reverse=True):
            if _is_answer_at(messages, place, answers[number], was_asked):
                found[place] = number
                break
    return found


def _is_answer_at(
    messages: Sequence[Any], place: int, answer: Experience, was_asked: WasAsked
) -> bool:
    message = messages[place]
    if says_answer(message, answer):
        return was_asked(messages[:place], answer)
    begin = _continued(message, answer)
    return bool(begin) and was_asked([*messages[:place], {**message, "content": begin}], answer)


def _continued(message: Any, answer: Experience) -> str:
    """Returns the begin of a message that goes on with the answer; empty if it does not."""
    said, answered = content_of(message).rstrip(), answer.response_text.rstrip()
    return said.removesuffix(answered) if answered and said.endswith(answered) else ""


def _of_changed(
    messages: Sequence[Any],
    places: Sequence[int],
    answers: Sequence[Experience],
    was_asked: WasAsked,
    found: dict[int, int],
) -> dict[int, int]:
    """Returns the answers after edited messages, matched by their text.

    Answers to the messages before another place are excluded: their own message was edited or tried
    again, and the equal text is a quotation, such as an example in the prompt.
    """
    more = _by_text(messages, places, answers, found)
    return {
        place: number
        for place, number in more.items()
        if not any(was_asked(messages[:other], answers[number]) for other in places)
    }


def _by_text(
    messages: Sequence[Any],
    places: Sequence[int],
    answers: Sequence[Experience],
    found: dict[int, int],
) -> dict[int, int]:
    """Matches what lies between messages that are matched already, in the order of both."""
    edges = [-1, *(place for place in places if place in found), len(messages)]
    more: dict[int, int] = {}
    for before, after in pairwise(edges):
        first, end = found.get(before, -1) + 1, found.get(after, len(answers))
        own_places = [place for place in places if before < place < after]
        own = [number for number in range(first, end) if number not in found.values()]
        spoken = [messages[place] for place in own_places]
        pairs = lcs_pairs(spoken, [answers[number] for number in own], says_answer)
        more |= {own_places[row]: own[column] for row, column in pairs}
    return more


def says_answer(message: Any, answer: Experience) -> bool:
    """Returns true if the message is the model's answer, as it is or as a parser changed it."""
    said, answered = content_of(message).strip(), answer.response_text.strip()
    if said == answered:
        return True
    if calls := names_of_calls(message):
        names_are_told = all(name and name in answered for name in calls)
        return said in answered and names_are_told and _tells_arguments(message, answered)
    if (bare := _END_MARK.sub("", said).strip()) != said and bare == answered:
        return True
    stops = answer.sampling.stop if answer.sampling is not None else ()
    if any(said == (answered + stop).strip() for stop in stops):
        return True
    return _without_thoughts(message, said, answered)


def _without_thoughts(message: Any, said: str, answered: str) -> bool:
    """Returns true for an answer whose thoughts stand apart or were dropped."""
    thoughts = next((str(message[key]).strip() for key in THOUGHTS if message.get(key)), "")
    if thoughts:
        _, is_told, between = answered.removesuffix(said).partition(thoughts)
        return answered.endswith(said) and bool(is_told and _MARKS.fullmatch(between))
    before, mark, rest = answered.rpartition(END_OF_THOUGHTS)
    return bool(mark and before) and rest.strip() == said


def _tells_arguments(message: Any, answered: str) -> bool:
    """Returns true if the answer holds all simple values that the calls of a message pass.

    A parser may write others differently, such as a number or an escaped text.
    """
    values = [value for value in values_of_calls(message) if _SIMPLE.fullmatch(value)]
    return all(value in answered or _escaped(value) in answered for value in values)


def _escaped(value: str) -> str:
    """Returns a text as JSON writes it where all characters are ASCII."""
    return json.dumps(value)[1:-1]
