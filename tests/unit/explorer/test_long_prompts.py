"""A long prompt, which takes seconds to encode, keeps no other request waiting."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from services.explorer.openai_api.chat import ResponseWriter, read_request
from services.explorer.openai_api.chat_completions import ChatCall
from services.explorer.openai_api.completions import CompletionCall, read_completion
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.handler import LONG_PROMPT_CHARACTERS, ApiCall, ApiHandler
from tests.unit.explorer.builders import CharacterTokenizer
from trinity.types import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

ENCODE_SECONDS = 0.5
LONG = "a" * LONG_PROMPT_CHARACTERS


class SlowTokenizer(CharacterTokenizer):
    """Takes half a second, and then has `num_tokens`."""

    def __init__(self, num_tokens: int = 1) -> None:
        self.num_encoded = 0
        self._num_tokens = num_tokens

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        del tools
        return self.encode(messages[0]["content"])

    def encode(self, text: str) -> Prompt:
        self.num_encoded += 1
        time.sleep(ENCODE_SECONDS)
        return Prompt(text=text, token_ids=[97] * self._num_tokens)


def chat(writer: ResponseWriter, text: str) -> ApiCall:
    body = {"messages": [{"role": "user", "content": text}]}
    return ChatCall(request=read_request(body), writer=writer)


def completion(writer: ResponseWriter, text: str) -> ApiCall:
    return CompletionCall(request=read_completion({"prompt": [text, [1]]}), writer=writer)


@pytest.mark.parametrize("make", [chat, completion])
async def test_a_long_prompt_is_encoded_beside_the_loop(
    make: Callable[[ResponseWriter, str], ApiCall],
) -> None:
    tokenizer = SlowTokenizer()
    writer = ResponseWriter(model_path="m", tokenizer=tokenizer)
    preparing = asyncio.ensure_future(ApiHandler(writer=writer)._prepare(make(writer, LONG)))
    began = time.monotonic()
    await asyncio.sleep(0.05)
    assert time.monotonic() - began < ENCODE_SECONDS
    await preparing
    assert tokenizer.num_encoded == 1


async def test_a_short_one_is_encoded_when_its_turn_comes() -> None:
    """Calls are numbered in their order, so nothing is awaited that need not be."""
    tokenizer = SlowTokenizer()
    writer = ResponseWriter(model_path="m", tokenizer=tokenizer)
    await ApiHandler(writer=writer)._prepare(chat(writer, "a"))
    assert tokenizer.num_encoded == 0


async def test_a_prompt_that_no_model_takes_is_refused() -> None:
    tokenizer = SlowTokenizer(num_tokens=(1 << 20) + 1)
    writer = ResponseWriter(model_path="m", tokenizer=tokenizer)
    with pytest.raises(InvalidApiRequest, match="more than any model takes"):
        await ApiHandler(writer=writer)._prepare(chat(writer, LONG))
