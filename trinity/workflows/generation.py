"""What the model's wrapper stands on: an engine that makes tokens, a tokenizer, and limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.workflows.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as text and as the tokens that stand for it."""

    text: str
    token_ids: list[int]


ANY_OBJECT = '{"type": "object"}'
"""A JSON Schema that any JSON object keeps to."""
Likeliest = list[list[tuple[int, float]]]
"""The likeliest tokens at each position, with their log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What an engine made of a prompt: its very tokens, the end token included.

    logprobs are natural logarithms after penalties, temperature and truncation, one for each token:
    what the token was drawn by. A model that others serve tells none: its tokens are masked out and
    never trained. `likeliest` are the likeliest tokens at each position with the same
    kind of number, as many as `SamplingParams.logprobs` asked for; without a question none.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    likeliest: Likeliest = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """How likely a model finds given tokens, each after those before it; the first has no number.

    logprobs are natural logarithms of the model's own probabilities, at temperature 1 and with
    nothing left out; `likeliest` are the likeliest tokens at the same positions, as many as were
    asked for, or empty.
    """

    logprobs: list[float]
    likeliest: Likeliest = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens of a response that is still being made, in its order, none of them twice."""

    token_ids: list[int]
    logprobs: list[float]
    likeliest: Likeliest = field(default_factory=list)


Heard = Callable[[Piece], None]
"""Told what is made while it is made; whole, the pieces are the generation."""


class Generator(Protocol):
    """The part of an engine that makes tokens, and tells how likely given ones are."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        heard: Heard | None = None,
    ) -> Generation:
        """Continue the prompt; cancelling the call stops the engine's work on it."""
        ...

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """How likely each of two or more tokens is after those before it."""
        ...


class ChatTokenizer(Protocol):
    """Between text and tokens."""

    @property
    def template_sha256(self) -> bytes:
        """SHA-256 of the chat template's text."""
        ...

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Apply the chat template; a last message of the assistant is continued."""
        ...

    def encode(self, text: str) -> Prompt:
        """Tokens of plain text."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Text without special tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What bounds every call."""

    max_model_len: int
    max_prompt_tokens: int
    min_tokens: int = 0
    truncate_prompts: bool = True
    """False makes a prompt that is too long an error."""
