"""Health of a service: `""` says the process lives, its name says that what it needs is usable."""

import logging

from grpc_health.v1 import health, health_pb2

logger = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """Readiness of the named services, not ready until said otherwise."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.servicer = health.aio.HealthServicer()
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
