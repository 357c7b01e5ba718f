"""Health of a service: `""` means that the process is alive, its name that it is ready."""

import asyncio
import logging

import grpc
from grpc_health.v1 import health, health_pb2

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
FINAL_STATUS_SECONDS = 0.1
"""Time for a watch to report that the service is going away."""


class _ClosableHealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # it has no types
    """Health watches that end with the service: endless ones would delay its shutdown."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = asyncio.Event()

    def close(self) -> None:
        """Ends every watch."""
        self._closing.set()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Sends every change until the service ends."""
        watching = asyncio.ensure_future(super().Watch(request, context))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((watching, closing), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((watching,), timeout=FINAL_STATUS_SECONDS)
        finally:
            watching.cancel()
            closing.cancel()
        if watching.done():
            watching.result()


class Health:
    """Readiness of the named services, not ready until set otherwise."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.servicer = _ClosableHealthServicer()
        self._names = names
        self._reason: str | None = "starting"

    @property
    def ready(self) -> bool:
        """True if the dependencies of the service are usable."""
        return self._reason is None

    async def start(self) -> None:
        """Reports that the process is alive and not ready yet."""
        await self.servicer.set("", SERVING)
        for name in self._names:
            await self.servicer.set(name, NOT_SERVING)

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Sets the readiness and, if not ready, the reason; logs each change."""
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

    async def set_loop(self, name: str, works: bool) -> None:
        """Sets the health of a loop of the process, asked for as `loop/NAME`."""
        await self.servicer.set(f"loop/{name}", SERVING if works else NOT_SERVING)

    async def shut_down(self) -> None:
        """Reports that the service is going away; later changes have no effect."""
        await self.servicer.enter_graceful_shutdown()
        self.servicer.close()
