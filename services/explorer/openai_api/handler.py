"""Handles HTTP requests for completions: responses at once, or events while they are generated."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from services.explorer.openai_api.bodies import BodyReader
from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.chat_completions import ChatCall
from services.explorer.openai_api.completions import CompletionCall, read_completion
from services.explorer.openai_api.dialects import CountCall, ExchangeCall
from services.explorer.openai_api.errors import (
    INVALID,
    InvalidApiRequest,
    error_body,
    error_response,
    json_response,
    response_for_error,
)
from services.explorer.openai_api.images import RequestImages
from services.explorer.openai_api.messages import MessagesExchange
from services.explorer.openai_api.responses import ResponsesExchange
from services.explorer.openai_api.schemas import SchemaChecker
from services.explorer.openai_api.tokens import TokensCall
from trinity.data.images import EncodedImage, part_of
from trinity.runtime.threads import DaemonThreads, is_being_cancelled
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.generation import GenerationDelta
from trinity.workflows.model import ModelWrapper, OnIndexedDelta

LONG_PROMPT_CHARACTERS = 50_000
"""Longer prompts, which take more than some 50 ms, are encoded in threads."""
MAX_LARGE_REQUESTS = 2
"""Number of threads for those, and for answers with log-probabilities."""
SEND_SECONDS = 60.0
"""Time for a client to take an event; after that, no more events are sent."""
EVENT_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
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

    def error_event(self, body: JsonObject) -> JsonObject:
        """Returns the event of an error, from OpenAI's body of it."""
        ...

    @property
    def end_mark(self) -> bytes:
        """The data of the event after the last one; empty if there is none."""
        ...


