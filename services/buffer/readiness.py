"""What the buffer needs to be of use: the database and a place on the stream."""

from services.buffer.ingest import Ingest
from services.buffer.stream import RunStream
from trinity.rpc.health import Health


class Needs:
    """Passes on what is said about the database, unless the broker is away."""

    def __init__(self, *, health: Health, ingest: Ingest, stream: RunStream) -> None:
        self._health = health
        self._ingest = ingest
        self._stream = stream

    async def wait_bound(self) -> None:
        """Return when results are taken from the stream for the first time."""
        await self._ingest.bound.wait()

    async def set_ready(self, ready: bool, reason: str = "") -> None:
        """Take the news about the database."""
        is_bound = self._ingest.bound.is_set() and self._stream.is_connected
        if ready and not is_bound:
            ready, reason = False, "the broker does not answer"
        await self._health.set_ready(ready, reason)
