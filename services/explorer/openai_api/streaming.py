"""Answers as server-sent events, while they are made."""

import asyncio
import json
import time
import uuid
from typing import TYPE_CHECKING

from services.explorer.openai_api.chat import (
    ChatRequest,
    Writer,
    fingerprint_of,
    logprobs_of,
    usage_of,
)
from services.explorer.openai_api.refusals import error_body
from services.explorer.openai_api.text_stream import TextStream
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import Piece
from trinity.workflows.model import ModelWrapper

if TYPE_CHECKING:
    from aiohttp import web

Heard = tuple[int, Piece] | None
"""A piece of one of the answers; None when all of them are whole."""


class ChatStream:
    """One answer to one request; what fails before its first token is raised.

    Where calls of tools or thoughts are looked for, a response is told in one piece.
    """

    def __init__(self, *, asked: ChatRequest, model: ModelWrapper, writer: Writer) -> None:
        self._asked = asked
        self._model = model
        self._writer = writer
        # No longer than the answers are.
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()
        self._response: web.StreamResponse | None = None
        self._texts = [
            TextStream(writer.tokenizer.decode, asked.sampling.get("stop", ()))
            for _ in range(asked.num_choices)
        ]
        self._head: JsonObject = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": writer.model_path,
            "system_fingerprint": fingerprint_of(*model.weights),
        }

    async def answer(self, request: "web.Request") -> "web.StreamResponse":
        """Send all of it; a client that hangs up ends what is generated for it."""
        making = asyncio.ensure_future(self._make())
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
        """The refusal itself, or an event with it where the answer's status is sent."""
        if self._response is None:
            return refusal
        await self._response.write(f"data: {refusal.text}\n\n".encode())
        await self._response.write_eof()
        return self._response

    async def _make(self) -> list[Experience]:
        asked = self._asked
        return await self._model.chat_async(
            asked.messages,
            n=asked.num_choices,
            tools=asked.tools,
            heard=lambda index, piece: self._heard.put_nowait((index, piece)),
            **asked.sampling,
        )

    async def _begin(self, request: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        self._response = response
        for index in range(self._asked.num_choices):
            await self._chunk(response, index, {"role": "assistant", "content": ""})
        return response

    async def _send(
        self,
        response: "web.StreamResponse",
        first: Heard,
        making: "asyncio.Future[list[Experience]]",
    ) -> None:
        heard = first
        while heard is not None:
            await self._piece(response, *heard)
            heard = await self._heard.get()
        try:
            answers = making.result()
        except (Exception, asyncio.CancelledError) as error:  # the answer's status is sent
            text = str(error) or "the answer was cut short"
            await self._event(response, error_body("server_error", text))
            return
        for index, answer in enumerate(answers):
            await self._end(response, index, answer)
        if self._asked.includes_usage:
            await self._event(response, {**self._head, "choices": [], "usage": usage_of(answers)})
        await response.write(b"data: [DONE]\n\n")

    async def _piece(self, response: "web.StreamResponse", index: int, piece: Piece) -> None:
        if self._writer.takes_apart(self._asked):
            return
        text = self._texts[index].add(piece.token_ids)
        logprobs = None
        if self._asked.wants_logprobs:
            logprobs = logprobs_of(
                piece.token_ids, piece.logprobs, piece.likeliest, self._writer.tokenizer
            )
        if text or logprobs:
            await self._chunk(response, index, {"content": text}, logprobs=logprobs)

    async def _end(self, response: "web.StreamResponse", index: int, answer: Experience) -> None:
        """What is left to say, and why there is no more."""
        message, reason = self._writer.message(answer, self._asked)
        if self._writer.takes_apart(self._asked):
            delta: JsonObject = {k: v for k, v in message.items() if k != "role" and v}
            calls = delta.get("tool_calls", [])
            if isinstance(calls, list) and calls:
                delta["tool_calls"] = [
                    {"index": i, **call} for i, call in enumerate(calls) if isinstance(call, dict)
                ]
        else:
            rest = self._texts[index].end(answer.response_text)
            delta = {"content": rest} if rest else {}
        if delta:
            await self._chunk(response, index, delta)
        await self._chunk(response, index, {}, reason=reason)

    async def _chunk(
        self,
        response: "web.StreamResponse",
        index: int,
        delta: JsonObject,
        *,
        logprobs: list[JsonObject] | None = None,
        reason: str | None = None,
    ) -> None:
        choice: JsonObject = {
            "index": index,
            "delta": delta,
            "logprobs": None if logprobs is None else {"content": [*logprobs]},
            "finish_reason": reason,
        }
        more: JsonObject = {"usage": None} if self._asked.includes_usage else {}
        await self._event(response, {**self._head, "choices": [choice], **more})

    async def _event(self, response: "web.StreamResponse", body: JsonObject) -> None:
        await response.write(f"data: {json.dumps(body)}\n\n".encode())
