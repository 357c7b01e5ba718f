"""Several engines with the same weights, used as one."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.explorer.engine import Engine
from trinity.transfer.offer import Receivers, Seat, moved
from trinity.types import SamplingParams
from trinity.workflows.generation import Generation, Heard, Scores


class EnginePool:
    """Sends each call to the engine with the fewest calls, in turn among equals.

    The choice does not affect the response, which follows from weights, prompt and seed. All
    engines have the same weights whenever nothing is being loaded. If one dies, the pool fails.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = list(engines)
        self._num_calls = [0] * len(engines)
        self._last = -1

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        heard: Heard | None = None,
    ) -> Generation:
        """Continues the prompt on the least busy engine."""
        with self._chosen() as engine:
            return await engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores tokens on the least busy engine."""
        with self._chosen() as engine:
            return await engine.score(token_ids, num_likeliest=num_likeliest)

    async def load_weights(self, directory: Path) -> None:
        """Loads the same weights into all engines at the same time."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self._engines:
                tasks.create_task(engine.load_weights(directory))

    @property
    def receivers(self) -> Receivers:
        """The receivers of all engines, in the engines' order; all are of one kind."""
        parts = [engine.receivers for engine in self._engines]
        return Receivers(
            count=sum(part.count for part in parts), have_gpu=all(part.have_gpu for part in parts)
        )

    async def receive_weights(self, seat: Seat) -> str:
        """Receives in all engines at once, as one group; if one fails, none may use the weights."""
        async with asyncio.TaskGroup() as tasks:
            receiving = []
            for engine in self._engines:
                receiving.append(tasks.create_task(engine.receive_weights(seat)))
                seat = moved(seat, engine.receivers.count)
        return next((task.result() for task in receiving if task.result()), "")

    async def check(self) -> None:
        """Raises EngineDied if any engine has died."""
        for engine in self._engines:
            await engine.check()

    async def close(self) -> None:
        """Closes all engines."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    @contextmanager
    def _chosen(self) -> Iterator[Engine]:
        """Yields the least busy engine and counts a call on it until the block ends."""
        chosen = self._least_busy()
        self._num_calls[chosen] += 1
        try:
            yield self._engines[chosen]
        finally:
            self._num_calls[chosen] -= 1

    def _least_busy(self) -> int:
        """Returns the index of the next engine in turn among those with the fewest calls."""
        count = len(self._engines)
        in_turn = [(self._last + 1 + i) % count for i in range(count)]
        self._last = min(in_turn, key=self._num_calls.__getitem__)
        return self._last
