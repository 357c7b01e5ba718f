"""Weights that change while an engine has requests, and the weights that drew each token."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from services.explorer.engine.interface import Engine
from services.explorer.types import WeightsId
from trinity.runtime.telemetry import metrics, names
from trinity.types import SamplingParams, VersionSpan
from trinity.weights.offer import Receivers, ReceiverSlot
from trinity.workflows.generation import Generation, OnDelta, Scores

ValueT = TypeVar("ValueT")


@runtime_checkable
class PausingEngine(Engine, Protocol):
    """An engine that keeps its requests while it loads weights.

    `generate` registers a request before its first await.
    """

    async def pause_requests(self) -> None:
        """Pauses all requests, and returns once no token is on its way.

        What was computed for them is dropped: after `resume_requests` each token is drawn as by an
        engine that never had other weights.
        """
        ...

    async def resume_requests(self) -> None:
        """Continues. Adds the number of tokens so far to the `swaps` of each request.

        The numbers are added before the first await.
        """
        ...


class InFlightEngine:
    """An engine that takes weights amid requests, and names those that drew each token.

    engine.name_next(weights.id)
    await engine.load_weights(weights.path)  # requests pause, and continue with these

    If a load fails, requests stay paused until another one succeeds.
    """

    def __init__(self, engine: PausingEngine, loaded: WeightsId) -> None:
        self._engine = engine
        self._loaded = self._next = loaded
        self._loads: list[WeightsId] = []
        self._is_paused = False

    def name_next(self, weights: WeightsId) -> None:
        """Sets the name of the weights that the next load brings."""
        self._next = weights

    def relabel(self, weights: WeightsId) -> None:
        """Sets the name of the loaded weights for further requests: others are not loaded."""
        self._loaded = weights

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt; the answer has a span for each of the weights that drew it."""
        first, num_loads = self._loaded, len(self._loads)
        generation = await self._engine.generate(
            prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
        )
        names = [first, *self._loads[num_loads : num_loads + len(generation.swaps)]]
        return replace(generation, version_spans=spans_of(generation, names))

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores tokens with the weights of the moment."""
        return await self._engine.score(token_ids, num_likeliest=num_likeliest)

    async def load_weights(self, directory: Path) -> None:
        """Pauses requests, replaces the weights, and continues with them."""
        await self._pause()
        await self._engine.load_weights(directory)
        await self._resume()

    @property
    def receivers(self) -> Receivers:
        """The engine's processes that would receive weights."""
        return self._engine.receivers

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Pauses requests and receives weights; after a failure others have to be loaded."""
        await self._pause()
        if failure := await self._engine.receive_weights(slot):
            return failure
        await self._resume()
        return ""

    async def check(self) -> None:
        """Raises EngineDied if the engine has died."""
        await self._engine.check()

    async def close(self) -> None:
        """Releases the engine's resources."""
        await self._engine.close()

    async def _pause(self) -> None:
        if not self._is_paused:
            await self._engine.pause_requests()
        self._is_paused = True

    async def _resume(self) -> None:
        self._loaded = self._next
        self._loads.append(self._loaded)
        await self._engine.resume_requests()
        self._is_paused = False


async def unless_cancelled(
    call: Coroutine[None, None, ValueT], num_drawn: Callable[[], int]
) -> ValueT:
    """Awaits an engine's call; if it is cancelled, counts the tokens that it had so far as lost.

    vLLM forgets a request when its own caller is cancelled, so that caller is another task.
    """
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        metrics.LOST_TOKENS.add(num_drawn(), {names.FATE: "call"})
        raise
    finally:
        task.cancel()
        await asyncio.wait({task})


def spans_of(generation: Generation, names: Sequence[WeightsId]) -> tuple[VersionSpan, ...]:
    """Returns the spans of a response that changed from one of these weights to the next.

    Weights that drew no token have no span; a response without tokens has one, of the last.
    """
    edges = [0, *generation.swaps, len(generation.token_ids)]
    spans = [
        VersionSpan(start=start, end=end, version=name.version, incarnation=name.incarnation)
        for name, (start, end) in zip(names, pairwise(edges), strict=True)
    ]
    return tuple(span for span in spans if span.end > span.start) or tuple(spans[-1:])
