"""A model whose answers are scripted, and the clients of both companies; vLLM finds its calls."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anthropic
import httpx
import openai
import pytest

from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from tests.integration.explorer.test_parsers import END, Bytes
from tests.unit.explorer.builders import ArithmeticEngine
from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta, Prompt
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper

ADDING: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = "<think>One more.</think>"
thinking = pytest.mark.parametrize("asked", ["deepseek_r1"], indirect=True)
"""For tests of a model that thinks before it answers."""


@dataclass
class Scripted(ArithmeticEngine):
    """An engine that says what it is given, in this order."""

    texts: list[str] = field(default_factory=list)
    answer: Callable[[str], str] | None = None
    """Answers prompts instead of the texts."""
    fails_after: int = 0
    """Number of deltas after which a streamed answer fails; 0 for never."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        prompt = bytes(prompt_token_ids).decode()
        text = self.texts.pop(0) if self.answer is None else self.answer(prompt)
        tokens = [*text.encode(), END][: sampling.max_tokens]
        reason = FinishReason.STOP if tokens[-1] == END else FinishReason.LENGTH
        pieces = [tokens[place : place + 4] for place in range(0, len(tokens), 4)]
        for number, piece in enumerate(pieces if on_delta is not None else ()):
            if number and number == self.fails_after:
                raise RuntimeError("the engine broke")
            assert on_delta is not None
            on_delta(GenerationDelta(token_ids=piece, logprobs=[-0.5] * len(piece), likeliest=[]))
        return Generation(
            token_ids=tokens,
            logprobs=[-0.5] * len(tokens),
            finish_reason=reason,
            likeliest=[],
        )


class Chats(HuggingFaceTokenizer):
    """A token a byte; it keeps what the chat template would get."""

    def __init__(self) -> None:
        super().__init__(Bytes(), None, (END,))
        self.messages: list[Message] = []
        self.tools: list[JsonObject] = []

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        self.messages, self.tools = [*messages], [*tools]
        return self.encode(json.dumps([self.messages, self.tools]))

    def encode(self, text: str) -> Prompt:
        return Prompt(text=text, token_ids=list(text.encode()))

    def decode(self, token_ids: list[int]) -> str:
        return bytes(token for token in token_ids if token != END).decode()


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model with an address, and its clients."""

    model: ModelWrapper
    engine: Scripted
    chats: Chats
    messages: anthropic.AsyncAnthropic
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    def will_say(self, *texts: str) -> None:
        self.engine.texts = [*texts]
