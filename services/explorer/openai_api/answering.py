"""From a request's body to the model's answer, whoever the model is lent to."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.explorer.openai_api.chat import ChatRequest, Writer, read_request
from services.explorer.openai_api.refusals import INVALID, is_hung_up, refusal_of, refuse, respond
from services.explorer.openai_api.streaming import ChatStream
from trinity.workflows.model import ModelWrapper

if TYPE_CHECKING:
    from aiohttp import web

Lend = Callable[[ChatRequest], AbstractAsyncContextManager[ModelWrapper]]
"""The model for one request, with one set of weights until the block ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Everything about an answer that does not depend on who asks."""

    writer: Writer

    async def chat(self, request: "web.Request", lend: Lend) -> "web.StreamResponse":
        """Answer a chat completion; what cannot be answered is refused."""
        from aiohttp import web

        lent: ModelWrapper | None = None
        stream: ChatStream | None = None
        try:
            asked = read_request(json.loads(await request.text()))
            self.writer.check(asked)
            async with lend(asked) as lent:
                if asked.streams:
                    stream = ChatStream(asked=asked, model=lent, writer=self.writer)
                    return await stream.answer(request)
                return await self._answer(asked, lent)
        except (web.HTTPException, ConnectionError):
            raise
        except asyncio.CancelledError:
            if lent is not None and lent.is_closed and not is_hung_up():
                return over()
            raise
        except Exception as error:  # the edge: the client hears that it failed, the log why
            refusal = refusal_of(error)
            return refusal if stream is None else await stream.refused(refusal)

    async def _answer(self, asked: ChatRequest, model: ModelWrapper) -> "web.StreamResponse":
        answers = await model.chat_async(
            asked.messages, n=asked.num_choices, tools=asked.tools, **asked.sampling
        )
        return respond(self.writer.answer(asked, answers))


def over() -> "web.Response":
    """The answer to who asks for a run that is over."""
    return refuse(410, INVALID, "there is no such attempt, or it is over")
