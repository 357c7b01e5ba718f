"""Sends answers as server-sent events while they are generated."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from services.explorer.openai_api.refusals import error_body
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import Piece
from trinity.workflows.model import HeardOf

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
