"""Holds the service's one gang and reuses it from stage to stage."""

from collections.abc import Awaitable, Callable

from services.trainer.gang import Gang
from services.trainer.state import TrainerState

StartGang = Callable[[int], Awaitable[Gang]]
"""Starts a gang with this number of ranks."""


class GangKeeper:
    """Keeps a gang between stages: importing torch takes longer than building a small model."""

    def __init__(self, *, start: StartGang, state: TrainerState, stop_seconds: float) -> None:
        self._start = start
        self._state = state
        self._stop_seconds = stop_seconds
        self._gang: Gang | None = None

    @property
    def has_gang(self) -> bool:
        """True if there are ranks."""
        return self._gang is not None

    async def gang_of(self, num_ranks: int) -> Gang:
        """Returns the current gang if it has that many ranks, else a new one."""
        if self._gang is not None and self._gang.num_ranks != num_ranks:
            await self.stop()
        if self._gang is None:
            self._gang = await self._start(num_ranks)
            self._state.num_ranks = num_ranks
        return self._gang

    async def stop(self) -> None:
        """Stops the ranks gracefully; kills those that take too long."""
        gang, self._gang = self._gang, None
        if gang is not None:
            await gang.stop(self._stop_seconds)

    async def kill(self) -> None:
        """Kills the ranks at once."""
        gang, self._gang = self._gang, None
        if gang is not None:
            await gang.kill()
