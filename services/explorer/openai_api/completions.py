"""Requests to continue or score plain text or tokens, and their answers."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from services.explorer.openai_api import fields
from services.explorer.openai_api.chat import ResponseWriter
from services.explorer.openai_api.chat_completions import TextStream, fill_lengths
from services.explorer.openai_api.errors import InvalidApiRequest, OpenAiEnding
from services.explorer.openai_api.fields import MAX_CHOICES, MAX_LOGPROBS, Body
from services.explorer.openai_api.response import (
    check_cacheable,
    finish_reason,
    json_logprob,
    prompt_logprobs_of,
    prompt_tokens,
    response_tokens,
    top_logprobs_of,
    usage,
    usage_of,
    weights_fingerprint,
)
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.generation import ChatTokenizer, GenerationDelta, Likeliest, Prompt, Scores
from trinity.workflows.model import ModelWrapper, OnIndexedDelta

UNSUPPORTED_KEYS = ("suffix", "logit_bias", "use_beam_search", "prompt_embeds")
"""Keys besides those in `fields` that would change the answer but are not supported."""
MAX_ANSWERS = 1024
TOKEN_LIMIT = 1 << 31
PromptInput = str | tuple[int, ...]
"""A text or its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """The supported part of a completion request."""

    prompts: tuple[PromptInput, ...]
    num_choices: int
    """Number of answers for each prompt."""
    sampling: SamplingOverrides
    logprobs: int | None
    """Number of likeliest tokens to report at each position; None for no log-probabilities."""
    prompt_logprobs: int | None
    """The same for the prompt."""
    echoes: bool
    """True if each answer begins with the prompt."""
    wants_token_ids: bool
    streams: bool
    includes_usage: bool
    model: str
    """The requested model name, or an empty text."""
    seed: int | None

    @property
    def generates(self) -> bool:
        """True if tokens are generated; otherwise the prompts are only scored."""
        return self.sampling.get("max_tokens") != 0

    @property
    def num_scored(self) -> int | None:
        """Number of likeliest tokens to find at prompt positions; None if it is not scored."""
        counts = (self.prompt_logprobs, self.logprobs if self.echoes else None)
        return max((count for count in counts if count is not None), default=None)


def read_completion(payload: object) -> CompletionRequest:
    """Reads a request; raises InvalidApiRequest naming the key."""
    body = fields.read_body(payload, UNSUPPORTED_KEYS)
    logprobs = None
    sampling = fields.read_sampling(body, least_tokens=0)
    if schema := fields.read_schema(body):
        sampling["json_schema"] = schema
    if body.get("logprobs") is not None:
        logprobs = fields.read_int(body, "logprobs", 0, least=0, most=MAX_LOGPROBS)
        sampling["logprobs"] = logprobs
    request = CompletionRequest(
        prompts=_prompts(body.get("prompt")),
        num_choices=fields.read_int(body, "n", 1, most=MAX_CHOICES),
        sampling=sampling,
        logprobs=logprobs,
        prompt_logprobs=fields.read_prompt_logprobs(body),
        echoes=fields.read_flag(body, "echo"),
        wants_token_ids=fields.read_flag(body, "return_token_ids"),
        streams=fields.read_flag(body, "stream"),
        includes_usage=fields.includes_usage(body),
        model=fields.read_model(body),
        seed=fields.read_seed(body),
    )
    _check(request, body)
    return request


def _check(request: CompletionRequest, body: Body) -> None:
    if fields.read_int(body, "best_of", request.num_choices) != request.num_choices:
        raise InvalidApiRequest("`best_of` is `n` here: leave it out", param="best_of")
    if len(request.prompts) * request.num_choices > MAX_ANSWERS:
        raise InvalidApiRequest(
            f"`n` for each prompt makes more than {MAX_ANSWERS} answers: ask in several requests",
            param="n",
        )
    if request.streams and request.echoes:
        raise InvalidApiRequest("`echo` cannot be streamed: leave out `stream`", param="echo")
    if not request.generates and (request.num_scored is None or request.num_choices > 1):
        raise InvalidApiRequest(
            "`max_tokens` may be 0 only if the prompt's log-probabilities are requested, once: "
            "with `echo` and `logprobs`, or with `prompt_logprobs`, and `n` 1",
            param="max_tokens",
        )


def _prompts(value: object) -> tuple[PromptInput, ...]:
    if isinstance(value, str) or _are_tokens(value):
        return (_prompt(value, "prompt"),)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ANSWERS:
        raise InvalidApiRequest(
            f"`prompt` is neither a text nor tokens, nor a list of 1 to {MAX_ANSWERS} such",
            param="prompt",
        )
    return tuple(_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))


def _prompt(value: object, where: str) -> PromptInput:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and _are_tokens(value):
        return tuple(value)
    raise InvalidApiRequest(f"`{where}` is neither a text nor a list of tokens", param=where)


