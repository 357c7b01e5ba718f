"""Health of a service: `""` says the process lives, its name says that what it needs is usable."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health, health_pb2

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
LAST_WORD_SECONDS = 0.1
"""For a watch to tell that the service is going away."""


class _EndingWatches(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    """Watches that end with the service: as streams without an end they would hold up its stop."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every watch."""
        self._closing.set()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Tell every change until the service ends."""
        telling = asyncio.ensure_future(super().Watch(request, context))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((telling, closing), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((telling,), timeout=LAST_WORD_SECONDS)
        finally:
            telling.cancel()
            closing.cancel()
        if telling.done():
            telling.result()


class Health:
    """Readiness of the named services, not ready until said otherwise."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.servicer = _EndingWatches()
        self._names = names
        self._reason: str | None = "starting"

    @property
    def ready(self) -> bool:
        """Whether what the service needs is usable."""
        return self._reason is None

    async def start(self) -> None:
        """Say that the process lives and is not ready yet."""
        await self.servicer.set("", SERVING)
        for name in self._names:
            await self.servicer.set(name, NOT_SERVING)

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Say whether what the service needs is usable, and if not, why; logs each change."""
        new = None if ready else (reason or "not ready")
        if new == self._reason:
            return
        self._reason = new
        if ready:
            logger.info("ready")
        else:
            logger.warning("not ready", extra={"reason": new})
        for name in self._names:
            await self.servicer.set(name, SERVING if ready else NOT_SERVING)

    async def stop(self) -> None:
        """Say that the service is going away; later changes have no effect."""
        await self.servicer.enter_graceful_shutdown()
        self.servicer.close()
