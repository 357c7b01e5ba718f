"""Parts of the model wrapper: generator, tokenizer, limits, calls of an attempt."""

import asyncio
import concurrent.futures
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from trinity.data.images import ref_of
from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.tracing import SpanContextRef
from trinity.types import (
    ArrayData,
    BlobRef,
    FinishReason,
    JsonObject,
    RoleSpan,
    SamplingParams,
    VersionSpan,
)
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    import PIL.Image

ANY_OBJECT = '{"type": "object"}'
"""A JSON Schema that any JSON object satisfies."""
Likeliest = list[list[tuple[int, float]]]
"""The likeliest tokens at each position, with their log-probabilities."""
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as text and as tokens."""

    text: str
    token_ids: list[int]
    role_spans: tuple[RoleSpan, ...] = ()
    """Spans of the messages that the chat template wrote; without any, roles are not known."""
    images: tuple[JsonObject, ...] = ()
    """Its images as parts of messages, in the order of their tokens."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the prompt that `dataclasses.asdict` has written."""
        spans = tuple(RoleSpan(**span) for span in values["role_spans"])
        images = tuple(values["images"])
        return cls(
            text=values["text"], token_ids=values["token_ids"], role_spans=spans, images=images
        )

    @property
    def image_refs(self) -> tuple[BlobRef, ...]:
        """References to its images."""
        return tuple(ref for ref in map(ref_of, self.images) if ref is not None)


class ImagePrompt(list[int]):
    """Token ids of a prompt, with the images that an engine shows at their places."""

    def __init__(
        self,
        token_ids: Sequence[int],
        images: "Sequence[tuple[str, PIL.Image.Image]]",
        collapsed: Sequence[int],
    ) -> None:
        """`images` are the hash and the pixels of each, in order.

        `collapsed` are the token ids with one placeholder for each image.
        """
        super().__init__(token_ids)
        self.images = tuple(images)
        self.collapsed = collapsed

    @classmethod
    def without_last(cls, token_ids: list[int]) -> list[int]:
        """Returns the tokens without the last one, with the images if there are any."""
        kept = token_ids[:-1]
        if not isinstance(token_ids, cls):
            return kept
        return cls(kept, token_ids.images, token_ids.collapsed[:-1])


