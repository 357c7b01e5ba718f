"""Lets runs begin when the weights they need are loaded, and loads weights when no run is going."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from services.explorer.status import Status
from services.explorer.weights import (
    PublishedNow,
    PublishedWeights,
    Requirement,
    WeightsId,
    best_match,
)
from trinity.errors import ManifestError

logger = logging.getLogger(__name__)

WEIGHTS = "weights"


class WeightGate:
    """All runs that go on at a time use the same weights, from their beginning to their end.

    Invariant: weights change only while no run holds them. Runs that the loaded weights suit are
    let in before any load, so an evaluation is finished before newer weights come; among the rest
    the oldest weights are loaded first.

        async with gate.hold(assignment.required) as weights:
            ...  # the engine has `weights` until the block ends
    """

    def __init__(
        self,
        *,
        load: Callable[[PublishedWeights], Awaitable[None]],
        published: PublishedNow,
        status: Status,
    ) -> None:
        self._load = load
        self._status = status
        self._published = published
        self._waiting: dict[asyncio.Future[WeightsId], Requirement] = {}
        self._broken: set[PublishedWeights] = set()
        self._num_holding = 0
        self._changed = asyncio.Event()
        self._is_loading = False
        self.loaded: WeightsId | None = None

    @asynccontextmanager
    async def hold(self, required: Requirement) -> AsyncIterator[WeightsId]:
        """Wait for weights that meet `required` and keep them for the length of the block."""
        weights = await self._enter(required)
        try:
            yield weights
        finally:
            self._num_holding -= 1
            if not self._num_holding:
                self._changed.set()

    def notice(self) -> None:
        """Look again: other weights are published."""
        self._broken.clear()
        self._changed.set()

    async def run(self) -> None:
        """Load what is needed, whenever it is needed; until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._report()
                weights = self._next()
                if weights is not None and not self._num_holding:
                    await self._replace(weights)
        finally:
            self._status.stop_waiting(WEIGHTS)

    async def _enter(self, required: Requirement) -> WeightsId:
        if self.loaded is not None and not self._is_loading and required.is_met_by(self.loaded):
            self._num_holding += 1
            return self.loaded
        entered: asyncio.Future[WeightsId] = asyncio.get_running_loop().create_future()
        self._waiting[entered] = required
        self._changed.set()
        try:
            return await entered
        except asyncio.CancelledError:
            if entered.done() and not entered.cancelled():
                self._num_holding -= 1
                self._changed.set()
            raise
        finally:
            self._waiting.pop(entered, None)

    def _report(self) -> None:
        """Show what is used, and what runs wait for that is not published or is broken."""
        needed = {required.version for required in self._waiting.values()}
        if self.loaded is not None:
            needed.add(self.loaded.version)
        version = self.loaded.version if self.loaded else -1
        self._status.set_weights(version, frozenset(needed))
        unmet = sorted(self._waiting.values(), key=_age)
        missing = next((required for required in unmet if self._find(required) is None), None)
        if missing is None:
            self._status.stop_waiting(WEIGHTS)
            return
        reason = f"version {missing.version} of incarnation {missing.incarnation} is not published"
        if self._broken:
            reason += ", or its files do not match their manifest"
        self._status.wait_for(WEIGHTS, "trainer", reason)

    def _next(self) -> PublishedWeights | None:
        for required in sorted(self._waiting.values(), key=_age):
            if weights := self._find(required):
                return weights
        return None

    def _find(self, required: Requirement) -> PublishedWeights | None:
        usable = tuple(weights for weights in self._published() if weights not in self._broken)
        return best_match(required, usable)

    async def _replace(self, weights: PublishedWeights) -> None:
        self._is_loading = True
        self.loaded = None
        try:
            await self._load(weights)
            self.loaded = weights.id
        except ManifestError as error:
            logger.error("weights refused", extra={"reason": str(error)})
            self._broken.add(weights)
        finally:
            self._is_loading = False
        self._changed.set()
        self._admit()

    def _admit(self) -> None:
        if self.loaded is None:
            return
        for entered, required in list(self._waiting.items()):
            if not entered.done() and required.is_met_by(self.loaded):
                self._num_holding += 1
                del self._waiting[entered]
                entered.set_result(self.loaded)


def _age(required: Requirement) -> tuple[int, int, bool]:
    return required.version, required.incarnation, not required.exact
