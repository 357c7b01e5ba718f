"""The model as the workflow of one attempt calls it."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack, cast

import numpy as np

from trinity.errors import UserError
from trinity.runtime.telemetry import tracing
from trinity.types import Experience, FloatArray, JsonObject, SamplingParams
from trinity.workflows.experience_builder import (
    CallHistory,
    ExperienceBuilder,
    RatioWarnings,
    SamplingOverrides,
    apply_overrides,
)
from trinity.workflows.generation import (
    AttemptCalls,
    ChatTokenizer,
    Generation,
    GenerationDelta,
    Generator,
    HttpModelAccess,
    ModelLimits,
    OnDelta,
    Prompt,
    Scores,
    ValueT,
    trace_generation,
)
from trinity.workflows.generation import AttemptOver as AttemptOver  # workflows may catch it
from trinity.workflows.messages import Message, as_mapping, for_template

logger = logging.getLogger(__name__)

OnIndexedDelta = Callable[[int, GenerationDelta], None]
"""Receives the index of an answer and its next tokens."""
LOGGED_CHARACTERS = 400
"""Text of a prompt's end and of a response in a line at level DEBUG."""


class ModelWrapper(HttpModelAccess):
    """The model for one attempt at a run: fixed weights, and a separate seed for each call.

    Calls are numbered in the order in which they are made. The number determines the seed, so a
    run that makes its calls in the same order gets the same tokens again. After `close` the engine
    may hold other weights, so calls are refused with AttemptOver.
    """

    def __init__(
        self,
        *,
        generator: Generator,
        tokenizer: ChatTokenizer,
        limits: ModelLimits,
        sampling: SamplingParams,
        weights: tuple[int, int],
        seed_of_call: Callable[[int], int],
        keeps_history: bool = False,
        auxiliary_name: str = "",
        ratio_warnings: RatioWarnings | None = None,
    ) -> None:
        self._generator = generator
        self._tokenizer = tokenizer
        self._limits = limits
        self._sampling = sampling
        self._version, self._incarnation = weights
        self._seed_of_call = seed_of_call
        self._num_calls = 0
        self._tools: dict[bytes, tuple[JsonObject, ...]] = {}
        self._calls = AttemptCalls()
        self._span_context = tracing.current()
        self._history = CallHistory() if keeps_history else None
        self._ratio_warnings = ratio_warnings
        self._builder = ExperienceBuilder(
            tokenizer=tokenizer,
            limits=limits,
            version=self._version,
            incarnation=self._incarnation,
            auxiliary_name=auxiliary_name,
        )

    @property
    def model_version(self) -> int:
        """Version of the weights that this run uses."""
        return self._version

    @property
    def limits(self) -> ModelLimits:
        """Limits of calls."""
        return self._limits

    def stop_texts(self, sampling: SamplingOverrides) -> tuple[str, ...]:
        """Returns the texts at which a response to such a call ends.

        Raises: UserError, as the call would.
        """
        return apply_overrides(self._sampling, sampling).stop

    async def chat_async(
        self,
        messages: Sequence[Message],
        *,
        n: int = 1,
        tools: Sequence[JsonObject] = (),
        on_delta: OnIndexedDelta | None = None,
        **sampling: Unpack[SamplingOverrides],
    ) -> list[Experience]:
        """Returns `n` answers to a chat; a last message of the assistant is continued.

        `tools` are for the chat template; `on_delta` receives the answers as they are made.
        """
        prompt = self._tokenizer.encode_chat(_as_mappings(messages), tools)
        answers = await self._sample(prompt, n, sampling, on_delta)
        if tools:
            sha256 = _tools_hash(tools)
            self._tools[sha256] = tuple(tools)
            for answer in answers:
                answer.tools_sha256 = sha256
        return answers

    def was_asked(self, messages: Sequence[Message], answer: Experience) -> bool:
        """Returns true if an answer is the answer to exactly these messages, with its call's tools.

        Messages are compared as tokens, as they are and as the API passes them on.
        """
        sequence = answer.sequence
        prompt = sequence.tokens[: sequence.prompt_length].tolist()
        return self.encodes_to(messages, prompt, answer.tools_sha256)

    def encodes_to(
        self, messages: Sequence[Message], prompt: list[int], tools_sha256: bytes
    ) -> bool:
        """Returns true if a chat, with tools of an earlier call, is this prompt."""
        tools = self._tools.get(tools_sha256, ())
        given = _as_mappings(messages)
        plain = [for_template(message) for message in given]
        for asked in (given, plain) if plain != given else (plain,):
            try:
                encoded = self._tokenizer.encode_chat(asked, tools).token_ids if asked else []
            except UserError:  # the chat template does not take them
                continue
            if encoded == prompt:
                return True
        return False

    async def generate_async(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        n: int = 1,
        on_delta: OnIndexedDelta | None = None,
        **sampling: Unpack[SamplingOverrides],
    ) -> list[Experience]:
        """Returns `n` continuations of each prompt (a text or tokens), in the prompts' order."""
        encoded = [self.encode(prompt) for prompt in prompts]
        samples = await asyncio.gather(
            *(
                self._sample(prompt, n, sampling, _offset_index(on_delta, index * n))
                for index, prompt in enumerate(encoded)
            )
        )
        return [experience for group in samples for experience in group]

    async def score_async(self, tokens: Sequence[int], *, num_likeliest: int = 0) -> Scores:
        """Scores each of the tokens but the first, after those before it.

        Scores are at temperature 1; nothing is generated or recorded, and no seed is used.
        """
        [scores] = await self.score_all_async([tokens], num_likeliest=num_likeliest)
        return scores

    async def score_all_async(
        self, sequences: Sequence[Sequence[int]], *, num_likeliest: int = 0
    ) -> list[Scores]:
        """Scores several sequences; see `score_async`."""
        self._calls.require_open()
        return await asyncio.gather(*(self._score(tokens, num_likeliest) for tokens in sequences))

    async def logprobs_async(
        self, tokens: Sequence[int], temperature: float | None = None
    ) -> FloatArray:
        """Returns log-probabilities of all tokens but the first; see `score_async`."""
        if temperature not in (None, 1.0):
            raise UserError(
                f"log-probabilities of given tokens are those at temperature 1, not {temperature}"
            )
        return np.array((await self.score_async(tokens)).logprobs, dtype=np.float32)

    def chat(
        self, messages: Sequence[Message], *, n: int = 1, **sampling: Unpack[SamplingOverrides]
    ) -> list[Experience]:
        """Does the same as `chat_async`, for workflows that run in a thread."""
        return self.wait_in_thread(self.chat_async(messages, n=n, **sampling))

    def logprobs(self, tokens: Sequence[int], temperature: float | None = None) -> FloatArray:
        """Does the same as `logprobs_async`, for workflows that run in a thread."""
        return self.wait_in_thread(self.logprobs_async(tokens, temperature))

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        n: int = 1,
        **sampling: Unpack[SamplingOverrides],
    ) -> list[Experience]:
        """Does the same as `generate_async`, for workflows that run in a thread."""
        return self.wait_in_thread(self.generate_async(prompts, n=n, **sampling))

    @property
    def weights(self) -> tuple[int, int]:
        """Version and incarnation of the weights."""
        return self._version, self._incarnation

    @property
    def is_closed(self) -> bool:
        """True if the attempt is over."""
        return self._calls.is_closed

    @property
    def sampling(self) -> SamplingParams:
        """Sampling of calls that override nothing."""
        return self._sampling

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def name(self) -> str:
        """Name of an auxiliary model; empty for the policy."""
        return self._builder.auxiliary_name

    def keep_history(self) -> None:
        """Records answers from now on, whether or not the configuration says so."""
        self._history = self._history or CallHistory()

    def encode(self, prompt: str | Sequence[int]) -> Prompt:
        """Encodes a text; tokens stay as they are."""
        if isinstance(prompt, str):
            encoded = self._tokenizer.encode(prompt)
        else:
            encoded = Prompt(text=self.text_of(prompt), token_ids=[int(token) for token in prompt])
        if not encoded.token_ids:
            raise UserError("a prompt has no tokens: give at least one")
        return encoded

    def text_of(self, tokens: Sequence[int]) -> str:
        """Decodes tokens with the model's tokenizer, without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens])

    def get_message_token_len(self, messages: Sequence[Message]) -> int:
        """Returns the number of tokens of a chat as a prompt."""
        return len(self._tokenizer.encode_chat(messages).token_ids)

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Returns the answers to all calls of this run so far, over HTTP or not, in call order.

        Raises: UserError when calls are not recorded.
        """
        if self._history is None:
            raise UserError(
                "calls of the model are not recorded: set "
                "`explorer.rollout_model.enable_history: true`"
            )
        return self._history.collect(clear=clear_history)

    async def close(self) -> None:
        """Ends the attempt: cancels calls in progress and refuses new ones."""
        await self._calls.close()

    async def await_elsewhere(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Awaits a call of this model from another event loop, that of a workflow in a thread."""
        return await self._calls.await_elsewhere(call)

    def wait_in_thread(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Waits for a call of this model, in a thread that is not the event loop's."""
        return self._calls.wait_in_thread(call)

    async def _sample(
        self,
        prompt: Prompt,
        n: int,
        overrides: SamplingOverrides,
        on_delta: OnIndexedDelta | None = None,
    ) -> list[Experience]:
        self._calls.require_open()
        merged = apply_overrides(self._sampling, overrides)
        if self._ratio_warnings is not None:
            self._ratio_warnings.check(overrides)
        numbers = range(self._num_calls, self._num_calls + n)
        # Before any await, so that calls are numbered in the order in which they are made.
        self._num_calls += n
        calls = [replace(merged, seed=self._seed_of_call(number)) for number in numbers]
        if len(prompt.token_ids) > overrides.get(
            "max_prompt_tokens", self._limits.max_prompt_tokens
        ):
            answers = [self._builder.from_long_prompt(prompt, sampling) for sampling in calls]
        else:
            least = overrides.get("min_tokens", self._limits.min_tokens)
            listeners = [on_delta and partial(on_delta, index) for index in range(n)]
            answers = await asyncio.gather(
                *(
                    self._sample_one(prompt, sampling, least, on_delta)
                    for sampling, on_delta in zip(calls, listeners, strict=True)
                )
            )
        if self._history is not None:
            self._history.record(zip(numbers, answers, strict=True))
        return answers

    async def _sample_one(
        self, prompt: Prompt, sampling: SamplingParams, min_tokens: int, on_delta: OnDelta | None
    ) -> Experience:
        room = self._limits.max_model_len - len(prompt.token_ids)
        if room < 1:
            raise UserError(
                f"a prompt of {len(prompt.token_ids)} tokens leaves no room for a response "
                f"within model.max_model_len {self._limits.max_model_len}"
            )
        sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        least = min(min_tokens, sampling.max_tokens)
        generation = await self._generate(prompt, sampling, least, on_delta)
        return self._builder.from_generation(prompt, generation, sampling)

    async def _generate(
        self, prompt: Prompt, sampling: SamplingParams, min_tokens: int, on_delta: OnDelta | None
    ) -> Generation:
        with (
            self._calls.in_progress(),
            trace_generation(self._span_context, len(prompt.token_ids), sampling) as made,
        ):
            generation = await self._generator.generate(
                prompt.token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
            )
            made(generation)
            _log_answer(self._tokenizer, prompt, generation)
            return generation

    async def _score(self, tokens: Sequence[int], num_likeliest: int) -> Scores:
        token_ids = [int(token) for token in tokens]
        limit = self._limits.max_model_len
        if not 1 <= len(token_ids) <= limit:
            raise UserError(
                f"log-probabilities are given for 1 to {limit} tokens (`max_model_len`), "
                f"not for {len(token_ids)}"
            )
        with self._calls.in_progress():
            if len(token_ids) == 1:
                return Scores(logprobs=[])
            return await self._generator.score(token_ids, num_likeliest=num_likeliest)


def _offset_index(on_delta: OnIndexedDelta | None, begin: int) -> OnIndexedDelta | None:
    """Offsets the index of answers by those of earlier prompts."""
    if on_delta is None:
        return None
    return lambda index, delta: on_delta(begin + index, delta)


def _as_mappings(messages: Sequence[Message]) -> list[Message]:
    """Returns messages as dictionaries, of which objects of clients are made some."""
    return cast(list[Message], [as_mapping(message) for message in messages])


def _tools_hash(tools: Sequence[JsonObject]) -> bytes:
    return hashlib.sha256(json.dumps(list(tools), sort_keys=True).encode()).digest()


def _log_answer(tokenizer: ChatTokenizer, prompt: Prompt, generation: Generation) -> None:
    """Shows a call and its answer at level DEBUG; decoding text costs time at no other."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "the model answered",
            extra={
                "prompt_tokens": len(prompt.token_ids),
                "response_tokens": len(generation.token_ids),
                "finish_reason": generation.finish_reason,
                "prompt_end": prompt.text[-LOGGED_CHARACTERS:],
                "response": tokenizer.decode(generation.token_ids)[:LOGGED_CHARACTERS],
            },
        )
