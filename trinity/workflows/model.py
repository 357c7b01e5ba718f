"""The model as the workflow of one attempt calls it."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from trinity.data.images import part_of
from trinity.errors import UserError
from trinity.runtime.telemetry import tracing
from trinity.runtime.tensors import tensor_of
from trinity.types import BlobRef, Experience, FloatArray, JsonObject, SamplingParams
from trinity.workflows.answers import TurnNode
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
    ModelLimits,
    OnDelta,
    Prompt,
    PromptImages,
    Scores,
    trace_generation,
)
from trinity.workflows.generation import AttemptOver as AttemptOver  # workflows may catch it
from trinity.workflows.messages import as_mappings
from trinity.workflows.model_access import RatingModel, checked_messages, sampling_of
from trinity.workflows.samples import Transcript, transcript_samples

logger = logging.getLogger(__name__)

OnIndexedDelta = Callable[[int, GenerationDelta], None]
"""Receives the index of an answer and its next tokens."""
Prompts = str | Sequence[str | Sequence[int]]
LOGGED_CHARACTERS = 400
"""Text of a prompt's end and of a response in a line at level DEBUG."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The number of answers that a call wants, their sampling, and who listens to them."""

    n: int
    sampling: SamplingOverrides
    on_delta: OnIndexedDelta | None = None

    @classmethod
    def of(
        cls, n: int | None, on_delta: OnIndexedDelta | None, given: Mapping[str, Any]
    ) -> "CallOptions":
        """Returns the options of a call by its arguments; raises UserError for unknown ones."""
        return cls(1 if n is None else int(n), sampling_of(given), on_delta)

    def listener(self, index: int) -> OnDelta | None:
        """Returns who listens to the answer with this number."""
        return self.on_delta and partial(self.on_delta, index)


class ImageSink(Protocol):
    """Stores images of a tenant."""

    async def put(self, content: bytes) -> BlobRef:
        """Stores an image; raises BadImage, QuotaExceeded, Unavailable."""
        ...


