"""Loads published weights into an engine, from files or from a trainer's memory."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from services.explorer.engine.in_flight import InFlightEngine
from services.explorer.engine.interface import Engine, EngineDied
from services.explorer.types import WeightsVersion
from trinity.errors import ManifestError, TransferFailed
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.telemetry.metrics import DELTAS, TRANSFERS
from trinity.runtime.threads import in_daemon_thread
from trinity.weights import manifest
from trinity.weights.identity import same_weights
from trinity.weights.offer import OfferAddress, ReceiverSlot, TransferTimeouts
from trinity.weights.stored import is_delta
from trinity.weights.whole import SharedModel, whole_model

logger = logging.getLogger(__name__)

ValueT = TypeVar("ValueT")
ListWeights = Callable[[], tuple[WeightsVersion, ...]]
HEALTH_CHECK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
FILE_FALLBACK = "files"


class WeightReceiver(Protocol):
    """Receives weights from a trainer's memory."""

    async def receive_offered(self, weights: WeightsVersion, offer: OfferAddress) -> bool:
        """Returns true if the engine now has exactly these weights, false if it needs files."""
        ...


class WeightLoader:
    """Loads published weights into the engine after verifying every byte.

    `in_flight` are the parts of the engine that take weights amid requests, if it does.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: WeightsVersion | None = None,
        in_flight: Sequence[InFlightEngine] = (),
        *,
        spans_hosts: bool = False,
    ) -> None:
        """Deltas are applied in shared memory or, if it `spans_hosts`, next to their files."""
        self._spans_hosts = spans_hosts
        self._shared = SharedModel()
        self._engine = engine
        self._content = loaded.content if loaded is not None else None
        self._in_flight = in_flight

    async def load_published(
        self, weights: WeightsVersion, transfers: WeightReceiver | None = None
    ) -> None:
        """Loads weights; if their content is already loaded, only the name changes.

        Raises: ManifestError when the files are not as announced, EngineDied.
        """
        for engine in self._in_flight:
            engine.name_next(weights.id)
        if not await self._receive(weights, transfers):
            await self._verify(weights)
            if self._content != weights.content:
                await self._load_files(weights)
            for engine in self._in_flight:
                engine.relabel(weights.id)
        logger.info(
            "weights loaded",
            extra={"version": weights.id.version, "incarnation": weights.id.incarnation},
        )

    def forget_content(self) -> None:
        """Records that the engine's weights are gone: the same ones would be loaded again."""
        self._content = None

    async def _load_files(self, weights: WeightsVersion) -> None:
        """Loads the files; if they are removed meanwhile, the engine holds mixed weights."""
        async with self._whole_model(weights) as directory:
            self._content = None
            await self._load_directory(weights, directory)

    @asynccontextmanager
    async def _whole_model(self, weights: WeightsVersion) -> AsyncIterator[Path]:
        """Yields a directory with all files, where a delta is applied to its base.

        Raises: ManifestError if they are not the announced weights.
        """
        if not is_delta(weights.path):
            yield weights.path
            return
        applied = (
            whole_model(weights.path, weights, weights.path.parent)
            if self._spans_hosts
            else self._shared.whole_model(weights.path, weights)
        )
        try:
            directory = await asyncio.to_thread(applied.__enter__)
        except ManifestError as error:
            DELTAS.add(1, {"trinity.outcome": "failed"})
            logger.warning(
                "a delta is not applied: the whole version is asked for",
                extra={"version": weights.id.version, "reason": str(error)},
            )
            raise
        DELTAS.add(1, {"trinity.outcome": "applied"})
        try:
            yield directory
        finally:
            await asyncio.to_thread(applied.__exit__, None, None, None)

    async def _load_directory(self, weights: WeightsVersion, directory: Path) -> None:
        try:
            await self._await_with_health_checks(self._engine.load_weights(directory))
        except EngineDied:
            raise
        except Exception:  # the engine's own, of whatever type: the files may be why
            await self._check_files_unchanged(weights)
            raise
        self._content = weights.content

    async def _check_files_unchanged(self, weights: WeightsVersion) -> None:
        """Raises EngineDied if the files have changed."""
        try:
            await self._verify(weights)
        except ManifestError as error:
            raise EngineDied(f"its weights were removed while it loaded them: {error}") from error

    async def _verify(self, weights: WeightsVersion) -> None:
        if not weights.manifest_sha256:
            return
        found = await asyncio.to_thread(manifest.verify, weights.path, weights.manifest_sha256)
        if not same_weights(found.roots, weights):
            raise ManifestError(f"{weights.path} holds other weights than were announced")

    async def _receive(self, weights: WeightsVersion, transfers: WeightReceiver | None) -> bool:
        """Receives weights from memory if offered; a partial transfer leaves no `_content`."""
        if transfers is None or weights.offer is None or self._content == weights.content:
            return False
        self._content = None
        if not await self._await_with_health_checks(
            transfers.receive_offered(weights, weights.offer)
        ):
            return False
        self._content = weights.content
        return True

    async def _await_with_health_checks(self, call: Coroutine[None, None, ValueT]) -> ValueT:
        """Awaits a call while checking the engine, which never answers once its process died."""
        loading = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({loading}, timeout=HEALTH_CHECK_SECONDS))[0]:
                await self._engine.check()
            return loading.result()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)


