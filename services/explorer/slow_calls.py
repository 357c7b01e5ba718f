"""Shows calls of an auxiliary model that take long."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.explorer.engine import Engine
from trinity.transfer.offer import Receivers, Seat
from trinity.types import SamplingParams
from trinity.waits import Waits
from trinity.workflows.generation import Generation, Heard, Scores

SHOWN_AFTER_SECONDS = 2.0


class SlowCalls:
    """Wraps an engine and shows a wait for slow answers, so that `trinity why` names the model.

    The policy's engine needs no wrapper: its slow calls are part of runs, which are shown.
    """

    def __init__(self, engine: Engine, *, name: str, waits: Waits) -> None:
        self._engine = engine
        self._name = name
        self._waits = waits
        self._open: dict[object, float] = {}
        """Start times of the calls in progress, in order."""
        self._timer: asyncio.TimerHandle | None = None

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        heard: Heard | None = None,
    ) -> Generation:
        """Continues the prompt."""
        with self._shown():
            return await self._engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens."""
        with self._shown():
            return await self._engine.score(token_ids, num_likeliest=num_likeliest)

    async def load_weights(self, directory: Path) -> None:
        """Never called: the weights do not change."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {directory}")

    @property
    def receivers(self) -> Receivers:
        """The engine's receivers, which are never used."""
        return self._engine.receivers

    async def receive_weights(self, seat: Seat) -> str:
        """Never called: the weights do not change."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {seat}")

    async def check(self) -> None:
        """Raises EngineDied if the engine has died."""
        await self._engine.check()

    async def close(self) -> None:
        """Releases the engine's resources."""
        await self._engine.close()

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Tracks a call until the block ends."""
        token = object()
        self._open[token] = time.monotonic()
        self._look_in_time()
        try:
            yield
        finally:
            del self._open[token]
            self._look_in_time()

    def _look_in_time(self) -> None:
        """Schedules a look at the oldest call; one timer at a time is enough."""
        oldest = next(iter(self._open.values()), None)
        waited = 0.0 if oldest is None else time.monotonic() - oldest
        if oldest is None or waited < SHOWN_AFTER_SECONDS:
            self._waits.clear(self._name)
        if oldest is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(SHOWN_AFTER_SECONDS - waited, 0.0), self._look)

    def _look(self) -> None:
        self._timer = None
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return
        waited = time.monotonic() - oldest
        if waited < SHOWN_AFTER_SECONDS:
            self._look_in_time()
            return
        self._waits.set(
            self._name,
            waits_for="engine",
            reason=f"to answer as {self._name}",
            waited_seconds=waited,
        )
