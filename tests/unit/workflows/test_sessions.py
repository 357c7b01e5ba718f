"""Which turn a prompt goes on from, and what becomes of the tree."""

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pytest

from trinity.types import Experience, SamplingParams, Sequence
from trinity.workflows.answers import (
    TurnNode,
    TurnTree,
    close_session,
    message_digests,
    prompt_digest,
)
from trinity.workflows.messages import Message

USER = Message(role="user", content="a")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"b": 1, "a": 2}}}


def turn(
    text: str, *messages: Message, parent: TurnNode | None = None, ordinal: int = 0, begin: int = 0
) -> TurnNode:
    tokens = np.arange(begin, begin + 6, dtype=np.int32)
    body = Sequence(
        tokens=tokens,
        prompt_length=4,
        action_mask=np.ones(2, dtype=np.bool_),
        rollout_logprobs=np.zeros(2, dtype=np.float32),
        response_text=text,
    )
    return TurnNode(
        id=f"{text}{ordinal}",
        parent=parent,
        prompt_sha256=prompt_digest(tokens[:4].tolist(), SamplingParams()),
        ordinal=ordinal,
        answer=Experience(body=body),
        messages=messages,
        messages_sha256=message_digests(messages)[-1],
    )


def tree_of(*turns: TurnNode) -> TurnTree:
    tree = TurnTree()
    for own in turns:
        tree.add(own)
    return tree


def said(text: str, **more: object) -> Message:
    return cast(Message, {"role": "assistant", "content": text, **more})


def test_the_longest_beginning_of_a_chat_decides() -> None:
    first = turn("one", USER)
    second = turn("two", USER, said("one"), USER, parent=first)
    tree = tree_of(first, second)
    chat = [USER, said("one"), USER, said("two"), USER]
    assert tree.parent_of_chat(chat) == (second, 4)
    assert tree.parent_of_chat(chat[:3]) == (first, 2)
    assert tree.parent_of_chat([USER]) == (None, 0)
    assert tree.parent_of_chat([Message(role="user", content="b"), *chat[1:]]) == (None, 0)


def test_an_answer_is_known_without_thoughts_ids_and_spaces() -> None:
    called = said("", tool_calls=[{**CALL, "id": "one"}])
    renamed = said(" ", tool_calls=[{**CALL, "id": "two"}], reasoning_content="hm")
    assert message_digests([called]) == message_digests([renamed])
    other = said("", tool_calls=[{"function": {"name": "add", "arguments": {"a": 1}}}])
    assert message_digests([called]) != message_digests([other])


def test_of_equal_answers_the_first_by_its_place_is_gone_on_from() -> None:
    later, first = turn("one", USER, ordinal=1), turn("one", USER)
    parent, _ = tree_of(later, first).parent_of_chat([USER, said("one"), USER])
    assert parent is first


def test_tokens_go_on_from_the_longest_turn_that_they_begin_with() -> None:
    short, other = turn("one"), turn("two", begin=1)
    assert tree_of(short, other).parent_of_tokens(range(8)) is short
    assert tree_of(short, other).parent_of_tokens(range(5)) is None


def test_a_prompt_is_told_apart_by_tokens_and_sampling_and_not_by_the_seed() -> None:
    plain = prompt_digest([1, 2], SamplingParams())
    assert plain == prompt_digest([1, 2], SamplingParams(seed=5))
    assert plain != prompt_digest([1, 2], SamplingParams(temperature=0.5))
    assert plain != prompt_digest([1, 3], SamplingParams())


@dataclass
class Talk:
    """A session as it grows; each turn's response is two tokens that no other turn has."""

    turns: list[TurnNode] = field(default_factory=list)

    def say(
        self,
        *new: int,
        after: TurnNode | None = None,
        forgets: bool = False,
        ordinal: int = 0,
        text: str = "",
        quotes: str = "",
        tools: bool = True,
    ) -> TurnNode:
        """One call; a template that `forgets` does not repeat what is before the prompt."""
        before = [] if after is None or forgets else after.answer.sequence.tokens.tolist()
        number = 1000 + 2 * len(self.turns)
        prompt = [*before, *(new or (1,))]
        body = Sequence(
            tokens=np.array([*prompt, number, number + 1], dtype=np.int32),
            prompt_length=len(prompt),
            action_mask=np.ones(2, dtype=np.bool_),
            rollout_logprobs=np.full(2, -float(number), dtype=np.float32),
            prompt_text=quotes,
            response_text=text,
        )
        answer = Experience(body=body, tools_sha256=b"t" * 32 if tools else b"")
        made = TurnNode(
            id=f"turn {len(self.turns)}",
            parent=after,
            prompt_sha256=prompt_digest(prompt, SamplingParams()),
            ordinal=ordinal,
            answer=answer,
        )
        self.turns.append(made)
        return made


