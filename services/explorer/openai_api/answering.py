"""From a request's body to the model's answer, whoever the model is lent to."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.explorer.openai_api.chat import ChatRequest, read_request, write_answer
from services.explorer.openai_api.refusals import INVALID, is_hung_up, refusal_of, refuse, respond
from trinity.workflows.generation import ChatTokenizer
from trinity.workflows.model import ModelWrapper

if TYPE_CHECKING:
    from aiohttp import web

Lend = Callable[[ChatRequest], AbstractAsyncContextManager[ModelWrapper]]
"""The model for one request, with one set of weights until the block ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Everything about an answer that does not depend on who asks."""

    model_path: str
    tokenizer: ChatTokenizer

    async def chat(self, request: "web.Request", lend: Lend) -> "web.StreamResponse":
        """Answer a chat completion; what cannot be answered is refused."""
        from aiohttp import web

        lent: ModelWrapper | None = None
        try:
            asked = read_request(json.loads(await request.text()))
            async with lend(asked) as lent:
                answers = await lent.chat_async(
                    asked.messages, n=asked.num_choices, **asked.sampling
                )
            return respond(
                write_answer(asked, answers, model_path=self.model_path, tokenizer=self.tokenizer)
            )
        except web.HTTPException:
            raise
        except asyncio.CancelledError:
            if lent is not None and lent.is_closed and not is_hung_up():
                return over()
            raise
        except Exception as error:  # the edge: the client hears that it failed, the log why
            return refusal_of(error)


def over() -> "web.Response":
    """The answer to who asks for a run that is over."""
    return refuse(410, INVALID, "there is no such attempt, or it is over")
