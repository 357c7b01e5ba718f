"""Loads the weights that runs require between runs, and reports those that are missing."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

from services.explorer.engine.interface import EngineDied, EngineOwnDevice, EngineTurns
from services.explorer.engine.weight_transfer import ListWeights
from services.explorer.types import (
    LostWeights,
    WeightsId,
    WeightsRequirement,
    WeightsVersion,
    oldest_match,
)
from trinity.errors import ManifestError, RpcError, TrinityError
from trinity.runtime.presence import Heartbeats
from trinity.runtime.retry import RetryPolicy, deadline
from trinity.runtime.telemetry.metrics import ENGINE_IDLE_SECONDS, GATE_SECONDS

logger = logging.getLogger(__name__)

NO_VERSION = -1
RETRY_SECONDS = 5.0
SHOWN_AFTER_SECONDS = 1.0
Admission = tuple[WeightsId, WeightsRequirement]
"""The weights that a run got, and the requirement under which it holds them."""
ADMISSION_BATCH = 16
"""Runs admitted together proceed in step and end together, which delays the first results."""


class WeightsLost(TrinityError):
    """The exact weights that a run needs are damaged, with no copy to replace them."""


class DamageChannel(Protocol):
    """Reports damaged weights to their trainer, and lists those that it cannot replace."""

    def lost(self) -> tuple[LostWeights, ...]:
        """Returns the weights that are lost."""
        ...

    async def report(self, weights: WeightsVersion, reason: str) -> None:
        """Reports weights; may be repeated. Raises: RpcError."""
        ...


class NoDamageChannel:
    """The channel of weights that no trainer publishes."""

    def lost(self) -> tuple[LostWeights, ...]:
        """Returns an empty tuple."""
        return ()

    async def report(self, weights: WeightsVersion, reason: str) -> None:
        """Ignores the report."""


@dataclass(frozen=True, slots=True)
class MissingReason:
    """The reason why weights are unavailable."""

    waits_for: str
    what: str
    """Continues "waited for the ..."."""


class MissingWeights:
    """Tracks since when each requirement could not be met."""

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._retry_policy = retry_policy
        self._since: dict[WeightsRequirement, float] = {}
        self._shown = ""

    def update(self, reasons: dict[WeightsRequirement, MissingReason]) -> None:
        """Records everything that is missing now.

        Raises: RolloutStageFailed when a requirement has been unmet for too long.
        """
        now = time.monotonic()
        self._since = {required: self._since.get(required, now) for required in reasons}
        oldest = min(self._since, key=self._since.__getitem__, default=None)
        if oldest is None:
            self._show("")
            return
        missing = reasons[oldest]
        if now - self._since[oldest] >= self._retry_policy.seconds:
            raise self._retry_policy.deadline_error(missing.waits_for, missing.what)
        self._show(f"weights {oldest.version} of incarnation {oldest.incarnation}", missing)

    def seconds_left(self) -> float | None:
        """Returns the seconds until the deadline; None while no weights are missing."""
        if not self._since:
            return None
        waited = time.monotonic() - min(self._since.values())
        return max(self._retry_policy.seconds - waited, 0.0)

    def clear(self) -> None:
        """Clears everything: no run waits any more."""
        self._since.clear()
        self._show("")

    def _show(self, name: str, missing: MissingReason | None = None) -> None:
        waits = self._retry_policy.waits
        if self._shown != name:
            waits.clear(self._shown)
        self._shown = name
        if missing is not None:
            waits.set(
                name,
                waits_for=missing.waits_for,
                reason=missing.what,
                deadline_seconds=self._retry_policy.deadline_seconds,
            )


class WeightGate:
    """Makes all concurrent runs use the same weights from start to end.

    Invariant: weights change only while no run holds them. Runs that the loaded weights suit are
    admitted before any load, so an evaluation finishes before newer weights come; among the rest
    the oldest weights are loaded first. While a run waits for an exact version, those of no exact
    one wait behind it: calls of clients never end. Weights that are refused are reported, and are
    loaded as soon as their trainer has written them again; runs that need lost ones end, or take
    newer ones.

    With `keeps_requests` only runs of an exact version keep their weights: under others the newest
    ones are loaded as soon as they are there.

        async with gate.hold(assignment.required) as weights:
            ...  # the engine has `weights` until the block ends
    """

    def __init__(
        self,
        *,
        load: Callable[[WeightsVersion], Awaitable[None]],
        published: ListWeights,
        heartbeats: Heartbeats,
        retry_policy: RetryPolicy,
        damage: DamageChannel | None = None,
        turns: EngineTurns | None = None,
        keeps_requests: bool = False,
    ) -> None:
        self._load = load
        self._keeps_requests = keeps_requests
        self._turns = turns or EngineOwnDevice()
        self._damage = damage or NoDamageChannel()
        self._reported: set[WeightsVersion] = set()
        self._published = published
        self._heartbeats = heartbeats
        self._retry_policy = retry_policy
        self._missing = MissingWeights(retry_policy)
        self._waiting: dict[asyncio.Future[Admission], WeightsRequirement] = {}
        self._failed: dict[WeightsVersion, str] = {}
        self._backing_off: set[WeightsVersion] = set()
        self._holding: Counter[WeightsRequirement] = Counter()
        self._idle_since = time.monotonic()
        self._changed = asyncio.Event()
        self._is_loading = False
        self.loaded: WeightsId | None = None

    @asynccontextmanager
    async def hold(self, required: WeightsRequirement) -> AsyncIterator[WeightsId]:
        """Waits for weights that meet `required` and keeps them until the block ends.

        Raises: WeightsLost when they are damaged, and neither a copy nor newer ones will do.
        """
        begun = time.monotonic()
        weights, held = await self._enter(required)
        GATE_SECONDS.record(time.monotonic() - begun)
        try:
            yield weights
        finally:
            self._leave(held)

    def on_weights_changed(self) -> None:
        """Wakes `load_when_needed` after a change of the published weights."""
        self._backing_off.clear()
        self._failed = {w: why for w, why in self._failed.items() if w in self._published()}
        self._reported &= self._failed.keys()
        self._changed.set()

    async def load_when_needed(self) -> None:
        """Loads weights whenever runs need them, until cancelled.

        Raises: RolloutStageFailed when weights that runs wait for are unavailable for too long,
        EngineDied when the engine does not load them in that time.
        """
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._missing.seconds_left()):
                        await self._changed.wait()
                self._changed.clear()
                self._settle_lost()
                await self._admit()
                weights = self._next_in_flight() if self._holding else self._next()
                self._report(weights)
                if self._holding:
                    await self._share_device()
                else:
                    weights = await self._with_device(weights)
                if weights is not None:
                    await self._replace(weights)
        finally:
            self._missing.clear()

    async def _with_device(self, weights: WeightsVersion | None) -> WeightsVersion | None:
        """Returns the weights to load now, for which the engine has its device.

        A trainer that waits for the device goes first: runs that the loaded weights suit are over.
        The engine sleeps then, until it is its turn again and runs need weights.
        """
        if self._turns.keeps_runs and not self._turns.has_device:
            self.loaded = None  # it fell asleep with runs, and the last of them is over
        if self._turns.must_give_back:
            if self._turns.has_device:
                self.loaded = None
                await self._turns.give_back()
            return None
        if weights is None or self._turns.has_device:
            return weights
        await self._turns.take()
        return self._next()  # news may have come meanwhile

    async def _share_device(self) -> None:
        """Has the engine sleep with the runs that it has while the trainer works, where it may."""
        if not self._turns.keeps_runs:
            return
        if self._turns.must_give_back:
            if self._turns.has_device:
                await self._turns.give_back(with_runs=True)
        elif not self._turns.has_device:
            await self._turns.take()

    async def _enter(self, required: WeightsRequirement) -> Admission:
        if self.loaded is not None and not self._is_loading and self._may_enter(required):
            self._take(required)
            return self.loaded, required
        entered: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        self._waiting[entered] = required
        self._changed.set()
        try:
            return await entered
        except asyncio.CancelledError:
            if entered.done() and not entered.cancelled():
                self._leave(entered.result()[1])
            self._changed.set()
            raise
        finally:
            self._waiting.pop(entered, None)

    def _take(self, required: WeightsRequirement) -> None:
        if not self._holding:
            ENGINE_IDLE_SECONDS.add(time.monotonic() - self._idle_since)
        self._holding[required] += 1

    def _leave(self, required: WeightsRequirement) -> None:
        self._holding[required] -= 1
        if not self._holding[required]:
            del self._holding[required]
            self._idle_since = time.monotonic()
            self._changed.set()

    def _may_enter(self, required: WeightsRequirement) -> bool:
        """True if the loaded weights suit, and no run waits for an exact version before it."""
        if not required.matches(self.loaded):
            return False
        return required.exact_version or not self._exact_ahead()

    def _exact_ahead(self) -> list[WeightsRequirement]:
        """Returns exact requirements that wait for weights that are published, oldest first."""
        exact = (required for required in self._waiting.values() if required.exact_version)
        return sorted((r for r in exact if self._find(r, self._failed)), key=_load_order)

    def _next_in_flight(self) -> WeightsVersion | None:
        """Returns newer weights that all runs in progress may take now, if there are any."""
        if not self._keeps_requests or any(held.exact_version for held in self._holding):
            return None
        exact = self._exact_ahead()
        wanted = [self._find(exact[0], ())] if exact else self._published()
        newer = [
            weights
            for weights in wanted
            if weights is not None
            and weights not in self._failed
            and _is_newer(weights.id, self.loaded)
            and all(held.matches(weights.id) for held in self._holding)
        ]
        return max(newer, key=lambda w: (w.id.incarnation, w.id.version), default=None)

    def _report(self, next_: WeightsVersion | None) -> None:
        """Reports the versions in use, those needed next, and those that are unavailable.

        The loaded version may differ from those that runs name, and must be kept as well.
        """
        needed = {required.version for required in self._waiting.values()}
        used = (self.loaded, next_.id if next_ is not None else None)
        needed |= {weights_id.version for weights_id in used if weights_id is not None}
        self._heartbeats.set_version(self.loaded.version if self.loaded else NO_VERSION)
        self._heartbeats.set_pinned_versions(needed)
        missing = [r for r in self._waiting.values() if self._find(r, self._failed) is None]
        self._missing.update({required: self._missing_reason(required) for required in missing})

    def _missing_reason(self, required: WeightsRequirement) -> MissingReason:
        for weights, reason in self._failed.items():
            if required.matches(weights.id):
                where = f"of version {weights.id.version} in {weights.path}"
                return MissingReason("files", f"{where} to match their manifest: {reason}")
        name = f"version {required.version} of incarnation {required.incarnation}"
        known = ", ".join(str(weights.id.version) for weights in self._published()) or "none"
        return MissingReason("trainer", f"to publish {name}; it keeps {known}")

    def _settle_lost(self) -> None:
        """Ends runs whose weights are lost, or lets them take newer ones."""
        for entered, required in list(self._waiting.items()):
            lost = self._lost_match(required)
            if lost is None or entered.done():
                continue
            if required.takes_newer_if_lost:
                self._waiting[entered] = replace(required, exact_version=False)
            else:
                entered.set_exception(
                    WeightsLost(
                        f"the weights of version {required.version} are lost: {lost.damage}, and "
                        "there is no other copy"
                    )
                )

    def _lost_match(self, required: WeightsRequirement) -> LostWeights | None:
        """Returns the lost weights that the run needs, unless others suit it."""
        if not required.exact_version or oldest_match(required, self._published()) is not None:
            return None
        return next((lost for lost in self._damage.lost() if required.matches(lost.id)), None)

    def _next(self) -> WeightsVersion | None:
        """Returns the weights to load; refused ones are retried only when no others suit."""
        for required in sorted(self._waiting.values(), key=_load_order):
            for excluded in (self._failed, self._backing_off):
                if weights := self._find(required, excluded):
                    return weights
        return None

    def _find(
        self, required: WeightsRequirement, excluded: Container[WeightsVersion]
    ) -> WeightsVersion | None:
        usable = tuple(weights for weights in self._published() if weights not in excluded)
        return oldest_match(required, usable)

    async def _replace(self, weights: WeightsVersion) -> None:
        before, self.loaded = self.loaded, None
        self._is_loading = True
        try:
            await self._load_in_time(weights)
            self.loaded = weights.id
            self._failed.pop(weights, None)
        except ManifestError as error:
            if self._holding and weights.offer is None:
                self.loaded = before  # files are verified before anything is replaced
            self._back_off(weights, str(error))
            await self._report_once(weights, str(error))
        finally:
            self._is_loading = False
        self._changed.set()
        await self._admit()

    async def _load_in_time(self, weights: WeightsVersion) -> None:
        seconds = self._retry_policy.seconds
        waits = self._retry_policy.waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_="engine",
            reason=f"to load weights version {weights.id.version}",
            deadline_seconds=self._retry_policy.deadline_seconds,
        )
        with waits:
            async with deadline(
                seconds, EngineDied(f"the engine did not take weights in {seconds:g} s")
            ):
                await self._load(weights)

    def _back_off(self, weights: WeightsVersion, reason: str) -> None:
        """Sets weights aside for a while: files that cannot be read now may be readable later."""
        logger.error("weights refused", extra={"path": str(weights.path), "reason": reason})
        self._failed[weights] = reason
        self._backing_off.add(weights)
        asyncio.get_running_loop().call_later(RETRY_SECONDS, self._reconsider, weights)

    async def _report_once(self, weights: WeightsVersion, reason: str) -> None:
        """Reports refused weights; a report that fails is repeated with the next refusal."""
        if weights in self._reported:
            return
        try:
            await self._damage.report(weights, reason)
        except RpcError as error:
            logger.warning("damaged weights not reported", extra={"reason": str(error)})
        else:
            self._reported.add(weights)

    def _reconsider(self, weights: WeightsVersion) -> None:
        self._backing_off.discard(weights)
        self._changed.set()

    async def _admit(self) -> None:
        """Admits runs that the loaded weights suit, in batches; meanwhile no weights are loaded."""
        if self.loaded is None:
            return
        num_admitted = 0
        exact_first = sorted(self._waiting.items(), key=lambda item: not item[1].exact_version)
        for entered, required in exact_first:
            if entered.done() or not self._may_enter(required):
                continue
            self._take(required)
            del self._waiting[entered]
            entered.set_result((self.loaded, required))
            num_admitted += 1
            if num_admitted % ADMISSION_BATCH == 0:
                await asyncio.sleep(0)


def _is_newer(weights: WeightsId, loaded: WeightsId | None) -> bool:
    """True for a later version of the same or a later incarnation, and if none is loaded."""
    if loaded is None:
        return True
    is_later = weights.version >= loaded.version and weights.incarnation >= loaded.incarnation
    return is_later and weights != loaded


def _load_order(required: WeightsRequirement) -> tuple[int, int, bool]:
    return required.version, required.incarnation, not required.exact_version
