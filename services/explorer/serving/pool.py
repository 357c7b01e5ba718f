"""The engines of a served model, which load newer weights in turn, and its loans to requests."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from services.explorer.engine.hosts import SpanningEngine
from services.explorer.engine.images import ChatImages
from services.explorer.engine.interface import Engine
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.media import MediaStore
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.handler import ApiCall
from services.explorer.rollout.workflow_factory import SEED_BITS
from services.explorer.types import WeightsId, WeightsVersion
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import ManifestError
from trinity.types import SamplingParams
from trinity.workflows.generation import ChatTokenizer, Generator, ModelLimits
from trinity.workflows.model import ModelWrapper


@dataclass(slots=True, kw_only=True)
class EngineSlot:
    """One engine, its weights, and the number of calls in progress."""

    engine: Engine
    loader: WeightLoader
    weights: WeightsVersion
    num_calls: int = 0
    is_open: bool = True


class ServingPool:
    """Gives each call an engine that keeps its weights until the call is over.

    Invariant: an engine loads only while it has no call, and at least `min_open` others keep
    answering, if there are enough. A call that finds no open engine waits for one.

        async with pool.borrow() as slot:
            await slot.engine.generate(...)
        await pool.load_all(weights)  # at the same time
    """

    def __init__(self, engines: Sequence[Engine], *, loaded: WeightsVersion, min_open: int) -> None:
        self._slots = [
            EngineSlot(
                engine=engine,
                loader=WeightLoader(
                    engine, loaded=loaded, spans_hosts=isinstance(engine, SpanningEngine)
                ),
                weights=loaded,
            )
            for engine in engines
        ]
        self._loading = asyncio.Semaphore(max(1, len(engines) - min_open))
        self._changed = asyncio.Event()

    @property
    def num_open(self) -> int:
        """Number of engines that take calls now."""
        return sum(slot.is_open for slot in self._slots)

    @property
    def num_calls(self) -> int:
        """Number of calls in progress."""
        return sum(slot.num_calls for slot in self._slots)

    @property
    def oldest_weights(self) -> WeightsVersion:
        """The oldest weights that any engine has."""
        return min(
            (slot.weights for slot in self._slots),
            key=lambda weights: (weights.id.incarnation, weights.id.version),
        )

    def is_loaded_everywhere(self, weights: WeightsVersion) -> bool:
        """Returns true if every engine has these weights."""
        return all(slot.weights == weights for slot in self._slots)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[EngineSlot]:
        """Yields the open engine with the fewest calls, for one more call."""
        await self._until(lambda: self.num_open > 0)
        slot = min((s for s in self._slots if s.is_open), key=lambda s: s.num_calls)
        slot.num_calls += 1
        try:
            yield slot
        finally:
            slot.num_calls -= 1
            self._changed.set()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[tuple[Engine, WeightsId]]:
        """Borrows an engine, and yields it with its weights."""
        async with self.borrow() as slot:
            yield slot.engine, slot.weights.id

    async def load_all(self, weights: WeightsVersion) -> None:
        """Loads weights into every engine that has others; a failure in one does not stop the rest.

        Raises: ManifestError when the files are not complete, EngineDied.
        """
        behind = [slot for slot in self._slots if slot.weights != weights]
        loads = (self._load_slot(slot, weights) for slot in behind)
        for outcome in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def check_engines_alive(self) -> None:
        """Raises EngineDied if any engine has died."""
        for slot in self._slots:
            await slot.engine.check()

    async def _load_slot(self, slot: EngineSlot, weights: WeightsVersion) -> None:
        """Loads one engine; if that is interrupted half way, the engine takes no more calls."""
        async with self._loading:
            slot.is_open = False
            is_sound = True
            try:
                await self._until(lambda: not slot.num_calls)
                is_sound = False
                await slot.loader.load_published(weights)
                slot.weights, is_sound = weights, True
            except ManifestError:  # found before anything is loaded
                is_sound = True
                raise
            finally:
                slot.is_open = is_sound
                self._changed.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


LendEngine = Callable[[], AbstractAsyncContextManager[tuple[Generator, WeightsId]]]
"""Gives an engine with its weights, which stay until the block ends."""


class ModelBorrower:
    """Applies section `model` as defaults, and `explorer.max_timeout` as each request's limit."""

    def __init__(
        self,
        *,
        plan: StagePlan,
        lend: LendEngine,
        tokenizer: ChatTokenizer,
        names: tuple[str, ...],
        media: MediaStore | None = None,
    ) -> None:
        """`media` keeps the images of requests, if the model reads any."""
        self._lend = lend
        self._tokenizer = tokenizer
        self._names = names
        self._images = None if media is None else ChatImages.of(tokenizer, media)
        self._media = media if self._images is not None else None
        self._seconds = plan.config.explorer.max_timeout
        self._sampling = _default_sampling(plan)
        self._limits = ModelLimits(
            max_model_len=plan.max_model_len,
            max_prompt_tokens=plan.max_model_len - 1,
            min_tokens=plan.min_response_tokens,
            truncate_prompts=False,
        )

    @asynccontextmanager
    async def __call__(self, call: ApiCall) -> AsyncIterator[ModelWrapper]:
        """Yields the model until the block ends.

        Raises: InvalidApiRequest for a model of another name; TimeoutError.
        """
        self._check_name(call.model)
        async with asyncio.timeout(self._seconds), self._lend() as (engine, weights):
            model = ModelWrapper(
                generator=engine,
                tokenizer=self._tokenizer,
                limits=self._limits,
                sampling=self._sampling,
                weights=(weights.version, weights.incarnation),
                seed_of_call=_seeds(call.seed),
                images=self._images,
            )
            model.media = self._media
            yield model

    def _check_name(self, model: str) -> None:
        if model and model not in self._names:
            raise InvalidApiRequest(
                f"there is no model `{model}` here: ask for `{self._names[0]}`",
                param="model",
                code="model_not_found",
                status=404,
            )


def _default_sampling(plan: StagePlan) -> SamplingParams:
    model = plan.config.model
    return SamplingParams(
        temperature=model.temperature,
        top_p=model.top_p,
        top_k=model.top_k,
        max_tokens=plan.max_response_tokens,
        repetition_penalty=model.repetition_penalty,
    )


def _seeds(requested: int | None) -> Callable[[int], int]:
    """Returns the seeds of calls: derived from the requested seed, else from a random one."""
    base = secrets.randbits(SEED_BITS) if requested is None else requested

    def seed_of_call(call: int) -> int:
        digest = hashlib.blake2b(f"{base}\0{call}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> (64 - SEED_BITS)

    return seed_of_call