def _are_tokens(value: object) -> bool:
    """Excludes bool, a subclass of int, and numbers beyond the 32 bits of tokenizers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
        and all(0 <= token < TOKEN_LIMIT for token in value)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A token with the log-probabilities at its position."""

    token: int
    logprob: float | None
    """None for the first token of a prompt."""
    likeliest: list[tuple[int, float]] = field(default_factory=list)


def positions_of(
    tokens: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest
) -> list[Position]:
    """Returns the positions of tokens; `likeliest` is empty if it was not requested."""
    others = likeliest or [[]] * len(tokens)
    return [
        Position(token=token, logprob=logprob, likeliest=tops)
        for token, logprob, tops in zip(tokens, logprobs, others, strict=True)
    ]


def legacy_logprobs(
    positions: Sequence[Position], num_likeliest: int, tokenizer: ChatTokenizer, begin: int = 0
) -> JsonObject:
    """Returns the lists; offsets count the tokens' decoded texts, from `begin` on."""
    texts = [tokenizer.decode([position.token]) for position in positions]
    offsets: list[JsonValue] = []
    for text in texts:
        offsets.append(begin)
        begin += len(text)
    top: list[JsonValue] = [_top(position, num_likeliest, tokenizer) for position in positions]
    return {
        "tokens": [*texts],
        "token_logprobs": [
            None if position.logprob is None else json_logprob(position.logprob)
            for position in positions
        ],
        "top_logprobs": top if num_likeliest else None,
        "text_offset": offsets,
    }


def _top(position: Position, count: int, tokenizer: ChatTokenizer) -> JsonValue:
    """Returns log-probabilities by token text; the token itself is included."""
    if position.logprob is None:
        return None
    pairs = [*position.likeliest[:count], (position.token, position.logprob)]
    return {tokenizer.decode([token]): json_logprob(logprob) for token, logprob in pairs}