def trained_of(samples: SequenceOf[Experience]) -> list[tuple[int, ...]]:
    """Each trained token, after all tokens before it."""
    found = []
    for sample in samples:
        body = sample.sequence
        for place in np.flatnonzero(body.action_mask) + body.prompt_length:
            found.append(tuple(body.tokens[: place + 1].tolist()))
    return found


def sampled_of(turns: SequenceOf[TurnNode]) -> list[tuple[int, ...]]:
    return trained_of([turn.answer for turn in turns])


def test_turns_that_go_on_are_one_sample_and_a_fork_is_another_one_behind_it() -> None:
    talk = Talk()
    root = talk.say(1)
    talk.say(2, after=talk.say(3, after=root))
    talk.say(4, after=root)
    closed = close_session(talk.turns)
    assert sorted(len(trained_of([sample])) for sample in closed.samples) == [2, 6]
    assert sorted(trained_of(closed.samples)) == sorted(sampled_of(talk.turns))
    assert closed.num_pruned == 0 and closed.last is talk.turns[-1].answer


def test_samples_do_not_depend_on_the_order_of_the_calls() -> None:
    talk = Talk()
    for number in range(5):
        child = talk.say(2, after=talk.say(number), ordinal=0)
        talk.say(2, after=child.parent, ordinal=1)
    first = [sample.sequence.tokens.tolist() for sample in close_session(talk.turns).samples]
    shuffled = random.Random(3).sample(talk.turns, len(talk.turns))
    again = [sample.sequence.tokens.tolist() for sample in close_session(shuffled).samples]
    assert first == again


def test_each_sampled_token_of_any_session_is_trained_once_in_its_own_context() -> None:
    """With compaction (a new root), retries (ordinals), forks, and templates that drop thoughts."""
    chance = random.Random(11)
    for _ in range(1000):
        talk = Talk()
        for _ in range(chance.randrange(1, 25)):
            goes_on = talk.turns and chance.random() < 0.9
            after = chance.choice(talk.turns[-3:]) if goes_on else None
            own = [chance.randrange(5) for _ in range(chance.randrange(1, 4))]
            equal = [
                turn
                for turn in talk.turns
                if turn.parent is after and turn.answer.sequence.tokens[:-2].tolist()[-3:] == own
            ]
            talk.say(*own, after=after, forgets=chance.random() < 0.2, ordinal=len(equal))
        closed = close_session(talk.turns)
        assert closed.num_pruned == 0
        assert sorted(trained_of(closed.samples)) == sorted(sampled_of(talk.turns))


@pytest.mark.parametrize(
    ("housekeeping", "is_pruned"),
    [
        ({"text": "A title"}, True),
        ({"text": "A title", "tools": True}, False),
        ({"text": "what was said"}, False),
        ({"text": "<summary>\nthe user wants to go on\n</summary>"}, False),
    ],
)
def test_calls_for_titles_are_pruned_and_summaries_that_become_prompts_are_not(
    housekeeping: dict[str, object], is_pruned: bool
) -> None:
    talk = Talk()
    talk.say(9, **{"tools": False, **housekeeping})  # type: ignore[arg-type]
    talk.say(2, after=talk.say(1, quotes="so: what was said, the user wants to go on"))
    closed = close_session(talk.turns)
    assert closed.num_pruned == is_pruned
    kept = talk.turns[1:] if is_pruned else talk.turns
    assert sorted(trained_of(closed.samples)) == sorted(sampled_of(kept))


def test_single_calls_are_all_kept_where_there_is_no_longer_chat() -> None:
    talk = Talk()
    for number in range(3):
        talk.say(number, tools=False, text="yes")
    assert close_session(talk.turns).num_pruned == 0


def test_a_chat_that_goes_on_from_what_this_attempt_was_not_given_begins_there() -> None:
    talk = Talk()
    child = talk.say(2, after=talk.say(1))
    assert sampled_of([child]) == trained_of(close_session([child]).samples)