class ModelWrapper(RatingModel):
    """The model for one attempt at a run: fixed weights, and a separate seed for each call.

        answers = self.model.chat([{"role": "user", "content": "2+2?"}], n=2, temperature=0.5)
        answers[0].response_text

    Each call has two forms: one for code in a thread, and one with `_async`, for any event loop.
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
        model_path: str = "",
        images: PromptImages | None = None,
    ) -> None:
        self.media: ImageSink | None = None  # of requests to the model's address
        self._generator, self._tokenizer = generator, tokenizer
        self._limits, self._sampling = limits, sampling
        self._images, self._loading = images, asyncio.Lock()
        self._version, self._incarnation = weights
        self._seed_of_call = seed_of_call
        self.max_answers: int | None = None
        """Answers after which calls are refused."""
        self.max_answered_tokens: int | None = None
        """Tokens of recorded answers after which calls are refused."""
        self._tools: dict[bytes, tuple[JsonObject, ...]] = {}
        self._calls, self._span_context = AttemptCalls(), tracing.current()
        self._history = CallHistory() if keeps_history else None
        self._turns: dict[int, TurnNode] = {}
        self.committed_answers: Callable[[], Awaitable[list[Experience]]] = _nothing_committed
        self._ratio_warnings = ratio_warnings
        self._name, self._model_path = auxiliary_name, model_path
        self._state = {}
        self._builder = ExperienceBuilder(
            tokenizer=tokenizer,
            limits=limits,
            version=self._version,
            incarnation=self._incarnation,
            auxiliary_name=auxiliary_name,
        )

    def stop_texts(self, sampling: SamplingOverrides) -> tuple[str, ...]:
        """Returns the texts at which a response to such a call ends.

        Raises: UserError, as the call would.
        """
        return apply_overrides(self._sampling, sampling).stop

    def chat(self, messages: Sequence[Any], **kwargs: Any) -> list[Experience]:
        """Returns `n` answers to a chat; see `chat_async`."""
        return self.wait_in_thread(self.chat_async(messages, **kwargs))

    async def chat_async(
        self,
        messages: Sequence[Any],
        *,
        n: int | None = 1,
        tools: Sequence[JsonObject] | None = None,
        on_delta: OnIndexedDelta | None = None,
        **sampling: Any,
    ) -> list[Experience]:
        """Returns `n` answers to a chat; a last message of the assistant is continued.

        `tools` are for the chat template; `on_delta` receives the answers as they are made.
        """
        given, options = checked_messages(messages), CallOptions.of(n, on_delta, sampling)
        return await self._calls.awaited(self.answer_chat(given, list(tools or ()), options))

    def generate(self, prompts: Prompts, **kwargs: Any) -> list[Experience]:
        """Returns `n` continuations of each prompt; see `generate_async`."""
        return self.wait_in_thread(self.generate_async(prompts, **kwargs))

    async def generate_async(
        self,
        prompts: Prompts,
        *,
        n: int | None = 1,
        on_delta: OnIndexedDelta | None = None,
        **sampling: Any,
    ) -> list[Experience]:
        """Returns `n` continuations of each prompt (a text or tokens), in the prompts' order."""
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        options = CallOptions.of(n, on_delta, sampling)
        return await self._calls.awaited(self.answer_prompts(given, options))

    def logprobs(self, tokens: Any, temperature: float | None = None) -> Any:
        """Returns log-probabilities of all tokens but the first, as a tensor."""
        return tensor_of(self.wait_in_thread(self.token_logprobs(tokens, temperature)))

    async def logprobs_async(self, tokens: Any, temperature: float | None = None) -> Any:
        """Returns log-probabilities of all tokens but the first, as a tensor."""
        return tensor_of(await self._calls.awaited(self.token_logprobs(tokens, temperature)))

    async def token_logprobs(
        self,
        tokens: Sequence[int],
        temperature: float | None = None,
        images: Sequence[BlobRef] = (),
    ) -> FloatArray:
        """Returns log-probabilities as an array, on the loop of the model; see `score_async`.

        `images` are those whose tokens are among them, in order.
        """
        if temperature not in (None, 1.0):
            raise UserError(
                f"log-probabilities of given tokens are those at temperature 1, not {temperature}"
            )
        scores = await self.score_shown(tokens, images=[part_of(image) for image in images])
        return np.array(scores.logprobs, dtype=np.float32)

    def convert_messages_to_experience(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """Returns the sample of a transcript: the engine's tokens wherever it answered.

        If the template does not repeat earlier answers, the rest is in `further`, as more samples.
        A temperature applies to transcripts without an answer of the model, and must be 1.
        """
        return self.wait_in_thread(
            self.convert_messages_to_experience_async(messages, tools, temperature)
        )

    async def convert_messages_to_experience_async(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; see `convert_messages_to_experience`."""
        said = Transcript(list(messages), list(tools or []), temperature)
        answers = [answer.origin or answer for answer in self.answers]
        samples = await self._calls.awaited(transcript_samples(self, answers, said))
        for sample in samples:
            sample.origin = sample.copied()
            sample.messages = list(messages)
        samples[0].further = samples[1:]
        return samples[0]

    async def answer_chat(
        self, messages: Sequence[Any], tools: Sequence[JsonObject], options: "CallOptions"
    ) -> list[Experience]:
        """Answers a chat, on the loop of the model."""
        prompt = self._tokenizer.encode_chat(await self.load_images(as_mappings(messages)), tools)
        answers = await self._sample(prompt, options)
        if tools:
            sha256 = _tools_hash(tools)
            self._tools[sha256] = tuple(tools)
            for answer in answers:
                _set_tools(answer, sha256)
        return answers

    async def answer_prompts(
        self, prompts: Sequence[str | Sequence[int]], options: "CallOptions"
    ) -> list[Experience]:
        """Continues prompts, on the loop of the model."""
        encoded = [self.encode(prompt) for prompt in prompts]
        samples = await asyncio.gather(
            *(self._sample(prompt, options, i * options.n) for i, prompt in enumerate(encoded))
        )
        return [experience for group in samples for experience in group]

    async def score_async(self, tokens: Sequence[int], *, num_likeliest: int = 0) -> Scores:
        """Scores each of the tokens but the first, after those before it.

        Scores are at temperature 1. No tokens are generated or recorded, and no seed is used.
        """
        [scores] = await self.score_all_async([tokens], num_likeliest=num_likeliest)
        return scores

    async def score_all_async(
        self, sequences: Sequence[Sequence[int]], *, num_likeliest: int = 0
    ) -> list[Scores]:
        """Scores several sequences; see `score_async`."""
        return await asyncio.gather(*(self.score_shown(own, num_likeliest) for own in sequences))

    def keep_history(self) -> None:
        """Records answers from now on, whether or not the configuration says so."""
        self._history = self._history or CallHistory()

    @property
    def history(self) -> list[Experience]:
        """The answers since the history was cleared."""
        return self.extract_experience_from_history(clear_history=False)

    @property
    def answers(self) -> list[Experience]:
        """All answers of this attempt, also those that were taken out of the history."""
        return [] if self._history is None else self._history.all()

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

    @property
    def session_turns(self) -> list[TurnNode]:
        """The answers to all calls of this attempt over its address, in the order of the calls."""
        return [self._turns[number] for number in sorted(self._turns)]

    async def clean_workflow_state(self) -> None:
        """Forgets the state and the history."""
        self._state.clear()
        self.extract_experience_from_history()

    async def close(self) -> None:
        """Ends the attempt: cancels calls in progress and refuses new ones."""
        await self._calls.close()

    async def _sample(
        self, prompt: Prompt, options: "CallOptions", begin: int = 0
    ) -> list[Experience]:
        """Answers a prompt; `begin` is the number of answers to earlier prompts of the call."""
        merged, numbers = self._begin_call(options), self._new_numbers(options.n)
        calls = [replace(merged, seed=self._seed_of_call(number)) for number in numbers]
        answers = await self._draw(prompt, calls, options, begin)
        self._record(numbers, answers)
        return answers

    def _begin_call(self, options: "CallOptions") -> SamplingParams:
        """Checks a call; returns its sampling."""
        self._calls.require_open()
        merged = apply_overrides(self._sampling, options.sampling)
        if self._ratio_warnings is not None:
            self._ratio_warnings.check(options.sampling)
        return merged

    def _new_numbers(self, count: int) -> range:
        """Returns the numbers of new answers, in the order of calls if no await precedes this.

        Raises: UserError if the run may not have so many more.
        """
        numbers = range(self._calls.num_answers, self._calls.num_answers + count)
        _check_limits(self, numbers)
        self._calls.num_answers += count
        return numbers

    async def _draw(
        self, prompt: Prompt, calls: Sequence[SamplingParams], options: "CallOptions", begin: int
    ) -> list[Experience]:
        """Generates an answer for each of these parameters."""
        overrides, limit = options.sampling, self._limits.max_prompt_tokens
        if len(prompt.token_ids) > overrides.get("max_prompt_tokens", limit):
            answers = [self._builder.from_long_prompt(prompt, sampling) for sampling in calls]
        else:
            least = overrides.get("min_tokens", self._limits.min_tokens)
            listeners = [options.listener(begin + index) for index in range(len(calls))]
            answers = await asyncio.gather(
                *(
                    self._sample_one(prompt, sampling, least, on_delta)
                    for sampling, on_delta in zip(calls, listeners, strict=True)
                )
            )
        for answer in answers:
            answer.origin = answer.copied()
        return list(answers)

    def _record(self, numbers: Sequence[int], answers: Sequence[Experience]) -> None:
        if self._history is not None:
            self._history.record(zip(numbers, answers, strict=True))

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
                await self.shown(prompt), sampling, min_tokens=min_tokens, on_delta=on_delta
            )
            made(generation)
            self._calls.num_tokens += len(generation.token_ids)
            _log_answer(self._tokenizer, prompt, generation)
            return generation


def _check_limits(model: ModelWrapper, numbers: range) -> None:
    """Raises UserError if answers of these numbers are beyond what their run may have."""
    if not numbers:
        return
    if model.max_answers is not None and numbers.stop > model.max_answers:
        raise UserError(f"the model has given this run all of its {model.max_answers} answers")
    if (most := model.max_answered_tokens) is not None:
        given = sum(answer.sequence.response_length for answer in model.answers)
        if given >= most:
            raise UserError(f"the model has given this run {given} tokens, and {most} are all")


async def _nothing_committed() -> list[Experience]:
    """The answers that a client has committed as a run; replaced where there are some."""
    raise UserError("this run has no calls of a client: give the taskset `storage_type: queue`")


def _set_tools(answer: Experience, sha256: bytes) -> None:
    for made in (answer, answer.origin):
        if made is not None:
            made.tools_sha256 = sha256


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
