"""The other ways to ask for a chat: requests become chat requests, and answers are converted back.

A dialect adds no rules on messages, tools and bounds: those of `chat` hold for all.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.chat_completions import ChatCall, ChatStreamWriter
from trinity.data.conversations import text_part
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.generation import GenerationDelta
from trinity.workflows.model import ModelWrapper, OnIndexedDelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One complete answer, in the terms of a chat."""

    id: str
    """A hexadecimal name, which each dialect puts its prefix before."""
    model: str
    message: JsonObject
    reason: str
    """OpenAI's finish reason."""
    stop: str | None
    """The stop text that ended the answer."""
    num_prompt_tokens: int
    num_tokens: int


class EventWriter(Protocol):
    """Writes one streamed answer in a dialect."""

    def open(self, answer_id: str, model: str, num_prompt_tokens: int) -> Iterator[JsonObject]:
        """Yields the events before the first text."""
        ...

    def add(self, delta: JsonObject) -> Iterator[JsonObject]:
        """Yields the events of a piece of the answer, which has the form of a chat's delta."""
        ...

    def close(self, answer: ChatAnswer) -> Iterator[JsonObject]:
        """Yields the events that end the answer."""
        ...

    def fail(self, error: JsonObject) -> JsonObject:
        """Returns the event of a failure, from the `error` of OpenAI's body."""
        ...


class Exchange(Protocol):
    """One request in a dialect."""

    @property
    def chat(self) -> JsonObject:
        """The body of the same request for a chat of one answer."""
        ...

    @property
    def going_on(self) -> JsonValue:
        """The part that requests need which go on from this one; None if they may not."""
        ...

    def answer_body(self, answer: ChatAnswer) -> JsonObject:
        """Returns the body of the complete answer."""
        ...

    def event_writer(self) -> EventWriter:
        """Returns the writer of the streamed answer."""
        ...


class ExchangeCall(ChatCall):
    """Answers one request in a dialect."""

    def __init__(self, *, exchange: Exchange, writer: ResponseWriter) -> None:
        super().__init__(request=read_request(exchange.chat), writer=writer)
        self._exchange = exchange

    def told_of(self, answer: Experience) -> JsonValue:
        """Returns the message that the client gets, its reason, and what later requests need."""
        told = super().told_of(answer)
        assert isinstance(told, list)
        return [*told, self._exchange.going_on]

    async def complete_response(self, model: ModelWrapper) -> Callable[[], JsonObject]:
        """Generates, and returns the writer of the complete answer."""
        chat = super().stream_writer(model)
        (answer,) = await chat.generate(None)
        return lambda: self._exchange.answer_body(_in_chat_terms(chat, answer))

    def stream_writer(self, model: ModelWrapper) -> "ExchangeStreamWriter":  # type: ignore[override]
        """Returns the writer of a streamed answer."""
        return ExchangeStreamWriter(super().stream_writer(model), self._exchange.event_writer())


class CountCall(ExchangeCall):
    """Answers how many tokens the prompt of a request has."""

    async def complete_response(self, _: ModelWrapper) -> Callable[[], JsonObject]:
        """Returns the writer of the count."""
        count = len(self.prompt.token_ids)
        return lambda: {"input_tokens": count}


class ExchangeStreamWriter:
    """Converts the chunks of a chat into the events of a dialect."""

    end_mark = b""

    def __init__(self, chat: ChatStreamWriter, events: EventWriter) -> None:
        self._chat = chat
        self._events = events

    async def generate(self, on_delta: OnIndexedDelta) -> list[Experience]:
        """Generates the answer, and passes its deltas to `on_delta`."""
        return await self._chat.generate(on_delta)

    def opening_events(self) -> Iterator[JsonObject]:
        """Yields the events before the first text."""
        chat = self._chat
        yield from self._events.open(chat.answer_id, chat.model_path, chat.num_prompt_tokens)

    def delta_events(self, index: int, delta: GenerationDelta) -> Iterator[JsonObject]:
        """Yields the events of the text that is certain by now."""
        yield from self._converted(self._chat.delta_events(index, delta))

    def answer_end_events(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the events of the rest of the answer."""
        yield from self._converted(self._chat.answer_end_events(index, answer))

    def closing_events(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the events that end the answer."""
        yield from self._events.close(_in_chat_terms(self._chat, answers[0]))

    def error_event(self, body: JsonObject) -> JsonObject:
        """Returns the event of a failure."""
        error = body["error"]
        assert isinstance(error, dict)
        return self._events.fail(error)

    def _converted(self, chunks: Iterator[JsonObject]) -> Iterator[JsonObject]:
        for chunk in chunks:
            choices = chunk["choices"]
            assert isinstance(choices, list) and isinstance(choices[0], dict)
            delta = choices[0]["delta"]
            assert isinstance(delta, dict)
            yield from self._events.add(delta)


def in_turns(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Returns the messages of a chat as templates take them, which these dialects do not ask for.

    Consecutive messages of one side become one; a system message after the first turn becomes one
    of the user.
    """
    found: list[JsonObject] = []
    for message in messages:
        turn = dict(message)
        if turn["role"] == "system" and any(before["role"] != "system" for before in found):
            turn["role"] = "user"
        if found and turn["role"] == found[-1]["role"] != "tool":
            _join(found[-1], turn)
        else:
            found.append(turn)
    return found


def _join(before: JsonObject, message: JsonObject) -> None:
    said = [own for part in (before, message) if (own := part.get("content"))]
    if any(isinstance(own, list) for own in said):
        parts = [own if isinstance(own, list) else [text_part(str(own))] for own in said]
        before["content"] = [part for own in parts for part in own]
    else:
        before["content"] = "\n\n".join(map(str, said))
    thoughts = [str(own) for part in (before, message) if (own := part.get("reasoning_content"))]
    if thoughts:
        before["reasoning_content"] = "\n\n".join(thoughts)
    calls: list[JsonValue] = []
    for part in (before, message):
        found = part.get("tool_calls")
        calls += found if isinstance(found, list) else []
    if calls:
        before["tool_calls"] = calls


def _in_chat_terms(chat: ChatStreamWriter, answer: Experience) -> ChatAnswer:
    message, reason = chat.message_of(answer)
    return ChatAnswer(
        id=chat.answer_id,
        model=chat.model_path,
        message=message,
        reason=reason,
        stop=chat.stop_text_of(answer),
        num_prompt_tokens=answer.sequence.prompt_length,
        num_tokens=answer.sequence.response_length,
    )