class EventStream:
    """One streamed answer to one request; errors before its first token are raised."""

    def __init__(self, writer: StreamWriter, send: Send) -> None:
        self._writer = writer
        self._send = send
        # Bounded by the length of the answers.
        self._items: asyncio.Queue[StreamItem] = asyncio.Queue()
        self.has_begun = False

    async def send_answer(self) -> None:
        """Sends the whole answer; being cancelled ends the generation for it."""
        generation = asyncio.ensure_future(
            self._writer.generate(lambda index, delta: self._items.put_nowait((index, delta)))
        )
        generation.add_done_callback(lambda _: self._items.put_nowait(None))
        try:
            item = await self._items.get()
            if item is None:
                generation.result()
            await self._begin()
            while item is not None:
                await self._write(self._writer.delta_events(*item))
                item = await self._items.get()
            await self._end(generation)
        finally:
            generation.cancel()
            await asyncio.gather(generation, return_exceptions=True)

    async def send_error(self, failure: Response) -> None:
        """Sends a failure as the last event."""
        await self._write(iter([self._writer.error_event(json.loads(bytes(failure.body)))]))
        await send_event(self._send)

    async def _begin(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        self.has_begun = True
        await self._write(self._writer.opening_events())

    async def _end(self, generation: "asyncio.Future[list[Experience]]") -> None:
        try:
            answers = generation.result()
        except (Exception, asyncio.CancelledError) as error:  # the status is already sent
            text = str(error) or "the answer was cut short"
            body = error_body("server_error", text)
            await self._write(iter([self._writer.error_event(body)]))
        else:
            for index, answer in enumerate(answers):
                await self._write(self._writer.answer_end_events(index, answer))
            await self._write(self._writer.closing_events(answers))
            if self._writer.end_mark:
                await send_event(self._send, b"data: %s\n\n" % self._writer.end_mark)
        await send_event(self._send)

    async def _write(self, bodies: Iterator[JsonObject]) -> None:
        for body in bodies:
            kind = f"event: {body['type']}\n" if "type" in body else ""
            await send_event(self._send, f"{kind}data: {json.dumps(body)}\n\n".encode())


async def send_event(send: Send, event: bytes = b"") -> None:
    """Sends an event, or the end; raises ConnectionError if the client does not read."""
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": event, "more_body": bool(event)})
    except TimeoutError as error:
        raise ConnectionAbortedError("the client does not read the answer") from error


class ApiCall(Protocol):
    """One request, read and valid."""

    model: str
    """The requested model name, or an empty text."""
    seed: int | None
    streams: bool
    json_schema: str
    """The schema of the responses, or an empty text."""
    num_characters: int
    """Characters of the prompts."""

    def encode_prompts(self) -> None:
        """Encodes the prompts into the tokenizer's cache; may be called from any thread.

        Raises: InvalidApiRequest for a prompt that no model takes.
        """
        ...

    def told_of(self, answer: Experience) -> JsonValue:
        """Returns the message that the client gets, with its reason; None if it gets tokens."""
        ...

    def tell_again(self, answer: Experience, told: JsonValue) -> None:
        """Lets the client get this message, which was made of the answer before."""
        ...

    has_logprobs: bool
    """True if the answer may be large."""

    async def complete_response(self, model: ModelWrapper) -> WriteBody:
        """Generates, and returns what writes the complete answer, in any thread."""
        ...

    def stream_writer(self, model: ModelWrapper) -> StreamWriter:
        """Returns the writer of a streamed answer."""
        ...


ReadCall = Callable[[object, ResponseWriter], ApiCall]
"""Reads a body; raises InvalidApiRequest."""
ROUTES: dict[str, ReadCall] = {
    "/v1/chat/completions": lambda body, writer: ChatCall(
        request=read_request(body), writer=writer
    ),
    "/v1/completions": lambda body, writer: CompletionCall(
        request=read_completion(body), writer=writer
    ),
    "/v1/responses": lambda body, writer: ExchangeCall(
        exchange=ResponsesExchange(body, writer.kept), writer=writer
    ),
    "/v1/messages": lambda body, writer: ExchangeCall(
        exchange=MessagesExchange(body), writer=writer
    ),
    "/v1/messages/count_tokens": lambda body, writer: CountCall(
        exchange=MessagesExchange(body, counts=True), writer=writer
    ),
    "/inference/v1/generate": TokensCall,
}
"""The kinds of requests, by their paths."""
BorrowModel = Callable[[ApiCall], AbstractAsyncContextManager[ModelWrapper]]
"""Provides the model for one request, with one set of weights until the block ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiHandler:
    """Answers requests, independently of the address that received them.

    A model is borrowed when a body has arrived: slow bodies keep no other request from it.
    """

    writer: ResponseWriter
    bodies: BodyReader = field(default_factory=BodyReader)
    images: RequestImages = field(default_factory=RequestImages)
    schemas: SchemaChecker | None = None
    """Checks schemas before the model's engine compiles them, if the model has an engine here."""
    threads: DaemonThreads = field(
        default_factory=lambda: DaemonThreads(name="large request", max_threads=MAX_LARGE_REQUESTS)
    )

    async def answer(
        self, read: ReadCall, borrow: BorrowModel, request: Request, send: Send
    ) -> Response | None:
        """Answers a request, or refuses one that cannot be answered; sends streams itself."""
        model: ModelWrapper | None = None
        events: EventStream | None = None
        try:
            body, images = await self.images.taken(await self.bodies.read_json(request))
            call = read(body, self.writer)
            await self._prepare(call)
            async with borrow(call) as model:
                await _store(images, model)
                if call.streams:
                    events = EventStream(call.stream_writer(model), send)
                    await events.send_answer()
                    return None
                write = await call.complete_response(model)
            return await self._respond(write, beside_the_loop=call.has_logprobs)
        except ConnectionError:
            raise
        except asyncio.CancelledError:
            if model is not None and model.is_closed and not is_being_cancelled():
                return attempt_gone()
            raise
        except Exception as error:  # the edge: the client learns that it failed, the log why
            failure = response_for_error(error)
            if events is None or not events.has_begun:
                return failure
            await events.send_error(failure)
            return None

    async def _prepare(self, call: ApiCall) -> None:
        """Runs slow work in threads, so that other requests are not blocked."""
        if call.json_schema and self.schemas is not None:
            await self.schemas.check_schema(call.json_schema)
        if call.num_characters > LONG_PROMPT_CHARACTERS:
            await self.threads.run_in_thread(call.encode_prompts)

    async def _respond(self, write: WriteBody, *, beside_the_loop: bool) -> Response:
        """Writes an answer; one with many log-probabilities takes seconds, so in a thread."""

        def respond() -> Response:
            return json_response(write())

        return await self.threads.run_in_thread(respond) if beside_the_loop else respond()


async def _store(images: Sequence[EncodedImage], model: ModelWrapper) -> None:
    """Stores the images of a request, whose messages have their hashes.

    Raises: InvalidApiRequest for a model without a place for them; QuotaExceeded; Unavailable.
    """
    if images and model.media is None:
        raise InvalidApiRequest("the request has an image, and this model takes texts alone")
    for image in images:
        assert model.media is not None
        await model.media.put(image.content)
    if images:  # so that the tokenizer, which does not wait, can expand their placeholders
        parts = [part_of(image.ref) for image in images]
        await model.load_images([{"role": "user", "content": parts}])


def attempt_gone() -> Response:
    """Returns the answer to a request for a run that is over."""
    return error_response(410, INVALID, "the run of this session is over")


def model_list(*names: str) -> JsonObject:
    """Lists models by the names that requests may give, for clients of OpenAI and Anthropic."""
    return {
        "object": "list",
        "data": [_model(name) for name in names],
        "first_id": names[0],
        "last_id": names[-1],
        "has_more": False,
    }


def named_model(request: Request, *names: str) -> Response:
    """Returns the model that the request's path names; 404 if there is none."""
    name = request.path_params["name"]
    if name in names:
        return json_response(_model(name))
    return error_response(
        404, INVALID, f"there is no model `{name}` here: ask for {names[0]}", code="model_not_found"
    )


def _model(name: str) -> JsonObject:
    begun = "1970-01-01T00:00:00Z"
    both: JsonObject = {"id": name, "object": "model", "created": 0, "owned_by": "trinity"}
    return {**both, "type": "model", "display_name": name, "created_at": begun}
