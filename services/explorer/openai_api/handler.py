"""Handles HTTP requests for completions: responses at once, or events while they are generated."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from services.explorer.openai_api.bodies import BodyReader
from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.chat_completions import ChatCall
from services.explorer.openai_api.completions import CompletionCall, read_completion
from services.explorer.openai_api.errors import (
    INVALID,
    error_body,
    error_response,
    response_for_error,
)
from services.explorer.openai_api.schemas import SchemaChecker
from trinity.runtime.threads import DaemonThreads, is_being_cancelled
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import GenerationDelta
from trinity.workflows.model import ModelWrapper, OnIndexedDelta

if TYPE_CHECKING:
    from aiohttp import web

LONG_PROMPT_CHARACTERS = 50_000
"""Longer prompts, which take more than some 50 ms, are encoded in threads."""
MAX_LARGE_REQUESTS = 2
"""Number of threads for those, and for answers with log-probabilities."""
SEND_SECONDS = 60.0
"""Time for a client to take an event, before which nothing more is sent."""
WriteBody = Callable[[], JsonObject]
StreamItem = tuple[int, GenerationDelta] | None
"""The index of an answer and its next delta; None when all answers are complete."""


class StreamWriter(Protocol):
    """Generates answers and writes their events."""

    async def generate(self, on_delta: OnIndexedDelta) -> list[Experience]:
        """Generates the answers, and passes their deltas to `on_delta`."""
        ...

    def opening_events(self) -> Iterator[JsonObject]:
        """Yields the events before the first delta."""
        ...

    def delta_events(self, index: int, delta: GenerationDelta) -> Iterator[JsonObject]:
        """Yields the events of a delta of one answer."""
        ...

    def answer_end_events(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of one answer and its finish reason."""
        ...

    def closing_events(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the events after all answers."""
        ...


class EventStream:
    """One streamed answer to one request; errors before its first token are raised."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        # Bounded by the length of the answers.
        self._items: asyncio.Queue[StreamItem] = asyncio.Queue()
        self._response: web.StreamResponse | None = None

    async def stream_response(self, request: "web.Request") -> "web.StreamResponse":
        """Sends the whole answer; a client's disconnect ends the generation for it."""
        generation = asyncio.ensure_future(
            self._writer.generate(lambda index, delta: self._items.put_nowait((index, delta)))
        )
        generation.add_done_callback(lambda _: self._items.put_nowait(None))
        try:
            first = await self._items.get()
            if first is None:
                generation.result()
            response = await self._begin(request)
            await self._send(response, first, generation)
            await response.write_eof()
            return response
        finally:
            generation.cancel()
            await asyncio.gather(generation, return_exceptions=True)

    async def send_error(self, failure: "web.Response") -> "web.StreamResponse":
        """Returns the response to a failure, or sends it as an event if the response has begun."""
        if self._response is None:
            return failure
        await _send(self._response, f"data: {failure.text}\n\n".encode())
        await self._response.write_eof()
        return self._response

    async def _begin(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._response = response
        await _write(response, self._writer.opening_events())
        return response

    async def _send(
        self,
        response: "web.StreamResponse",
        first: StreamItem,
        generation: "asyncio.Future[list[Experience]]",
    ) -> None:
        item = first
        while item is not None:
            await _write(response, self._writer.delta_events(*item))
            item = await self._items.get()
        try:
            answers = generation.result()
        except (Exception, asyncio.CancelledError) as error:  # the status is already sent
            text = str(error) or "the answer was cut short"
            await _write(response, iter([error_body("server_error", text)]))
            return
        for index, answer in enumerate(answers):
            await _write(response, self._writer.answer_end_events(index, answer))
        await _write(response, self._writer.closing_events(answers))
        await _send(response, b"data: [DONE]\n\n")


async def _write(response: "web.StreamResponse", bodies: Iterator[JsonObject]) -> None:
    for body in bodies:
        await _send(response, f"data: {json.dumps(body)}\n\n".encode())


async def _send(response: "web.StreamResponse", event: bytes) -> None:
    """Sends an event; raises ConnectionError when the client has not read for too long."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await response.write(event)
    except TimeoutError as error:
        raise ConnectionAbortedError("the client does not read the answer") from error


class ApiCall(Protocol):
    """One request, read and valid."""

    model: str
    """The requested model name; empty if the request has none."""
    seed: int | None
    streams: bool
    json_schema: str
    """The schema of the responses; empty if there is none."""
    num_characters: int
    """Characters of the prompts."""

    def encode_prompts(self) -> None:
        """Encodes the prompts into the tokenizer's cache; may be called from any thread.

        Raises: InvalidApiRequest for a prompt that no model takes.
        """
        ...

    has_logprobs: bool
    """True if the answer may be large."""

    async def complete_response(self, model: ModelWrapper) -> WriteBody:
        """Generates, and returns what writes the complete answer, in any thread."""
        ...

    def stream_writer(self, model: ModelWrapper) -> StreamWriter:
        """Returns the writer of a streamed answer."""
        ...


BorrowModel = Callable[[ApiCall], AbstractAsyncContextManager[ModelWrapper]]
"""Provides the model for one request, with one set of weights until the block ends."""
AnswerFn = Callable[["web.Request", BorrowModel], Awaitable["web.StreamResponse"]]
"""A method of `ApiHandler` for requests of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiHandler:
    """Answers requests, independently of the server that received them.

    A model is borrowed when a body has arrived: slow bodies keep no other request from it.
    """

    writer: ResponseWriter
    bodies: BodyReader = field(default_factory=BodyReader)
    schemas: SchemaChecker | None = None
    """Checks schemas before the model's engine compiles them, if the model has an engine here."""
    threads: DaemonThreads = field(
        default_factory=lambda: DaemonThreads(name="large request", max_threads=MAX_LARGE_REQUESTS)
    )

    async def chat(self, request: "web.Request", borrow: BorrowModel) -> "web.StreamResponse":
        """Answers a chat completion, or refuses a request that cannot be answered."""
        return await self._answer(
            request, borrow, lambda body: ChatCall(request=read_request(body), writer=self.writer)
        )

    async def complete(self, request: "web.Request", borrow: BorrowModel) -> "web.StreamResponse":
        """Answers a completion of text or tokens, or refuses one that cannot be answered."""
        return await self._answer(
            request,
            borrow,
            lambda body: CompletionCall(request=read_completion(body), writer=self.writer),
        )

    async def _prepare(self, call: ApiCall) -> None:
        """Does beside the event loop what may take seconds, so that other calls go on."""
        if call.json_schema and self.schemas is not None:
            await self.schemas.check_schema(call.json_schema)
        if call.num_characters > LONG_PROMPT_CHARACTERS:
            await self.threads.run_in_thread(call.encode_prompts)

    async def _respond(self, write: WriteBody, *, beside_the_loop: bool) -> "web.Response":
        """Writes an answer; one with many log-probabilities takes seconds, so in a thread."""
        from aiohttp import web

        def dump() -> str:
            return json.dumps(write())

        text = await self.threads.run_in_thread(dump) if beside_the_loop else dump()
        return web.Response(text=text, content_type="application/json")

    async def _answer(
        self, request: "web.Request", borrow: BorrowModel, read: Callable[[object], ApiCall]
    ) -> "web.StreamResponse":
        from aiohttp import web

        model: ModelWrapper | None = None
        events: EventStream | None = None
        try:
            call = read(await self.bodies.read_json(request))
            await self._prepare(call)
            async with borrow(call) as model:
                if call.streams:
                    events = EventStream(call.stream_writer(model))
                    return await events.stream_response(request)
                write = await call.complete_response(model)
            return await self._respond(write, beside_the_loop=call.has_logprobs)
        except (web.HTTPException, ConnectionError):
            raise
        except asyncio.CancelledError:
            if model is not None and model.is_closed and not is_being_cancelled():
                return attempt_gone()
            raise
        except Exception as error:  # the edge: the client learns that it failed, the log why
            failure = response_for_error(error)
            return failure if events is None else await events.send_error(failure)


def attempt_gone() -> "web.Response":
    """Returns the answer to a request for a run that is over."""
    return error_response(410, INVALID, "there is no such attempt, or it is over")


def model_list(*names: str) -> JsonObject:
    """Lists models by the names that requests may give."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "trinity"} for name in names],
    }
