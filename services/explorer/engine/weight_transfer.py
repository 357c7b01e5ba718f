"""The weights that a run requires, and the loading of published ones."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from services.explorer.engine.interface import Engine, EngineDied
from services.explorer.types import PublishedWeights
from trinity.errors import ManifestError, TransferFailed
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.threads import in_daemon_thread
from trinity.telemetry.metrics import TRANSFERS
from trinity.weights import manifest
from trinity.weights.offer import OfferAddress, ReceiverSlot, TransferTimeouts

logger = logging.getLogger(__name__)


T = TypeVar("T")

LOOK_SECONDS = 0.5


PublishedNow = Callable[[], tuple[PublishedWeights, ...]]


class Transfers(Protocol):
    """Receives weights from a trainer's memory."""

    async def receive(self, weights: PublishedWeights, offer: OfferAddress) -> bool:
        """Returns true if the engine now has exactly these weights, false if it needs files."""
        ...


class WeightLoader:
    """Loads published weights into the engine after verifying every byte."""

    def __init__(self, engine: Engine, holds: PublishedWeights | None = None) -> None:
        self._engine = engine
        self._content = holds.content if holds is not None else None

    async def load(self, weights: PublishedWeights, transfers: Transfers | None = None) -> None:
        """Loads weights; if their content is already loaded, only the name changes.

        Raises: ManifestError when the files are not as announced, EngineDied.
        """
        if not await self._take(weights, transfers):
            await self._verify(weights)
            if self._content != weights.content:
                await self._load(weights)
        logger.info(
            "weights loaded",
            extra={"version": weights.id.version, "incarnation": weights.id.incarnation},
        )

    async def _load(self, weights: PublishedWeights) -> None:
        """Loads the files; if they are removed meanwhile, the engine holds mixed weights."""
        self._content = None
        try:
            await self._watched(self._engine.load_weights(weights.path))
        except EngineDied:
            raise
        except Exception:  # the engine's own, of whatever type: the files may be why
            await self._check_left(weights)
            raise
        self._content = weights.content

    async def _check_left(self, weights: PublishedWeights) -> None:
        """Raises EngineDied if the files are not what they were."""
        try:
            await self._verify(weights)
        except ManifestError as error:
            raise EngineDied(f"its weights were removed while it loaded them: {error}") from error

    async def _verify(self, weights: PublishedWeights) -> None:
        if not weights.manifest_sha256:
            return
        found = await asyncio.to_thread(manifest.verify, weights.path, weights.manifest_sha256)
        if bytes.fromhex(found.weights_sha256) != weights.weights_sha256:
            raise ManifestError(f"{weights.path} holds other weights than were announced")

    async def _take(self, weights: PublishedWeights, transfers: Transfers | None) -> bool:
        """Receives weights from memory if offered; a partial transfer leaves no `_content`."""
        if transfers is None or weights.offer is None or self._content == weights.content:
            return False
        self._content = None
        if not await self._watched(transfers.receive(weights, weights.offer)):
            return False
        self._content = weights.content
        return True

    async def _watched(self, call: Coroutine[None, None, T]) -> T:
        """Awaits a call while checking the engine, which never answers once its process died."""
        loading = asyncio.ensure_future(call)
        try:
            while not (await asyncio.wait({loading}, timeout=LOOK_SECONDS))[0]:
                await self._engine.check()
            return loading.result()
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)


SHOWN_AFTER_SECONDS = 1.0
FILES = "files"


class EngineTransfers:
    """Receives offered weights within limits; a failure's reason shows until files are loaded.

    transfers = EngineTransfers(engine=engine, waits=waits, limits=TransferTimeouts.within(3600))
    if not await transfers.receive(weights, weights.offer):
        ...  # load the files
    transfers.over()
    """

    def __init__(self, *, engine: Engine, waits: Waits, limits: TransferTimeouts) -> None:
        self._engine = engine
        self._waits = waits
        self._limits = limits

    async def receive(self, weights: PublishedWeights, offer: OfferAddress) -> bool:
        """Returns true if the engine now has exactly these weights, false if it needs files."""
        about = {"version": weights.id.version, "incarnation": weights.id.incarnation}
        begun = time.perf_counter()
        failure = await self._failure(weights, offer)
        seconds = round(time.perf_counter() - begun, 3)
        TRANSFERS.add(1, {"trinity.outcome": FILES if failure else "received"})
        if failure:
            logger.warning(
                "weights are taken from files, not from the trainer's memory",
                extra=about | {"reason": failure, "seconds": seconds},
            )
            version = weights.id.version
            self._waits.set(
                FILES,
                waits_for=FILES,
                reason=f"of version {version}, which did not come from memory: {failure}",
            )
            return False
        logger.info(
            "weights received from the trainer's memory", extra=about | {"seconds": seconds}
        )
        return True

    def over(self) -> None:
        """Clears the wait once the weights are loaded, one way or the other."""
        self._waits.clear(FILES)

    async def _failure(self, weights: PublishedWeights, offer: OfferAddress) -> str:
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
                seat = await in_daemon_thread(lambda: self._ask(weights, offer))
                return await self._engine.receive_weights(seat)
        except TransferFailed as error:
            return str(error)

    def _ask(self, weights: PublishedWeights, offer: OfferAddress) -> ReceiverSlot:
        from trinity.weights.rendezvous import request_transfer  # imports torch, in this thread

        return request_transfer(
            offer,
            self._engine.receivers,
            limits=self._limits,
            weights_sha256=weights.weights_sha256,
        )
