"""Engines that answer while others of them load newer weights."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.explorer.engine import Engine
from services.explorer.weights import PublishedWeights, WeightLoader
from trinity.errors import ManifestError


@dataclass(slots=True, kw_only=True)
class Slot:
    """One engine, the weights it has, and how many calls it is answering."""

    engine: Engine
    loader: WeightLoader
    weights: PublishedWeights
    num_calls: int = 0
    is_open: bool = True


class ServingPool:
    """Gives each call an engine that keeps its weights until the call is over.

    Invariant: an engine loads only while it has no call, and all but so many go on answering.
    A call that finds none waits until one is back.

        async with pool.hold() as slot:
            await slot.engine.generate(...)
        await pool.renew(weights)  # beside it
    """

    def __init__(
        self, engines: Sequence[Engine], *, holding: PublishedWeights, min_open: int
    ) -> None:
        self._slots = [
            Slot(engine=one, loader=WeightLoader(one, holds=holding), weights=holding)
            for one in engines
        ]
        self._loading = asyncio.Semaphore(max(1, len(engines) - min_open))
        self._changed = asyncio.Event()

    @property
    def num_open(self) -> int:
        """Engines that take calls now."""
        return sum(slot.is_open for slot in self._slots)

    @property
    def num_calls(self) -> int:
        """Calls that are being answered."""
        return sum(slot.num_calls for slot in self._slots)

    @property
    def oldest(self) -> PublishedWeights:
        """What the engine that is furthest behind has."""
        return min(
            (slot.weights for slot in self._slots),
            key=lambda one: (one.id.incarnation, one.id.version),
        )

    def has_everywhere(self, weights: PublishedWeights) -> bool:
        """Whether every engine has them."""
        return all(slot.weights == weights for slot in self._slots)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[Slot]:
        """The engine with the fewest calls, for one more."""
        await self._until(lambda: self.num_open > 0)
        slot = min((one for one in self._slots if one.is_open), key=lambda one: one.num_calls)
        slot.num_calls += 1
        try:
            yield slot
        finally:
            slot.num_calls -= 1
            self._changed.set()

    async def renew(self, weights: PublishedWeights) -> None:
        """Load them into every engine that has others; where it fails the others go on loading.

        Raises: ManifestError when the files are not whole, EngineDied.
        """
        behind = [slot for slot in self._slots if slot.weights != weights]
        renewed = (self._renew(slot, weights) for slot in behind)
        for outcome in await asyncio.gather(*renewed, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def check(self) -> None:
        """Raises: EngineDied when any of them has."""
        for slot in self._slots:
            await slot.engine.check()

    async def _renew(self, slot: Slot, weights: PublishedWeights) -> None:
        """An engine whose loading ends half way takes no calls any more."""
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
