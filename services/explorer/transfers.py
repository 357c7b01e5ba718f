"""Moves weights from the trainer's memory to the engine's, and shows when files are needed."""

import logging
import time

from services.explorer.engine import Engine
from services.explorer.weights_types import PublishedWeights
from trinity.errors import TransferFailed
from trinity.telemetry.instruments import TRANSFERS
from trinity.threads import in_daemon_thread
from trinity.transfer.offer import Limits, Offer, Seat
from trinity.waits import Waits

logger = logging.getLogger(__name__)

SHOWN_AFTER_SECONDS = 1.0
FILES = "files"


class EngineTransfers:
    """Receives offered weights within limits; a failure's reason shows until files are loaded.

    transfers = EngineTransfers(engine=engine, waits=waits, limits=Limits.within(3600))
    if not await transfers.receive(weights, weights.offer):
        ...  # load the files
    transfers.over()
    """

    def __init__(self, *, engine: Engine, waits: Waits, limits: Limits) -> None:
        self._engine = engine
        self._waits = waits
        self._limits = limits

    async def receive(self, weights: PublishedWeights, offer: Offer) -> bool:
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

    async def _failure(self, weights: PublishedWeights, offer: Offer) -> str:
        version = weights.id.version
        limits = self._limits
        waits = self._waits.if_longer(
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

    def _ask(self, weights: PublishedWeights, offer: Offer) -> Seat:
        from trinity.transfer.asking import ask  # imports torch, in this thread

        return ask(
            offer,
            self._engine.receivers,
            limits=self._limits,
            weights_sha256=weights.weights_sha256,
        )
