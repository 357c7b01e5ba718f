"""The part of a model that scores chats, if it is one that does."""

import itertools
from collections.abc import Sequence
from typing import Any, cast

from trinity.workflows.generation import Generator, RatedChat, as_score, rater_of
from trinity.workflows.messages import Message, as_mapping
from trinity.workflows.model_access import ModelAccess


class RatingModel(ModelAccess):
    """A part of `ModelWrapper`.

    score = await scorer.rate([*messages, {"role": "assistant", "content": "4"}])
    scores = await scorer.rate_steps(messages, ["first 2", "then 4"], tag="<step>")
    """

    _generator: Generator

    async def rate(self, messages: Sequence[Any], *, label: int = -1) -> float:
        """Returns the score of a chat, with the answer as its last message, by a model that scores.

        It is the logit of a model with one label, else the probability of one of several labels.
        """
        [logits] = await self.rate_chat(RatedChat(messages=_mappings(messages)))
        return as_score(logits, label)

    async def rate_steps(
        self, messages: Sequence[Any], steps: Sequence[str], *, tag: str, label: int = -1
    ) -> list[float]:
        """Returns the score of each step of an answer to a chat, at the `tag` that follows it."""
        parts = [f"{step}{tag}" for step in steps]
        answer = Message(role="assistant", content="".join(parts))
        ends = list(itertools.accumulate(map(len, parts)))
        chat = RatedChat(messages=[*_mappings(messages), answer], step_ends=ends)
        return [as_score(logits, label) for logits in await self.rate_chat(chat)]

    async def rate_chat(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of all labels, of each step or of the whole chat."""
        return await self._calls.awaited(self._rate(chat))

    async def _rate(self, chat: RatedChat) -> list[list[float]]:
        self._calls.require_open()
        with self._calls.in_progress():
            return await rater_of(self._generator).rate(chat)


def _mappings(messages: Sequence[Any]) -> list[Message]:
    return cast(list[Message], [as_mapping(message) for message in messages])
