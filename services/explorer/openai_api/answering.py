"""Answers requests with a model, independently of the server that lends the model."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from services.explorer.openai_api.chat import Writer, read_request
from services.explorer.openai_api.chat_exchange import ChatExchange
from services.explorer.openai_api.completion_exchange import CompletionExchange
from services.explorer.openai_api.completions import read_completion
from services.explorer.openai_api.refusals import INVALID, is_hung_up, refusal_of, refuse, respond
from services.explorer.openai_api.streaming import EventStream, Teller
from trinity.types import JsonObject
from trinity.workflows.model import ModelWrapper

if TYPE_CHECKING:
    from aiohttp import web


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
