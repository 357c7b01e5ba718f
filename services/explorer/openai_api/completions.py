"""Reads requests to continue or score plain text or tokens."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.explorer.openai_api import fields
from services.explorer.openai_api.chat import Writer
from services.explorer.openai_api.chat_completions import TextStream
from services.explorer.openai_api.errors import InvalidRequest
from services.explorer.openai_api.fields import MAX_CHOICES, MAX_LOGPROBS, Body
from services.explorer.openai_api.response import (
    fingerprint_of,
    finish_reason,
    likeliest_of,
    prompt_logprobs_of,
    prompt_tokens,
    response_tokens,
    tellable,
    usage,
    usage_of,
)
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.generation import ChatTokenizer, Likeliest, Piece, Prompt, Scores
from trinity.workflows.model import HeardOf, ModelWrapper
from trinity.workflows.sampling import Sampling

NOT_UNDERSTOOD = ("suffix", "logit_bias", "use_beam_search", "prompt_embeds")
"""Keys that would change the answer but are not supported; all other keys are ignored."""
MAX_ANSWERS = 1024
MOST_TOKENS = 1 << 31
AskedPrompt = str | tuple[int, ...]
"""A text or its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """The supported part of a completion request."""

    prompts: tuple[AskedPrompt, ...]
    num_choices: int
    """Number of answers for each prompt."""
    sampling: Sampling
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
    """The requested model name; empty if the request has none."""
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
    """Reads a request; raises InvalidRequest naming the key."""
    body = fields.read_body(payload, NOT_UNDERSTOOD)
    logprobs = None
    sampling = fields.read_sampling(body, least_tokens=0)
    if schema := fields.read_schema(body):
        sampling["json_schema"] = schema
    if body.get("logprobs") is not None:
        logprobs = fields.whole(body, "logprobs", 0, least=0, most=MAX_LOGPROBS)
        sampling["logprobs"] = logprobs
    asked = CompletionRequest(
        prompts=_prompts(body.get("prompt")),
        num_choices=fields.whole(body, "n", 1, most=MAX_CHOICES),
        sampling=sampling,
        logprobs=logprobs,
        prompt_logprobs=fields.read_prompt_logprobs(body),
        echoes=bool(body.get("echo")),
        wants_token_ids=bool(body.get("return_token_ids")),
        streams=bool(body.get("stream")),
        includes_usage=fields.includes_usage(body),
        model=fields.read_model(body),
        seed=fields.read_seed(body),
    )
    _check(asked, body)
    return asked


def _check(asked: CompletionRequest, body: Body) -> None:
    if fields.whole(body, "best_of", asked.num_choices) != asked.num_choices:
        raise InvalidRequest("`best_of` is `n` here: leave it out", param="best_of")
    if len(asked.prompts) * asked.num_choices > MAX_ANSWERS:
        raise InvalidRequest(
            f"`n` for each prompt makes more than {MAX_ANSWERS} answers: ask in several requests",
            param="n",
        )
    if asked.streams and asked.echoes:
        raise InvalidRequest("`echo` cannot be streamed: leave out `stream`", param="echo")
    if not asked.generates and (asked.num_scored is None or asked.num_choices > 1):
        raise InvalidRequest(
            "`max_tokens` may be 0 only if the prompt's log-probabilities are requested, once: "
            "with `echo` and `logprobs`, or with `prompt_logprobs`, and `n` 1",
            param="max_tokens",
        )


def _prompts(value: object) -> tuple[AskedPrompt, ...]:
    if isinstance(value, str) or _are_tokens(value):
        return (_prompt(value, "prompt"),)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ANSWERS:
        raise InvalidRequest(
            f"`prompt` is neither a text nor tokens, nor a list of 1 to {MAX_ANSWERS} such",
            param="prompt",
        )
    return tuple(_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))


def _prompt(value: object, where: str) -> AskedPrompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and _are_tokens(value):
        return tuple(value)
    raise InvalidRequest(f"`{where}` is neither a text nor a list of tokens", param=where)


