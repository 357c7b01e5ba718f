"""Engines of models that score: vLLM's pooling runner, and transformers in a process."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from services.explorer.engine.interface import (
    Engine,
    EngineDied,
    EngineOptions,
    FixedWeights,
    RatedRow,
)
from services.explorer.engine.tokenizer import HuggingFaceTokenizer
from services.explorer.engine.vllm import VllmEngine, as_user_errors, start_async_llm
from trinity.config.plan.auxiliary import is_pooled, model_directory
from trinity.data.chat_template import NOT_RENDERED
from trinity.errors import UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.process.worker import Worker, WorkerFailed
from trinity.workflows.generation import Generation, RatedChat, Scores

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

logger = logging.getLogger(__name__)
_limited_log = RateLimitedLog(logger)

MAX_BATCH_TOKENS = 8192
"""Tokens of a batch with its padding, unless a single row is longer."""
PROCESS = "services.explorer.engine.scorer_process"
POOLED_BY_TOKEN = "token_classify"
POOLED_WHOLE = "classify"


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedEncoder:
    """Encodes chats with the tokenizer and the chat template of the model that scores them."""

    tokenizer: HuggingFaceTokenizer
    max_tokens: int
    truncates: bool
    """If false, a longer chat is an error; else its first tokens are left out."""

    def __call__(self, chat: RatedChat) -> RatedRow:
        """Returns the tokens, without a prompt for a further answer, and the places of scores.

        Raises: UserError for a chat that the template does not take, or that is too long.
        """
        text = self._render(chat)
        hugging_face = self.tokenizer.hf_tokenizer
        encoding = hugging_face(text, add_special_tokens=False)
        token_ids, places = list(encoding["input_ids"]), [len(encoding["input_ids"]) - 1]
        if chat.step_ends:
            if not encoding.is_fast:
                raise UserError("steps are scored by a model with a fast tokenizer: give another")
            begin = _begin_of_answer(text, chat)
            ends = [begin + end - 1 for end in chat.step_ends]
            found = [encoding.char_to_token(end) for end in ends]
            places = [place for place in found if place is not None]
            assert len(places) == len(found), "the template has the last message as it is"
        return self._cut(RatedRow(token_ids=token_ids, places=places, is_whole=not chat.step_ends))

    def _render(self, chat: RatedChat) -> str:
        try:
            rendered = self.tokenizer.hf_tokenizer.apply_chat_template(
                [dict(message) for message in chat.messages],
                tokenize=False,
                add_generation_prompt=False,
                **self.tokenizer.template_kwargs,
            )
        except NOT_RENDERED as error:
            raise UserError(
                f"the chat template of the model that scores does not take these messages: {error}"
            ) from error
        return str(rendered)

    def _cut(self, row: RatedRow) -> RatedRow:
        excess = len(row.token_ids) - self.max_tokens
        if excess <= 0:
            return row
        told = f"a chat of {len(row.token_ids)} tokens is longer than the {self.max_tokens}"
        told += " (`max_model_len`) of the model that scores it"
        if not self.truncates or min(row.places) < excess:
            raise UserError(f"{told}: give it more, or shorter answers")
        _limited_log.warning(f"{told}: its first tokens are left out")
        places = [place - excess for place in row.places]
        return replace(row, token_ids=row.token_ids[excess:], places=places)


def _begin_of_answer(text: str, chat: RatedChat) -> int:
    """Returns where the last message begins in a rendered chat."""
    begin = text.rfind(str(chat.messages[-1]["content"] or ""))
    if begin < 0:
        raise UserError(
            "the chat template of the model that scores changes the answer, so its steps are not "
            "found in it: give another `chat_template`"
        )
    return begin


class FrozenScorer(FixedWeights):
    """The part of an `Engine` that all models which score have: they write nothing and stay."""

    async def generate(self, *_: object, **__: object) -> Generation:
        """Refuses. Raises: UserError always."""
        raise UserError("the model scores texts and writes none: ask it with `rate`")

    async def score(self, *_: object, **__: object) -> Scores:
        """Refuses. Raises: UserError always."""
        raise UserError("the model scores whole texts, not tokens: ask it with `rate`")


class VllmScorer(FrozenScorer, VllmEngine):
    """vLLM's pooling runner: a child process as of `VllmEngine`, which batches requests."""

    def __init__(self, engine: "AsyncLLM", options: EngineOptions, tasks: Sequence[str]) -> None:
        super().__init__(engine, options)
        assert options.encode_rated is not None
        self._encode = options.encode_rated
        self._tasks = tasks

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of each step, or of the chat."""
        from vllm import PoolingParams
        from vllm.inputs import TokensPrompt

        row = self._encode(chat)
        is_whole = row.is_whole and POOLED_WHOLE in self._tasks
        task: Any = POOLED_WHOLE if is_whole else POOLED_BY_TOKEN
        if task not in self._tasks:
            raise UserError(f"{self._role} scores whole texts alone, not their steps")
        with as_user_errors():
            answers = [
                answer
                async for answer in self._engine.encode(
                    TokensPrompt(prompt_token_ids=row.token_ids),
                    PoolingParams(task=task, use_activation=False),
                    request_id=str(next(self._request_numbers)),
                )
            ]
        logits = answers[-1].outputs.data.float()
        if is_whole:
            return [logits.reshape(-1).tolist()]
        return [logits[place].reshape(-1).tolist() for place in row.places]


class TransformersScorer(FrozenScorer):
    """A model in transformers on the processor, in a child process that scores batches of rows.

    Rows that come while a batch is scored are the next batches, shortest first.
    """

    def __init__(self, worker: Worker, options: EngineOptions) -> None:
        assert options.encode_rated is not None
        self._worker, self._role, self._encode = worker, options.role, options.encode_rated
        self._waiting: list[tuple[RatedRow, asyncio.Future[list[list[float]]]]] = []
        self._has_rows = asyncio.Event()
        self._died: EngineDied | None = None
        self._work = asyncio.create_task(self._score_batches())

    @classmethod
    async def start(cls, options: EngineOptions) -> "TransformersScorer":
        """Starts the process and loads the model; raises RuntimeError if it cannot be loaded."""
        tokens = map(str, options.score_token_ids)
        worker = await Worker.start(PROCESS, options.model_path, options.rollout.dtype, *tokens)
        try:
            worker.ask({})
            error = (await worker.read()).get("error")
        except WorkerFailed as failed:
            error = str(failed)
        except asyncio.CancelledError:
            await worker.kill()
            raise
        if error is not None:
            await worker.kill()
            raise RuntimeError(error)
        return cls(worker, options)

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of each step, or of the chat. Raises: EngineDied."""
        await self.check()
        future: asyncio.Future[list[list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._encode(chat), future))
        self._has_rows.set()
        return await future

    async def check(self) -> None:
        """Raises EngineDied if the process has died."""
        if self._died is None and self._worker.process.returncode is not None:
            self._died = EngineDied(f"the process of {self._role} died")
        if self._died is not None:
            raise self._died

    async def close(self) -> None:
        """Ends the process."""
        self._work.cancel()
        await asyncio.wait([self._work])
        await self._worker.kill()

    async def _score_batches(self) -> None:
        batch: list[tuple[RatedRow, asyncio.Future[list[list[float]]]]] = []
        try:
            while True:
                await self._has_rows.wait()
                batch = self._next_batch()
                self._worker.ask(
                    {"rows": [[row.token_ids, row.places, row.is_whole] for row, _ in batch]}
                )
                answer = await self._worker.read()
                for place, (_, future) in enumerate(batch):
                    if future.cancelled():
                        continue
                    if "error" in answer:
                        future.set_exception(UserError(f"{self._role}: {answer['error']}"))
                    else:
                        future.set_result(answer["scores"][place])
        except Exception as error:  # the edge of the loop: rows would get no answer
            logger.exception("a model that scores has ended")
            self._died = EngineDied(f"the process of {self._role} died ({error})")
            for _, future in (*batch, *self._waiting):
                if not future.done():
                    future.set_exception(self._died)

    def _next_batch(self) -> list[tuple[RatedRow, "asyncio.Future[list[list[float]]]"]]:
        """Takes rows of similar lengths, as many as are a batch with their padding."""
        self._waiting.sort(key=lambda entry: len(entry[0].token_ids))
        count = 1
        while (
            count < len(self._waiting)
            and (count + 1) * len(self._waiting[count][0].token_ids) <= MAX_BATCH_TOKENS
        ):
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        if not self._waiting:
            self._has_rows.clear()
        return batch


async def start_scorer(options: EngineOptions) -> Engine:
    """Starts the engine of a model that scores; raises RuntimeError if it cannot be loaded."""
    directory = model_directory(options.model_path)
    on_vllm = options.rollout.engine_type == "vllm"
    if on_vllm and directory is not None and is_pooled(directory):
        engine = await start_async_llm(options)
        return VllmScorer(engine, options, await engine.get_supported_tasks())
    if on_vllm:
        logger.warning(
            "vLLM does not run the head of this model: it scores on the processor",
            extra={"model": options.model_path},
        )
    return await TransformersScorer.start(options)


def score_token_ids(tokenizer: HuggingFaceTokenizer, words: Sequence[str]) -> tuple[int, ...]:
    """Returns the tokens of `score_tokens`; raises UserError for a text of several tokens."""
    if not words:
        return ()
    encode = partial(tokenizer.hf_tokenizer.encode, add_special_tokens=False)
    found = [encode(word) for word in words]
    for word, token_ids in zip(words, found, strict=True):
        if len(token_ids) != 1:
            raise UserError(f"`score_tokens`: {word!r} is {len(token_ids)} tokens: give one token")
    return tuple(token_ids[0] for token_ids in found)
