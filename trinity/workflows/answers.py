"""Finds the model's answers among the messages of a transcript, by the prompt of each call.

matched = match_answers(messages, answers, model.was_asked)
samples = merge_turns(matched.turns)

A message is the answer to a call if the call's prompt is exactly the messages before it, and if it
has the same content. Re-added stop strings, stripped reasoning, parsed tool calls and a given
beginning of the answer are recognised. If the messages before it were edited since, answers are
matched by text alone, except those to a prompt that the transcript still has: they belong to
another message.

Calls over the address of a run make a tree: each answer is a turn, which goes on from another.

    tree = TurnTree()
    parent, num_messages = tree.parent_of_chat(messages)   # the turn whose answer the chat goes on
    tree.add(turn)
    closed = close_session(turns)                          # the samples of a session

A chat goes on from the turn whose messages and answer it begins with. Messages are compared without
thoughts and without the ids of calls, which clients drop or rename. Turns with the same parent and
prompt are told apart by their ordinal. All of this follows from the requests, not from the clock.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from trinity.data.images import images_of, with_hashes
from trinity.types import Experience, JsonValue, SamplingParams
from trinity.workflows.messages import (
    Message,
    as_mapping,
    content_of,
    names_of_calls,
    role_of,
    values_of_calls,
)
from trinity.workflows.turns import lcs_pairs, merge_turns

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
ROOT = b""
"""The place before all turns."""
QUOTED_CHARACTERS = 20
"""A shorter line of an answer may be in another prompt by chance."""


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
    messages = with_hashes([as_mapping(message) for message in messages])
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TurnNode:
    """One answer of the model, with its request."""

    id: str
    parent: "TurnNode | None"
    prompt_sha256: bytes
    """Digest of the prompt's tokens and the sampling."""
    ordinal: int
    """Counts the turns with the same parent and prompt, from 0."""
    answer: Experience
    messages: Sequence[Message] = ()
    """The messages after the parent's answer; none if the prompt was not a chat."""
    messages_sha256: bytes = ROOT
    """Digest of all messages of the prompt."""
    told: JsonValue = None
    """The message that the client got, with its finish reason."""
    call: str = ""
    """Id of the first answer to the same call."""
    place: bytes = field(init=False)
    """Digest of the way from the root: the same in every experiment with the same prompts."""

    def __post_init__(self) -> None:
        place = place_of(place_in(self.parent), self.prompt_sha256, self.ordinal)
        object.__setattr__(self, "place", place)


def place_in(turn: TurnNode | None) -> bytes:
    """Returns the place of a turn, or that before all turns."""
    return ROOT if turn is None else turn.place


def place_of(parent: bytes, prompt_sha256: bytes, ordinal: int) -> bytes:
    """Returns the digest of a place after that of the parent."""
    return hashlib.sha256(parent + prompt_sha256 + ordinal.to_bytes(4, "big")).digest()


def prompt_digest(token_ids: Sequence[int], sampling: SamplingParams) -> bytes:
    """Returns the digest of a prompt and of the sampling, apart from the seed."""
    told = json.dumps(asdict(replace(sampling, seed=0)), sort_keys=True).encode()
    return hashlib.sha256(np.array(token_ids, dtype="<i4").tobytes() + told).digest()


def message_digests(messages: Sequence[Message]) -> list[bytes]:
    """Returns the digests of no message, of the first one, of the first two, and so on."""
    digests = [ROOT]
    for message in messages:
        digests.append(hashlib.sha256(digests[-1] + _normalised(message)).digest())
    return digests


def _normalised(message: Message) -> bytes:
    calls = message.get("tool_calls")
    listed = calls if isinstance(calls, list) else []
    functions = [call.get("function") for call in listed if isinstance(call, dict)]
    told = [
        [function.get("name"), function.get("arguments")]
        for function in functions
        if isinstance(function, dict)
    ]
    plain: list[object] = [message["role"], content_of(message).strip(), told]
    if images := images_of([message]):
        plain.append([image.sha256.hex() for image in images])
    return json.dumps(plain, sort_keys=True).encode()


