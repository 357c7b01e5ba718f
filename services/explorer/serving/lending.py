"""Lends the served model to requests, each with one set of weights."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from services.explorer.openai_api.answering import Exchange
from services.explorer.openai_api.refusals import InvalidRequest
from services.explorer.seeds import BITS
from services.explorer.serving.pool import ServingPool
from trinity.config.plan import StagePlan
from trinity.types import SamplingParams
from trinity.workflows.generation import ChatTokenizer, ModelLimits
from trinity.workflows.model import ModelWrapper


class Lending:
    """Applies section `model` as defaults, and `explorer.max_timeout` as each request's limit."""

    def __init__(
        self,
        *,
        plan: StagePlan,
        pool: ServingPool,
        tokenizer: ChatTokenizer,
        names: tuple[str, ...],
    ) -> None:
        model = plan.config.model
        self._pool = pool
        self._tokenizer = tokenizer
        self._names = names
        self._seconds = plan.config.explorer.max_timeout
        self._limits = ModelLimits(
            max_model_len=plan.max_model_len,
            max_prompt_tokens=plan.max_model_len - 1,
            min_tokens=plan.min_response_tokens,
            truncate_prompts=False,
        )
        self._sampling = SamplingParams(
            temperature=model.temperature,
            top_p=model.top_p,
            top_k=model.top_k,
            max_tokens=plan.max_response_tokens,
            repetition_penalty=model.repetition_penalty,
        )

    @asynccontextmanager
    async def __call__(self, asked: Exchange) -> AsyncIterator[ModelWrapper]:
        """Yields the model until the block ends.

        Raises: InvalidRequest for a model of another name; TimeoutError.
        """
        if asked.model and asked.model not in self._names:
            raise InvalidRequest(
                f"there is no model `{asked.model}` here: ask for `{self._names[0]}`",
                param="model",
                code="model_not_found",
                status=404,
            )
        async with asyncio.timeout(self._seconds), self._pool.hold() as slot:
            weights = slot.weights.id
            yield ModelWrapper(
                generator=slot.engine,
                tokenizer=self._tokenizer,
                limits=self._limits,
                sampling=self._sampling,
                weights=(weights.version, weights.incarnation),
                seed_of_call=_seeds(asked.seed),
            )


def _seeds(asked: int | None) -> Callable[[int], int]:
    """Returns the seeds of calls: derived from the requested seed, else from a random one."""
    base = secrets.randbits(BITS) if asked is None else asked

    def seed_of_call(call: int) -> int:
        digest = hashlib.blake2b(f"{base}\0{call}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - BITS)

    return seed_of_call