class EngineWeightReceiver:
    """Receives offered weights within limits; a failure's reason shows until files are loaded.

    limits = TransferTimeouts.within(3600)
    receiver = EngineWeightReceiver(engine=engine, waits=waits, limits=limits)
    if not await receiver.receive_offered(weights, weights.offer):
        ...  # load the files
    receiver.clear_wait()
    """

    def __init__(self, *, engine: Engine, waits: WaitRegistry, limits: TransferTimeouts) -> None:
        self._engine = engine
        self._waits = waits
        self._limits = limits

    async def receive_offered(self, weights: WeightsVersion, offer: OfferAddress) -> bool:
        """Returns true if the engine now has exactly these weights, false if it needs files."""
        about = {"version": weights.id.version, "incarnation": weights.id.incarnation}
        begun = time.perf_counter()
        failure = await self._try_receive(weights, offer)
        timed = about | {"seconds": round(time.perf_counter() - begun, 3)}
        TRANSFERS.add(1, {"trinity.outcome": FILE_FALLBACK if failure else "received"})
        if not failure:
            logger.info("weights received from the trainer's memory", extra=timed)
            return True
        logger.warning(
            "weights are taken from files, not from the trainer's memory",
            extra=timed | {"reason": failure},
        )
        self._show_fallback(weights, failure)
        return False

    def _show_fallback(self, weights: WeightsVersion, failure: str) -> None:
        version = weights.id.version
        self._waits.set(
            FILE_FALLBACK,
            waits_for=FILE_FALLBACK,
            reason=f"of version {version}, which did not come from memory: {failure}",
        )

    def clear_wait(self) -> None:
        """Clears the wait once the weights are loaded, one way or the other."""
        self._waits.clear(FILE_FALLBACK)

    async def _try_receive(self, weights: WeightsVersion, offer: OfferAddress) -> str:
        version = weights.id.version
        limits = self._limits
        waits = self._waits.waiting_if_longer(
            SHOWN_AFTER_SECONDS,
            for_="trainer",
            reason=f"to give version {version} from its memory; after that files are used",
            deadline_seconds=limits.turn_seconds + limits.join_seconds + limits.whole_seconds,
        )
        try:
            with waits:
                slot = await in_daemon_thread(lambda: self._request_slot(weights, offer))
                return await self._engine.receive_weights(slot)
        except TransferFailed as error:
            return str(error)

    def _request_slot(self, weights: WeightsVersion, offer: OfferAddress) -> ReceiverSlot:
        from trinity.weights.rendezvous import request_transfer  # imports torch, in this thread

        return request_transfer(
            offer,
            self._engine.receivers,
            limits=self._limits,
            weights=weights,
        )
