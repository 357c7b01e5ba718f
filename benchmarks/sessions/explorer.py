"""The explorer over an engine that answers at once, in words of random letters.

Started by `benchmarks.sessions`: `python -m benchmarks.sessions.explorer`.
"""

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import Sequence

from services.explorer import engines
from services.explorer.control.explorer import Explorer
from services.explorer.delivery.publisher import NatsBroker
from services.explorer.engine.interface import EngineOptions
from services.explorer.engine.tokenizer import MAX_CACHED_TOKENS, PromptCache
from services.explorer.settings import ExplorerSettings
from tests.support.model_free.engine import HashEngine
from trinity.runtime.rpc.runner import run_service
from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import Generation, GenerationDelta, OnDelta, Prompt
from trinity.workflows.messages import Message

NUM_WORDS = 1 << 15
END = 0
ROLES = {"system": 1, "user": 2, "assistant": 3}
FIRST_WORD = 16


def words(seed: object, count: int) -> list[int]:
    """Returns tokens that follow from a seed, as different from one another as a text's."""
    chance = random.Random(str(seed))
    return [chance.randrange(FIRST_WORD, NUM_WORDS) for _ in range(count)]


def text_of(tokens: Sequence[int]) -> str:
    """Returns the text of tokens: four to five characters each, as in English."""
    return "".join(f"{token:04x} " for token in tokens if token >= FIRST_WORD)


class WordTokenizer:
    """A token a word; answers keep their end token in a chat. Chats are cached as a model's are."""

    template_sha256 = hashlib.sha256(b"words").digest()
    end_token_ids = (END,)
    vision = None

    def __init__(self) -> None:
        self._cache = PromptCache(MAX_CACHED_TOKENS)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Encodes a role, its words and an end for each message, and the answer's role."""
        assert not tools
        chat = json.dumps(messages)
        if (prompt := self._cache.get(chat)) is None:
            prompt = self._encode_chat(messages)
            self._cache.put(chat, prompt)
        return prompt

    def _encode_chat(self, messages: Sequence[Message]) -> Prompt:
        tokens: list[int] = []
        for message in messages:
            content = self.encode(str(message["content"])).token_ids
            tokens += [ROLES[str(message["role"])], *content, END]
        text = "".join(str(message["content"]) for message in messages)
        return Prompt(text=text, token_ids=[*tokens, ROLES["assistant"]])

    def encode(self, text: str) -> Prompt:
        """Encodes words."""
        return Prompt(text=text, token_ids=[int(word, 16) for word in text.split()])

    def decode(self, token_ids: list[int]) -> str:
        """Returns the words."""
        return text_of(token_ids)


class WordEngine(HashEngine):
    """Answers with as many words as it may."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Words, and the end token."""
        del min_tokens
        seed = sampling.seed or len(prompt_token_ids)
        tokens = [*words(seed, max(sampling.max_tokens, 1) - 1), END]
        chance = random.Random(seed)
        logprobs = [-chance.random() for _ in tokens]
        if on_delta is not None:
            on_delta(GenerationDelta(token_ids=tokens, logprobs=logprobs))
        return Generation(token_ids=tokens, logprobs=logprobs, finish_reason=FinishReason.STOP)


async def _start(options: EngineOptions) -> WordEngine:
    return WordEngine(options)


async def _serve_until(settings: ExplorerSettings, stop: asyncio.Event) -> None:
    engines._load_tokenizer = lambda _: WordTokenizer()  # type: ignore[assignment,return-value]
    broker = NatsBroker(settings.nats_url.get_secret_value())
    await Explorer(settings=settings, start_engine=_start, broker=broker).run_until(stop)


if __name__ == "__main__":
    sys.exit(run_service("explorer", ExplorerSettings, _serve_until))
