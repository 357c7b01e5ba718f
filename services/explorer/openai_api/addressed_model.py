"""The model for one request over the address of a session."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from services.explorer.openai_api.response import response_tokens, top_logprobs_of
from services.explorer.openai_api.session import Session, Slot, turn_in
from trinity.types import Experience, JsonObject, JsonValue, SamplingParams
from trinity.workflows.answers import TurnNode, message_digests, place_in, prompt_digest
from trinity.workflows.generation import GenerationDelta, Prompt
from trinity.workflows.messages import Message
from trinity.workflows.model import CallOptions, ModelWrapper


class Telling(Protocol):
    """A request whose answers are told as messages, the same each time."""

    def told_of(self, answer: Experience) -> JsonValue:
        """Returns the message that the client gets, with its reason; None if it gets tokens."""
        ...

    def tell_again(self, answer: Experience, told: JsonValue) -> None:
        """Lets the client get this message."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A prompt with its parent, and the messages that it adds."""

    prompt: Prompt
    parent: TurnNode | None
    messages: Sequence[Message]
    messages_sha256: bytes
    sampling: SamplingParams
    options: CallOptions


class AddressedModel(ModelWrapper):
    """A model whose answers are turns of a session: stored ones, or new ones that are stored first.

    It shares everything else with the model of the attempt, such as the history of its calls.
    """

    def __init__(self, model: ModelWrapper, session: Session, telling: Telling) -> None:
        vars(self).update(vars(model))
        self._session = session
        self._telling = telling
        self._messages: Sequence[Message] | None = None
        self._claimed: list[Slot] = []

    @property
    def answer_id(self) -> str:
        """The name of the answers to this request: that of the first turn."""
        return self._claimed[0].id.replace("-", "") if self._claimed else super().answer_id

    async def answer_chat(
        self, messages: Sequence[Any], tools: Sequence[JsonObject], options: CallOptions
    ) -> list[Experience]:
        """Answers a chat."""
        self._messages = messages
        return await super().answer_chat(messages, tools, options)

    async def _sample(
        self, prompt: Prompt, options: CallOptions, begin: int = 0
    ) -> list[Experience]:
        """Answers a prompt with turns, once all of them are stored."""
        sampling = self._begin_call(options)
        asked = self._asked(prompt, sampling, options)
        digest = prompt_digest(prompt.token_ids, sampling)
        slots = self._session.claim(asked.parent, digest, options.n)
        self._claimed += slots
        new = [slot for slot in slots if slot.number is None]
        for slot, number in zip(new, self._new_numbers(len(new)), strict=True):
            slot.number = number
        parts = (self._answer_in(slot, asked, begin + i) for i, slot in enumerate(slots))
        answers = await asyncio.gather(*parts)
        self._record([slot.number or 0 for slot in slots], answers)
        return answers

    def _asked(self, prompt: Prompt, sampling: SamplingParams, options: CallOptions) -> _Asked:
        tree, messages = self._session.tree, self._messages
        if messages is None:
            parent, num_known = tree.parent_of_tokens(prompt.token_ids), 0
        else:
            parent, num_known = tree.parent_of_chat(messages)
        given = messages or ()
        return _Asked(
            prompt=prompt,
            parent=parent,
            messages=given[num_known:],
            messages_sha256=message_digests(given)[-1],
            sampling=sampling,
            options=options,
        )

    async def _answer_in(self, slot: Slot, asked: _Asked, place: int) -> Experience:
        is_new = not slot.is_begun
        if is_new:
            await self._fill(slot, asked, place)
        with self._calls.in_progress():
            turn = await turn_in(slot)
        answer = turn.answer
        self._turns[slot.number or 0] = turn
        if not is_new:
            answer.origin = answer.origin or answer.copied()
            self._telling.tell_again(answer, turn.told)
            if (listener := asked.options.listener(place)) is not None:
                listener(_whole(answer))
        return answer

    async def _fill(self, slot: Slot, asked: _Asked, place: int) -> None:
        """Samples the answer of a new slot, and sends it to be stored."""
        slot.is_begun = True
        seeds, number = self._session.seed_of_turn, slot.number or 0
        if seeds is None:
            seed = self._seed_of_call(number)
        else:
            seed = seeds(place_in(asked.parent), slot.prompt_sha256, slot.ordinal)
        call = replace(asked.sampling, seed=seed)
        try:
            [answer] = await self._draw(asked.prompt, [call], asked.options, place)
            turn = TurnNode(
                id=slot.id,
                parent=asked.parent,
                prompt_sha256=slot.prompt_sha256,
                ordinal=slot.ordinal,
                answer=answer,
                messages=asked.messages,
                messages_sha256=asked.messages_sha256,
                told=self._telling.told_of(answer),
                call=self._claimed[0].id,
            )
            self._session.fill(slot, turn)
        except BaseException:
            self._session.drop(slot)
            raise

    def end_request(self, *, is_answered: bool) -> None:
        """Lets others have the turns, unless the client has got them."""
        for slot in self._claimed:
            slot.is_held = False
            slot.is_given = slot.is_given or is_answered
            if not slot.is_begun:
                self._session.drop(slot)


@asynccontextmanager
async def lent_model(
    model: ModelWrapper, session: Session, telling: Telling
) -> AsyncIterator[AddressedModel]:
    """Yields the model for one request; if the block ends well, the client has its answer."""
    addressed = AddressedModel(model, session, telling)
    is_answered = False
    try:
        yield addressed
        is_answered = True
    finally:
        addressed.end_request(is_answered=is_answered)


def _whole(answer: Experience) -> GenerationDelta:
    return GenerationDelta(
        token_ids=response_tokens(answer),
        logprobs=answer.sequence.rollout_logprobs.tolist(),
        likeliest=top_logprobs_of(answer),
    )
