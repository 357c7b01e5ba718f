"""Sends answers as server-sent events while they are generated."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.explorer.openai_api.chat import Writer, read_request
from services.explorer.openai_api.chat_completions import ChatExchange
from services.explorer.openai_api.completions import CompletionExchange, read_completion
from services.explorer.openai_api.errors import (
    INVALID,
    error_body,
    is_hung_up,
    refusal_of,
    refuse,
    respond,
)
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import Piece
from trinity.workflows.model import HeardOf, ModelWrapper

if TYPE_CHECKING:
    from aiohttp import web


Heard = tuple[int, Piece] | None
"""The index of an answer and a piece of it; None when all answers are complete."""


class Teller(Protocol):
    """Generates answers and writes their events."""

    async def make(self, heard: HeardOf) -> list[Experience]:
        """Generates the answers, and passes their pieces to `heard`."""
        ...

    def opening(self) -> Iterator[JsonObject]:
        """Yields the events before the first piece."""
        ...

    def piece(self, index: int, piece: Piece) -> Iterator[JsonObject]:
        """Yields the events of a piece of one answer."""
        ...

    def end(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of one answer and its finish reason."""
        ...

    def closing(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the events after all answers."""
        ...


class EventStream:
    """One streamed answer to one request; errors before its first token are raised."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        # Bounded by the length of the answers.
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._response: web.StreamResponse | None = None

    async def answer(self, request: "web.Request") -> "web.StreamResponse":
        """Sends the whole answer; a client's disconnect ends the generation for it."""
        making = asyncio.ensure_future(
            self._teller.make(lambda index, piece: self._heard.put_nowait((index, piece)))
        )
        making.add_done_callback(lambda _: self._heard.put_nowait(None))
        try:
            first = await self._heard.get()
            if first is None:
                making.result()
            response = await self._begin(request)
            await self._send(response, first, making)
            await response.write_eof()
            return response
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)

    async def refused(self, refusal: "web.Response") -> "web.StreamResponse":
        """Returns the refusal, or sends it as an event if the response has begun."""
        if self._response is None:
            return refusal
        await self._response.write(f"data: {refusal.text}\n\n".encode())
        await self._response.write_eof()
        return self._response

    async def _begin(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._response = response
        await _write(response, self._teller.opening())
        return response

    async def _send(
        self,
        response: "web.StreamResponse",
        first: Heard,
        making: "asyncio.Future[list[Experience]]",
    ) -> None:
        heard = first
        while heard is not None:
            await _write(response, self._teller.piece(*heard))
            heard = await self._heard.get()
        try:
            answers = making.result()
        except (Exception, asyncio.CancelledError) as error:  # the status is already sent
            text = str(error) or "the answer was cut short"
            await _write(response, iter([error_body("server_error", text)]))
            return
        for index, answer in enumerate(answers):
            await _write(response, self._teller.end(index, answer))
        await _write(response, self._teller.closing(answers))
        await response.write(b"data: [DONE]\n\n")


async def _write(response: "web.StreamResponse", bodies: Iterator[JsonObject]) -> None:
    for body in bodies:
        await response.write(f"data: {json.dumps(body)}\n\n".encode())


class Exchange(Protocol):
    """One request, read and valid."""

    model: str
    """The requested model name; empty if the request has none."""
    seed: int | None
    streams: bool

    async def answer(self, model: ModelWrapper) -> JsonObject:
        """Returns the complete answer."""
        ...

    def teller(self, model: ModelWrapper) -> Teller:
        """Returns the writer of a streamed answer."""
        ...


Lend = Callable[[Exchange], AbstractAsyncContextManager[ModelWrapper]]
"""Provides the model for one request, with one set of weights until the block ends."""
Answer = Callable[["web.Request", Lend], Awaitable["web.StreamResponse"]]
"""A method of `Answering` for requests of one kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers requests, independently of the server that received them."""

    writer: Writer

    async def chat(self, request: "web.Request", lend: Lend) -> "web.StreamResponse":
        """Answers a chat completion, or refuses a request that cannot be answered."""
        return await _answered(
            request, lend, lambda body: ChatExchange(asked=read_request(body), writer=self.writer)
        )

    async def complete(self, request: "web.Request", lend: Lend) -> "web.StreamResponse":
        """Answers a completion of text or tokens, or refuses one that cannot be answered."""
        return await _answered(
            request,
            lend,
            lambda body: CompletionExchange(asked=read_completion(body), writer=self.writer),
        )


async def _answered(
    request: "web.Request", lend: Lend, read: Callable[[object], Exchange]
) -> "web.StreamResponse":
    from aiohttp import web

    lent: ModelWrapper | None = None
    stream: EventStream | None = None
    try:
        exchange = read(json.loads(await request.text()))
        async with lend(exchange) as lent:
            if exchange.streams:
                stream = EventStream(exchange.teller(lent))
                return await stream.answer(request)
            return respond(await exchange.answer(lent))
    except (web.HTTPException, ConnectionError):
        raise
    except asyncio.CancelledError:
        if lent is not None and lent.is_closed and not is_hung_up():
            return over()
        raise
    except Exception as error:  # the edge: the client learns that it failed, the log why
        refusal = refusal_of(error)
        return refusal if stream is None else await stream.refused(refusal)


def over() -> "web.Response":
    """Returns the answer to a request for a run that is over."""
    return refuse(410, INVALID, "there is no such attempt, or it is over")


def model_list(*names: str) -> JsonObject:
    """Lists models by the names that requests may give."""
    return {
        "object": "list",
        "data": [{"id": name, "object": "model", "owned_by": "trinity"} for name in names],
    }
