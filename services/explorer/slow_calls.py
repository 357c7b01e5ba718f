"""Calls of a model beside the policy, shown while one of them takes long."""

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
    """The engine, but whoever waits long for its answers says so: `trinity why` names the model.

    The policy's engine needs none: what it is slow at is a run, which is shown as such.
    """

    def __init__(self, engine: Engine, *, name: str, waits: Waits) -> None:
        self._engine = engine
        self._name = name
        self._waits = waits
        self._open: dict[object, float] = {}
        """Since when, in the order of their beginning."""
        self._timer: asyncio.TimerHandle | None = None

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        heard: Heard | None = None,
    ) -> Generation:
        """Continue the prompt."""
        with self._shown():
            return await self._engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Of given tokens."""
        with self._shown():
            return await self._engine.score(token_ids, num_likeliest=num_likeliest)

    async def load_weights(self, directory: Path) -> None:
        """Its weights stay as they are."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {directory}")

    @property
    def receivers(self) -> Receivers:
        """The engine's own, which never are."""
        return self._engine.receivers

    async def receive_weights(self, seat: Seat) -> str:
        """Its weights stay as they are."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {seat}")

    async def check(self) -> None:
        """Raises: EngineDied when it has."""
        await self._engine.check()

    async def close(self) -> None:
        """Free what the engine holds."""
        await self._engine.close()

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """A call lasts as long as the block."""
        mine = object()
        self._open[mine] = time.monotonic()
        self._look_in_time()
        try:
            yield
        finally:
            del self._open[mine]
            self._look_in_time()

    def _look_in_time(self) -> None:
        """As long as the oldest call is the same, one look at it is enough."""
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
