"""The weights that a run requires, and the loading of published ones."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from services.explorer.engine import Engine, EngineDied
from services.explorer.weights_types import PublishedWeights
from trinity import manifest
from trinity.errors import ManifestError
from trinity.transfer.offer import Offer

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 0.5


PublishedNow = Callable[[], tuple[PublishedWeights, ...]]


class Transfers(Protocol):
    """Receives weights from a trainer's memory."""

    async def receive(self, weights: PublishedWeights, offer: Offer) -> bool:
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