@dataclass(slots=True)
class TurnTree:
    """The turns of one session that are stored."""

    turns: dict[str, TurnNode] = field(default_factory=dict)
    """By id; parents precede their children."""
    _asked: defaultdict[bytes, list[TurnNode]] = field(default_factory=lambda: defaultdict(list))
    """Turns by their messages."""

    def add(self, turn: TurnNode) -> None:
        """Adds a turn whose parent is in the tree."""
        self.turns[turn.id] = turn
        if turn.messages_sha256:
            self._asked[turn.messages_sha256].append(turn)

    def parent_of_chat(self, messages: Sequence[Message]) -> tuple[TurnNode | None, int]:
        """Returns the turn that a chat goes on from, and the number of messages up to its answer.

        Of several equal answers to the same prompt it is the first by its place.
        """
        digests = message_digests(messages)
        for index in range(len(messages) - 1, 0, -1):
            if messages[index]["role"] != ASSISTANT:
                continue
            asked = self._asked.get(digests[index], [])
            found = [turn for turn in asked if says_answer(messages[index], turn.answer)]
            if found:
                return min(found, key=_order), index + 1
        return None, 0

    def parent_of_tokens(self, token_ids: Sequence[int]) -> TurnNode | None:
        """Returns the turn with the most tokens that a prompt begins with."""
        tokens_P = np.array(token_ids, dtype=np.int32)
        found = [turn for turn in self.turns.values() if _begins(tokens_P, turn)]
        longest = max((len(turn.answer.sequence.tokens) for turn in found), default=0)
        same = [turn for turn in found if len(turn.answer.sequence.tokens) == longest]
        return min(same, key=_order, default=None)


def _order(turn: TurnNode) -> tuple[bytes, bytes, int]:
    return place_in(turn.parent), turn.prompt_sha256, turn.ordinal


def _begins(tokens_P: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]", turn: TurnNode) -> bool:
    tokens_L = turn.answer.sequence.tokens
    return len(tokens_L) <= len(tokens_P) and np.array_equal(tokens_L, tokens_P[: len(tokens_L)])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedSession:
    """The samples of a session, without rewards."""

    samples: list[Experience]
    num_calls: int
    num_pruned: int
    """Housekeeping calls, which are in no sample."""
    last: Experience
    """The answer to the last call that is not pruned."""

    @property
    def counts(self) -> dict[str, float]:
        """The numbers of calls as metrics."""
        return {
            "agent_calls": float(self.num_calls),
            "agent_pruned_calls": float(self.num_pruned),
        }


def close_session(turns: Sequence[TurnNode]) -> ClosedSession:
    """Returns the samples of turns, which are given in the order of their calls.

    The tree is walked along paths from its roots to its leaves, in the order of prompts and
    ordinals. Each turn is trained in the first path that holds it; the further ones begin behind
    it, with all before as their prompt. Turns that continue one another are merged.
    """
    pruned = housekeeping_turns(turns)
    kept = [turn for turn in turns if turn.id not in pruned]
    samples = [
        sample for path in _paths(kept) for sample in merge_turns([turn.answer for turn in path])
    ]
    return ClosedSession(
        samples=samples, num_calls=len(turns), num_pruned=len(pruned), last=kept[-1].answer
    )


def _paths(turns: Sequence[TurnNode]) -> Iterator[list[TurnNode]]:
    """Yields each turn once: a path goes on with the first child, others begin with the rest."""
    known = {turn.id for turn in turns}
    children = defaultdict[str, list[TurnNode]](list)
    for turn in sorted(turns, key=_order, reverse=True):
        is_root = turn.parent is None or turn.parent.id not in known
        children["" if is_root or turn.parent is None else turn.parent.id].append(turn)
    waiting = children[""]
    while waiting:
        path = [waiting.pop()]
        while following := children.get(path[-1].id):
            waiting += following[:-1]
            path.append(following[-1])
        yield path


def housekeeping_turns(turns: Sequence[TurnNode]) -> set[str]:
    """Returns the ids of calls that agents make for themselves, such as for a title.

    Each is a chat of a single call without tools, next to a longer chat that offers tools, and no
    other prompt has its answer.
    """
    trees = defaultdict[str, list[TurnNode]](list)
    for turn in turns:
        trees[_root_of(turn).id].append(turn)
    chats = list(trees.values())
    if not any(len(chat) > 1 and chat[0].answer.tools_sha256 for chat in chats):
        return set()
    alone = [chat[0] for chat in chats if len(chat) == 1 and not chat[0].answer.tools_sha256]
    return {turn.id for turn in alone if not _is_quoted(turn, turns)}


def _root_of(turn: TurnNode) -> TurnNode:
    while turn.parent is not None:
        turn = turn.parent
    return turn


def _is_quoted(turn: TurnNode, turns: Sequence[TurnNode]) -> bool:
    text = turn.answer.response_text.strip()
    lines = [line.strip() for line in text.splitlines()]
    told = [text, *(line for line in lines if len(line) >= QUOTED_CHARACTERS)]
    others = [other.answer.prompt_text for other in turns if other is not turn]
    return any(part and part in prompt for part in told for prompt in others)
