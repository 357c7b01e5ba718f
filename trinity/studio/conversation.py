"""A run as one conversation: the messages of its turns, each once, with facts about each turn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

from trinity.run.output import pluralize
from trinity.studio.experiences import (
    IMAGE_MARK,
    NOT_RECORDED,
    POLICY,
    ExperienceRow,
    ShownMessage,
    TurnTokens,
    new_messages,
)
from trinity.studio.plain_text import joined, number_text, reward_text
from trinity.studio.tokens import read_tokenizer
from trinity.types import BlobRef

FOLD_LINES, FOLD_CHARS = 12, 1_200
"""Messages that are longer are folded, but for the policy's."""
FOLDED = ("system", "developer")
"""Roles whose messages are folded whatever their length: they are the same in each run."""
TOOL, PROMPT, RESPONSE = "tool", "prompt", "response"
PREVIEW_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationTurn:
    """One turn; texts are untrusted."""

    head: str
    note: str
    """Why its messages are not told apart; empty where they are."""
    messages: tuple[ShownMessage, ...]


def conversation_turns(
    turns: Sequence[ExperienceRow], model: Path | None
) -> tuple[ConversationTurn, ...]:
    """Returns the new messages of each turn; whole texts without roles or a tokenizer."""
    tokenizer = read_tokenizer(model) if model is not None else None
    found: list[ConversationTurn] = []
    before: TurnTokens | None = None
    known: tuple[BlobRef, ...] = ()
    for turn in turns:
        note = ""
        if turn.content is None:
            note = f"the roles of its messages were {NOT_RECORDED}"
        elif tokenizer is None:
            note = "the roles of its messages were recorded, but there is no tokenizer here"
        if turn.content is None or tokenizer is None:
            messages = tuple(_whole_texts(turn))
        else:
            decode = partial(tokenizer.decode, skip_special_tokens=False)
            messages = tuple(new_messages(before, turn.content, decode))
        messages = _with_images(messages, turn.images[_num_same(known, turn.images) :])
        found.append(ConversationTurn(head=_turn_head(turn), note=note, messages=messages))
        before, known = turn.content, turn.images
    return tuple(found)


def conversation_line(turns: Sequence[ConversationTurn]) -> str:
    """Says how long a conversation is."""
    num_calls = sum(message.role == TOOL for turn in turns for message in turn.messages)
    return joined(
        [
            pluralize(len(turns), "turn"),
            "1 answer of a tool" if num_calls == 1 else "",
            f"{num_calls:,} answers of tools" if num_calls > 1 else "",
        ]
    )


def is_folded(message: ShownMessage) -> bool:
    """Returns true if only the beginning of a message is shown until it is opened."""
    if message.role in FOLDED:
        return True
    is_long = len(message.text) > FOLD_CHARS or message.text.count("\n") >= FOLD_LINES
    return is_long and message.role not in (POLICY, RESPONSE)


def _turn_head(turn: ExperienceRow) -> str:
    return joined(
        [
            f"turn {turn.turn}",
            f"weights {turn.versions}",
            f"reward {reward_text(turn.reward, turn.shaped_reward) or NOT_RECORDED}",
            f"advantage {number_text(turn.advantage, is_signed=True) or NOT_RECORDED}",
            f"{turn.response_length:,} tokens",
        ]
    )


def _num_same(before: Sequence[BlobRef], now: Sequence[BlobRef]) -> int:
    pairs = zip(before, now, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _with_images(
    messages: Sequence[ShownMessage], images: Sequence[BlobRef]
) -> tuple[ShownMessage, ...]:
    """Gives each message the images of its marks, and the first one those without a mark."""
    left = iter(images)
    placed = [tuple(islice(left, message.text.count(IMAGE_MARK))) for message in messages]
    if placed:
        placed[0] += tuple(left)
    return tuple(
        replace(message, images=own) for message, own in zip(messages, placed, strict=True)
    )


def _whole_texts(turn: ExperienceRow) -> Iterator[ShownMessage]:
    num_prompt = turn.num_tokens - turn.response_length
    yield ShownMessage(PROMPT, num_prompt, turn.prompt or NOT_RECORDED)
    yield ShownMessage(RESPONSE, turn.response_length, turn.response or NOT_RECORDED)