class CompletionCall:
    """Answers one completion request."""

    def __init__(self, *, request: CompletionRequest, writer: ResponseWriter) -> None:
        self._request = request
        self._writer = writer
        self.model, self.seed, self.streams = request.model, request.seed, request.streams
        self.has_logprobs = request.logprobs is not None or request.num_scored is not None
        self.json_schema = request.sampling.get("json_schema", "")
        self.num_characters = sum(map(len, request.prompts))

    def encode_prompts(self) -> None:
        """Encodes the texts into the tokenizer's cache; tokens stay as they are."""
        for prompt in self._request.prompts:
            if isinstance(prompt, str):
                check_cacheable(self._writer.tokenizer.encode(prompt))

    def told_of(self, _: Experience) -> JsonValue:
        """Returns None: the client gets tokens."""
        return None

    def tell_again(self, answer: Experience, told: JsonValue) -> None:
        """Does nothing: the same tokens are told in the same way."""

    async def complete_response(self, model: ModelWrapper) -> Callable[[], JsonObject]:
        """Generates, and returns the writer of the complete answer."""
        request = self._request
        if not request.generates:
            return await self._score_only(model)
        answers = await model.generate_async(
            request.prompts, n=request.num_choices, **sampling_of(request, model)
        )
        scores: list[Scores | None] = [None] * len(request.prompts)
        if request.num_scored is not None:
            prompts = [prompt_tokens(answer) for answer in answers[:: request.num_choices]]
            scores = [*await self._scores(model, prompts)]

        def write() -> JsonObject:
            choices = [
                self._choice(index, answer, scores[index // request.num_choices])
                for index, answer in enumerate(answers)
            ]
            return self._response(model, choices, usage_of(answers, request.num_choices))

        return write

    def stream_writer(self, model: ModelWrapper) -> "CompletionStreamWriter":
        """Returns the writer of a streamed answer."""
        return CompletionStreamWriter(request=self._request, writer=self._writer, model=model)

    async def _score_only(self, model: ModelWrapper) -> Callable[[], JsonObject]:
        """Writes only the prompts' log-probabilities, without generating or recording tokens."""
        prompts = [model.encode(prompt) for prompt in self._request.prompts]
        scores = await self._scores(model, [prompt.token_ids for prompt in prompts])

        def write() -> JsonObject:
            choices = [
                self._prompt_choice(index, prompt, score)
                for index, (prompt, score) in enumerate(zip(prompts, scores, strict=True))
            ]
            num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
            return self._response(model, choices, usage(num_tokens, 0))

        return write

    async def _scores(self, model: ModelWrapper, prompts: Sequence[list[int]]) -> list[Scores]:
        count = self._request.num_scored or 0
        return await model.score_all_async(prompts, num_likeliest=count)

    def _choice(self, index: int, answer: Experience, scores: Scores | None) -> JsonObject:
        request = self._request
        prompt = Prompt(text=answer.sequence.prompt_text, token_ids=prompt_tokens(answer))
        choice = self._prompt_choice(index, prompt, scores)
        positions = self._prompt_positions(prompt, scores)
        positions += positions_of(
            response_tokens(answer),
            answer.sequence.rollout_logprobs.tolist(),
            top_logprobs_of(answer),
        )
        choice["text"] = (prompt.text if request.echoes else "") + answer.response_text
        choice["finish_reason"] = finish_reason(answer)
        choice["logprobs"] = self._logprobs(positions)
        if request.wants_token_ids:
            choice["token_ids"] = [*response_tokens(answer)]
        return choice

    def _prompt_choice(self, index: int, prompt: Prompt, scores: Scores | None) -> JsonObject:
        """Returns the prompt's part of a choice, which does not depend on the response."""
        request = self._request
        choice: JsonObject = {
            "index": index,
            "text": prompt.text if request.echoes else "",
            "finish_reason": "length",
            "logprobs": self._logprobs(self._prompt_positions(prompt, scores)),
        }
        if request.prompt_logprobs is not None and scores is not None:
            logprobs = prompt_logprobs_of(prompt.token_ids, scores, self._writer.tokenizer)
            choice["prompt_logprobs"] = [*logprobs]
        if request.wants_token_ids:
            choice |= {"prompt_token_ids": [*prompt.token_ids], "token_ids": []}
        return choice

    def _prompt_positions(self, prompt: Prompt, scores: Scores | None) -> list[Position]:
        if not self._request.echoes or scores is None:
            return []
        first = Position(token=prompt.token_ids[0], logprob=None)
        return [first, *positions_of(prompt.token_ids[1:], scores.logprobs, scores.likeliest)]

    def _logprobs(self, positions: Sequence[Position]) -> JsonObject | None:
        if self._request.logprobs is None:
            return None
        return legacy_logprobs(positions, self._request.logprobs, self._writer.tokenizer)

    def _response(
        self, model: ModelWrapper, choices: list[JsonObject], tokens: JsonObject
    ) -> JsonObject:
        return {**_head(self._writer, model), "choices": [*choices], "usage": tokens}


def sampling_of(request: CompletionRequest, model: ModelWrapper) -> SamplingOverrides:
    """Returns the sampling parameters of a request; raises InvalidApiRequest for a long prompt."""
    prompts = [model.encode(prompt) for prompt in request.prompts]
    return fill_lengths(request.sampling, model, prompts, param="prompt")


class CompletionStreamWriter(OpenAiEnding):
    """Writes the events of a completion."""

    def __init__(
        self, *, request: CompletionRequest, writer: ResponseWriter, model: ModelWrapper
    ) -> None:
        self._request = request
        self._writer = writer
        self._model = model
        count = len(request.prompts) * request.num_choices
        self._sampling = sampling_of(request, model)
        stop = model.stop_texts(request.sampling)
        self._texts = [TextStream(writer.tokenizer.decode, stop) for _ in range(count)]
        self._offsets = [0] * count

    @cached_property
    def _head(self) -> JsonObject:
        return _head(self._writer, self._model)

    async def generate(self, on_delta: OnIndexedDelta | None) -> list[Experience]:
        """Generates the answers, and passes their deltas to `on_delta`."""
        request = self._request
        return await self._model.generate_async(
            request.prompts, n=request.num_choices, on_delta=on_delta, **self._sampling
        )

    def opening_events(self) -> Iterator[JsonObject]:
        """Yields no events: the text comes first."""
        return iter(())

    def delta_events(self, index: int, delta: GenerationDelta) -> Iterator[JsonObject]:
        """Yields the part of the answer that is certain by now."""
        text = self._texts[index].feed_tokens(delta.token_ids)
        logprobs = None
        if self._request.logprobs is not None:
            positions = positions_of(delta.token_ids, delta.logprobs, delta.likeliest)
            logprobs = legacy_logprobs(
                positions,
                self._request.logprobs,
                self._writer.tokenizer,
                begin=self._offsets[index],
            )
            self._offsets[index] += len(self._writer.tokenizer.decode(delta.token_ids))
        if text or logprobs or self._request.wants_token_ids:
            yield self._chunk(index, text, logprobs=logprobs, token_ids=delta.token_ids)

    def answer_end_events(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of an answer and its finish reason."""
        rest = self._texts[index].end(answer.response_text)
        yield self._chunk(index, rest, reason=finish_reason(answer))

    def closing_events(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the token usage, if it was requested."""
        if self._request.includes_usage:
            tokens = usage_of(answers, self._request.num_choices)
            yield {**self._head, "choices": [], "usage": tokens}

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        logprobs: JsonObject | None = None,
        token_ids: Sequence[int] = (),
        reason: str | None = None,
    ) -> JsonObject:
        choice: JsonObject = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        if self._request.wants_token_ids:
            choice["token_ids"] = [*token_ids]
        more: JsonObject = {"usage": None} if self._request.includes_usage else {}
        return {**self._head, "choices": [choice], **more}


def _head(writer: ResponseWriter, model: ModelWrapper) -> JsonObject:
    return {
        "id": f"cmpl-{model.answer_id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": writer.model_path,
        "system_fingerprint": weights_fingerprint(*model.weights),
    }