class PromptImages(Protocol):
    """The images of chats, for a model that reads them."""

    async def loaded(self, messages: Sequence[Any]) -> list[Any]:
        """Returns a chat that the tokenizer can encode, its images being stored."""
        ...

    async def shown(self, prompt: Prompt) -> list[int]:
        """Returns a prompt's token ids with its images, as engines take them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """An engine's response to a prompt, with its exact tokens, including the end token.

    logprobs are natural logarithms after penalties, temperature and truncation, one for each token:
    the probability with which it was drawn. An external model gives no log-probabilities: its
    tokens are masked out and never trained. `likeliest` holds the likeliest tokens at each position
    with the same kind of log-probability, as many as `SamplingParams.logprobs` requests.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    likeliest: Likeliest = field(default_factory=list)
    routed_experts: ArrayData | None = None
    """[tokens, layers, k]: experts plus 1 of the pass that drew each token, if the engine says."""
    swaps: tuple[int, ...] = ()
    """Tokens that there were each time the engine's weights were replaced meanwhile."""
    version_spans: tuple[VersionSpan, ...] = ()
    """The weights that drew the tokens, where they may change meanwhile."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the answer that `dataclasses.asdict` has written."""
        own = {
            "finish_reason": FinishReason(values["finish_reason"]),
            "swaps": tuple(values["swaps"]),
            "version_spans": tuple(VersionSpan(**span) for span in values["version_spans"]),
        }
        return cls(**{**_with_likeliest(values), **own})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities of given tokens, each after those before it, from the second one on.

    logprobs are natural logarithms of the model's own probabilities, at temperature 1 and without
    truncation; `likeliest` holds the likeliest tokens at the same positions, as many as were
    requested, or is empty.
    """

    logprobs: list[float]
    likeliest: Likeliest = field(default_factory=list)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the scores that `dataclasses.asdict` has written."""
        return cls(**_with_likeliest(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDelta:
    """Newly generated tokens of a response: deltas come in order and do not overlap."""

    token_ids: list[int]
    logprobs: list[float]
    likeliest: Likeliest = field(default_factory=list)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Returns the tokens that `dataclasses.asdict` has written."""
        return cls(**_with_likeliest(values))


OnDelta = Callable[[GenerationDelta], None]
"""Receives a generation's deltas as they are made; together they are the generation."""


class Generator(Protocol):
    """The part of an engine that generates tokens and scores given ones."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt; cancelling the call stops the engine's work on it."""
        ...

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores two or more tokens, each after those before it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedChat:
    """A chat for a model that scores; its last message is what is scored."""

    messages: list[Message]
    step_ends: list[int] = field(default_factory=list)
    """Characters of the last message after which its steps end; empty for one score of all."""


@runtime_checkable
class Rater(Protocol):
    """An engine of a model that scores."""

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of all labels after the last token of each step, or of the chat."""
        ...


class ChatTokenizer(Protocol):
    """Converts between text and tokens."""

    @property
    def template_sha256(self) -> bytes:
        """SHA-256 of the chat template's text."""
        ...

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Applies the chat template; a last message of the assistant is continued."""
        ...

    def encode(self, text: str) -> Prompt:
        """Encodes plain text."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """Decodes tokens to text without special tokens."""
        ...


@runtime_checkable
class ReadsTemplate(Protocol):
    """A tokenizer that knows what its chat template reads."""

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template reads."""
        ...


_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """Limits of every call."""

    max_model_len: int
    max_prompt_tokens: int
    min_tokens: int = 0
    truncate_prompts: bool = True
    """If false, a prompt that is too long is an error."""

    @classmethod
    def unknown(cls) -> "ModelLimits":
        """Returns the limits of an external model, which refuses longer requests itself."""
        return cls(max_model_len=_NO_LIMIT, max_prompt_tokens=_NO_LIMIT)

    @property
    def is_known(self) -> bool:
        """False if only the external server knows its limits."""
        return self.max_model_len < _NO_LIMIT


OPERATION = "text_completion"
_ABOUT = {names.OPERATION: OPERATION, names.PROVIDER: "trinity"}


def _ignore(_: Generation) -> None:
    pass


@contextmanager
def trace_generation(
    parent: SpanContextRef | None, num_prompt_tokens: int, sampling: SamplingParams
) -> Iterator[Callable[[Generation], None]]:
    """Traces a call; the block passes the outcome to the yielded function.

    The parent is explicit because a workflow in its own thread has no current span.
    """
    if not (tracing.is_on() or metrics.is_on()):
        yield _ignore
        return
    begun = time.perf_counter()
    about: dict[str, tracing.Value] = {
        **_ABOUT,
        names.MAX_TOKENS: sampling.max_tokens,
        names.TEMPERATURE: sampling.temperature,
        names.INPUT_TOKENS: num_prompt_tokens,
    }
    with tracing.span(OPERATION, parent=parent, kind="client", attributes=about) as span:

        def made(generation: Generation) -> None:
            num_tokens = len(generation.token_ids)
            span.set(names.OUTPUT_TOKENS, num_tokens)
            span.set(names.FINISH_REASON, generation.finish_reason.value)
            metrics.GENERATE_SECONDS.record(time.perf_counter() - begun, _ABOUT)
            tokens = metrics.GENERATE_TOKENS
            tokens.record(num_prompt_tokens, {**_ABOUT, names.TOKEN_TYPE: "input"})
            tokens.record(num_tokens, {**_ABOUT, names.TOKEN_TYPE: "output"})

        yield made


class AttemptOver(asyncio.CancelledError):
    """The attempt's time is over or its lease is lost, so its calls get no more tokens.

    It is not an Exception, so that it also ends a workflow that retries after any Exception.
    """

    def __init__(self) -> None:
        super().__init__("this attempt is over")


class AttemptCalls:
    """Registers the calls in progress of one attempt, on the event loop that makes them.

    After `close` no call begins, and those in progress are cancelled: the engine may hold other
    weights by then.

    calls = AttemptCalls()
    with calls.in_progress():
        generation = await generator.generate(...)
    await calls.close()
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._pending: set[asyncio.Task[object]] = set()
        self._is_closed = False
        self.num_begun = 0
        """Calls that were made, whatever became of them."""
        self.num_answers = 0
        """Answers that were begun, over an address or not."""
        self.num_tokens = 0
        """Tokens of the answers to these calls."""

    @property
    def is_closed(self) -> bool:
        """True if the attempt is over."""
        return self._is_closed

    def require_open(self) -> None:
        """Raises AttemptOver after `close`."""
        if self._is_closed:
            raise AttemptOver

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Registers the current task for the block's call of the engine; `close` may cancel it."""
        task = asyncio.current_task()
        assert task is not None
        self._pending.add(task)
        self.num_begun += 1
        try:
            self.require_open()
            yield
        finally:
            self._pending.discard(task)

    def refuse(self) -> None:
        """Ends the attempt for calls that have not begun."""
        self._is_closed = True

    async def close(self) -> None:
        """Ends the attempt: cancels calls in progress and refuses new ones."""
        self.refuse()
        pending = list(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def awaited(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Awaits a call from any event loop, such as that of a workflow in a thread."""
        if asyncio.get_running_loop() is self._loop:
            return await call
        future = self._submitted(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and self._is_closed:
                raise AttemptOver from None
            future.cancel()
            raise

    def wait_in_thread(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Waits for a call in a thread that is not the event loop's."""
        future = self._submitted(call)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise AttemptOver from None

    def _submitted(
        self, call: Coroutine[object, object, ValueT]
    ) -> "concurrent.futures.Future[ValueT]":
        if self._is_closed:
            call.close()
            raise AttemptOver
        return asyncio.run_coroutine_threadsafe(call, self._loop)


def _with_likeliest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with the pairs that JSON has as lists."""
    likeliest = [[tuple(token) for token in place] for place in values["likeliest"]]
    return {**values, "likeliest": likeliest}


def sampling_from_json(values: Mapping[str, Any]) -> SamplingParams:
    """Returns the settings that `dataclasses.asdict` has written."""
    return SamplingParams(**{**values, "stop": tuple(values["stop"])})


def rater_of(generator: Generator) -> Rater:
    """Returns the engine of a model that scores; raises UserError for one that writes."""
    if isinstance(generator, Rater):
        return generator
    raise UserError(
        "the model writes texts and has no scores: ask another of `explorer.auxiliary_models`, or "
        "say `role: score` of it"
    )


def as_score(logits: Sequence[float], label: int) -> float:
    """Returns the logit of a single label, else the probability of one of several labels.

    Raises: UserError for a label that the model does not have.
    """
    if not -len(logits) <= label < len(logits):
        raise UserError(f"the model that scores has {len(logits)} labels, and no label {label}")
    if len(logits) == 1:
        return logits[0]
    highest = max(logits)
    weights = [math.exp(logit - highest) for logit in logits]
    return weights[label] / sum(weights)
