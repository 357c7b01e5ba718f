"""Answers a completion of plain text or tokens, complete or streamed."""

import time
import uuid
from collections.abc import Iterator, Sequence

from services.explorer.openai_api.chat import Writer
from services.explorer.openai_api.completions import CompletionRequest
from services.explorer.openai_api.legacy_logprobs import Position, legacy_logprobs, positions_of
from services.explorer.openai_api.text_stream import TextStream
from services.explorer.openai_api.told import (
    fingerprint_of,
    finish_reason,
    likeliest_of,
    prompt_logprobs_of,
    prompt_tokens,
    response_tokens,
    usage,
    usage_of,
)
from trinity.types import Experience, JsonObject
from trinity.workflows.generation import Piece, Prompt, Scores
from trinity.workflows.model import HeardOf, ModelWrapper


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
