"""A pool of engines, some of which answer while others load newer weights."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.explorer.engine import Engine
from services.explorer.weights import WeightLoader
from services.explorer.weights_types import PublishedWeights
from trinity.errors import ManifestError


@dataclass(slots=True, kw_only=True)
class Slot:
    """One engine, its weights, and the number of calls in progress."""

    engine: Engine
    loader: WeightLoader
    weights: PublishedWeights
    num_calls: int = 0
    is_open: bool = True


class ServingPool:
    """Gives each call an engine that keeps its weights until the call is over.

    Invariant: an engine loads only while it has no call, and at least `min_open` others keep
    answering, if there are enough. A call that finds no open engine waits for one.

        async with pool.hold() as slot:
            await slot.engine.generate(...)
        await pool.renew(weights)  # at the same time
    """

    def __init__(
        self, engines: Sequence[Engine], *, holding: PublishedWeights, min_open: int
    ) -> None:
        self._slots = [
            Slot(engine=engine, loader=WeightLoader(engine, holds=holding), weights=holding)
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
    def oldest(self) -> PublishedWeights:
        """The oldest weights that any engine has."""
        return min(
            (slot.weights for slot in self._slots),
            key=lambda weights: (weights.id.incarnation, weights.id.version),
        )

    def has_everywhere(self, weights: PublishedWeights) -> bool:
        """Returns true if every engine has these weights."""
        return all(slot.weights == weights for slot in self._slots)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Slot]:
        """Yields the open engine with the fewest calls, for one more call."""
        await self._until(lambda: self.num_open > 0)
        slot = min((s for s in self._slots if s.is_open), key=lambda s: s.num_calls)
        slot.num_calls += 1
        try:
            yield slot
        finally:
            slot.num_calls -= 1
            self._changed.set()

    async def renew(self, weights: PublishedWeights) -> None:
        """Loads weights into every engine that has others; a failure in one does not stop the rest.

        Raises: ManifestError when the files are not complete, EngineDied.
        """
        behind = [slot for slot in self._slots if slot.weights != weights]
        renewed = (self._renew(slot, weights) for slot in behind)
        for outcome in await asyncio.gather(*renewed, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def check(self) -> None:
        """Raises EngineDied if any engine has died."""
        for slot in self._slots:
            await slot.engine.check()

    async def _renew(self, slot: Slot, weights: PublishedWeights) -> None:
        """Loads one engine; if that is interrupted half way, the engine takes no more calls."""
        async with self._loading:
            slot.is_open = False
            is_sound = True
            try:
                await self._until(lambda: not slot.num_calls)
                is_sound = False
                await slot.loader.load(weights)
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