def _are_tokens(value: object) -> bool:
    """Excludes bool, a subclass of int, and numbers beyond the 32 bits of tokenizers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
        and all(0 <= token < MOST_TOKENS for token in value)
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
            None if position.logprob is None else tellable(position.logprob)
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
    return {tokenizer.decode([token]): tellable(logprob) for token, logprob in pairs}


class CompletionExchange:
    """One completion request and its answer."""

    def __init__(self, *, asked: CompletionRequest, writer: Writer) -> None:
        self._asked = asked
        self._writer = writer
        self.model, self.seed, self.streams = asked.model, asked.seed, asked.streams

    async def answer(self, model: ModelWrapper) -> JsonObject:
        """Returns the complete answer."""
        asked = self._asked
        if not asked.generates:
            return await self._looked_at(model)
        answers = await model.generate_async(asked.prompts, n=asked.num_choices, **asked.sampling)
        scores: list[Scores | None] = [None] * len(asked.prompts)
        if asked.num_scored is not None:
            prompts = [prompt_tokens(answer) for answer in answers[:: asked.num_choices]]
            scores = [*await self._scores(model, prompts)]
        choices = [
            self._choice(index, answer, scores[index // asked.num_choices])
            for index, answer in enumerate(answers)
        ]
        return self._whole(model, choices, usage_of(answers, asked.num_choices))

    def teller(self, model: ModelWrapper) -> "CompletionTeller":
        """Returns the writer of a streamed answer."""
        return CompletionTeller(asked=self._asked, writer=self._writer, model=model)

    async def _looked_at(self, model: ModelWrapper) -> JsonObject:
        """Returns only the prompts' log-probabilities: nothing is generated or recorded."""
        prompts = [model.encode(prompt) for prompt in self._asked.prompts]
        scores = await self._scores(model, [prompt.token_ids for prompt in prompts])
        choices = [
            self._prompt_choice(index, prompt, score)
            for index, (prompt, score) in enumerate(zip(prompts, scores, strict=True))
        ]
        num_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        return self._whole(model, choices, usage(num_tokens, 0))

    async def _scores(self, model: ModelWrapper, prompts: Sequence[list[int]]) -> list[Scores]:
        count = self._asked.num_scored or 0
        return await model.score_all_async(prompts, num_likeliest=count)

    def _choice(self, index: int, answer: Experience, scores: Scores | None) -> JsonObject:
        asked = self._asked
        prompt = Prompt(text=answer.sequence.prompt_text, token_ids=prompt_tokens(answer))
        choice = self._prompt_choice(index, prompt, scores)
        positions = self._prompt_positions(prompt, scores)
        positions += positions_of(
            response_tokens(answer), answer.sequence.rollout_logprobs.tolist(), likeliest_of(answer)
        )
        choice["text"] = (prompt.text if asked.echoes else "") + answer.response_text
        choice["finish_reason"] = finish_reason(answer)
        choice["logprobs"] = self._logprobs(positions)
        if asked.wants_token_ids:
            choice["token_ids"] = [*response_tokens(answer)]
        return choice

    def _prompt_choice(self, index: int, prompt: Prompt, scores: Scores | None) -> JsonObject:
        """Returns the prompt's part of a choice, which does not depend on the response."""
        asked = self._asked
        choice: JsonObject = {
            "index": index,
            "text": prompt.text if asked.echoes else "",
            "finish_reason": "length",
            "logprobs": self._logprobs(self._prompt_positions(prompt, scores)),
        }
        if asked.prompt_logprobs is not None and scores is not None:
            logprobs = prompt_logprobs_of(prompt.token_ids, scores, self._writer.tokenizer)
            choice["prompt_logprobs"] = [*logprobs]
        if asked.wants_token_ids:
            choice |= {"prompt_token_ids": [*prompt.token_ids], "token_ids": []}
        return choice

    def _prompt_positions(self, prompt: Prompt, scores: Scores | None) -> list[Position]:
        if not self._asked.echoes or scores is None:
            return []
        first = Position(token=prompt.token_ids[0], logprob=None)
        return [first, *positions_of(prompt.token_ids[1:], scores.logprobs, scores.likeliest)]

    def _logprobs(self, positions: Sequence[Position]) -> JsonObject | None:
        if self._asked.logprobs is None:
            return None
        return legacy_logprobs(positions, self._asked.logprobs, self._writer.tokenizer)

    def _whole(
        self, model: ModelWrapper, choices: list[JsonObject], tokens: JsonObject
    ) -> JsonObject:
        return {**_head(self._writer, model), "choices": [*choices], "usage": tokens}


class CompletionTeller:
    """Writes the events of a completion."""

    def __init__(self, *, asked: CompletionRequest, writer: Writer, model: ModelWrapper) -> None:
        self._asked = asked
        self._writer = writer
        self._model = model
        count = len(asked.prompts) * asked.num_choices
        stop = model.stops_at(asked.sampling)
        self._texts = [TextStream(writer.tokenizer.decode, stop) for _ in range(count)]
        self._offsets = [0] * count
        self._head = _head(writer, model)

    async def make(self, heard: HeardOf) -> list[Experience]:
        """Generates the answers, and passes their pieces to `heard`."""
        asked = self._asked
        return await self._model.generate_async(
            asked.prompts, n=asked.num_choices, heard=heard, **asked.sampling
        )

    def opening(self) -> Iterator[JsonObject]:
        """Yields nothing: the text comes first."""
        return iter(())

    def piece(self, index: int, piece: Piece) -> Iterator[JsonObject]:
        """Yields the part of the answer that is certain by now."""
        text = self._texts[index].add(piece.token_ids)
        logprobs = None
        if self._asked.logprobs is not None:
            positions = positions_of(piece.token_ids, piece.logprobs, piece.likeliest)
            logprobs = legacy_logprobs(
                positions, self._asked.logprobs, self._writer.tokenizer, begin=self._offsets[index]
            )
            self._offsets[index] += len(self._writer.tokenizer.decode(piece.token_ids))
        if text or logprobs or self._asked.wants_token_ids:
            yield self._chunk(index, text, logprobs=logprobs, token_ids=piece.token_ids)

    def end(self, index: int, answer: Experience) -> Iterator[JsonObject]:
        """Yields the rest of an answer and its finish reason."""
        rest = self._texts[index].end(answer.response_text)
        yield self._chunk(index, rest, reason=finish_reason(answer))

    def closing(self, answers: Sequence[Experience]) -> Iterator[JsonObject]:
        """Yields the token usage, if it was requested."""
        if self._asked.includes_usage:
            tokens = usage_of(answers, self._asked.num_choices)
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
        if self._asked.wants_token_ids:
            choice["token_ids"] = [*token_ids]
        more: JsonObject = {"usage": None} if self._asked.includes_usage else {}
        return {**self._head, "choices": [choice], **more}


def _head(writer: Writer, model: ModelWrapper) -> JsonObject:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": writer.model_path,
        "system_fingerprint": fingerprint_of(*model.weights),
    }
