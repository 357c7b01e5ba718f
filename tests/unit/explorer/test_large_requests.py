"""A long prompt or a large answer, which take seconds, keep no other request waiting."""

import asyncio
import threading
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

PATIENCE_SECONDS = 120.0
LONG = "a" * LONG_PROMPT_CHARACTERS


class SlowTokenizer(CharacterTokenizer):
    """Takes until the loop goes on, and then has `num_tokens`."""

    def __init__(self, num_tokens: int = 1) -> None:
        self.goes_on = threading.Event()
        self.num_encoded = 0
        self._num_tokens = num_tokens

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        del tools
        return self.encode(messages[0]["content"])

    def encode(self, text: str) -> Prompt:
        self.num_encoded += 1
        assert self.goes_on.wait(PATIENCE_SECONDS), "the loop waits for it"
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
    await asyncio.sleep(0)
    tokenizer.goes_on.set()
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
    tokenizer.goes_on.set()
    writer = ResponseWriter(model_path="m", tokenizer=tokenizer)
    with pytest.raises(InvalidApiRequest, match="more than any model takes"):
        await ApiHandler(writer=writer)._prepare(chat(writer, LONG))


async def test_a_large_answer_is_written_beside_the_loop() -> None:
    goes_on = threading.Event()

    def write() -> JsonObject:
        assert goes_on.wait(PATIENCE_SECONDS), "the loop waits for it"
        return {"choices": []}

    handler = ApiHandler(writer=ResponseWriter(model_path="m", tokenizer=CharacterTokenizer()))
    writing = asyncio.ensure_future(handler._respond(write, beside_the_loop=True))
    await asyncio.sleep(0)
    goes_on.set()
    assert (await writing).body == b'{"choices": []}'


def test_answers_with_log_probabilities_are_large() -> None:
    writer = ResponseWriter(model_path="m", tokenizer=CharacterTokenizer())
    messages: JsonObject = {"messages": [{"role": "user", "content": "a"}]}
    asked: list[JsonObject] = [{"logprobs": True, "top_logprobs": 20}, {"prompt_logprobs": 1}, {}]
    chats = [ChatCall(request=read_request(messages | more), writer=writer) for more in asked]
    assert [call.has_logprobs for call in chats] == [True, True, False]
    asked = [{"logprobs": 20}, {"prompt_logprobs": 1}, {}]
    plain = [
        CompletionCall(request=read_completion({"prompt": "a", **more}), writer=writer)
        for more in asked
    ]
    assert [call.has_logprobs for call in plain] == [True, True, False]
