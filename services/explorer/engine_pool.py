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
    """Each call goes to the engine that has the fewest, in turn where several have as few.

    Which one answers makes no difference: a response follows from weights, prompt and seed. All of
    them have the same weights whenever nothing is being loaded, and one that dies ends them all.
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
        """Continue the prompt on the engine with the least to do."""
        with self._chosen() as engine:
            return await engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, heard=heard
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """By the engine with the least to do."""
        with self._chosen() as engine:
            return await engine.score(token_ids, num_likeliest=num_likeliest)

    async def load_weights(self, directory: Path) -> None:
        """Give all of them the same weights, at the same time."""
        async with asyncio.TaskGroup() as tasks:
            for engine in self._engines:
                tasks.create_task(engine.load_weights(directory))

    @property
    def receivers(self) -> Receivers:
        """All of theirs, in the order of the engines; of one kind, as the engines are."""
        each = [engine.receivers for engine in self._engines]
        return Receivers(
            count=sum(one.count for one in each), have_gpu=all(one.have_gpu for one in each)
        )

    async def receive_weights(self, seat: Seat) -> str:
        """All at the same time, in one group; one that fails is enough for none to use them."""
        async with asyncio.TaskGroup() as tasks:
            receiving = []
            for engine in self._engines:
                receiving.append(tasks.create_task(engine.receive_weights(seat)))
                seat = moved(seat, engine.receivers.count)
        return next((task.result() for task in receiving if task.result()), "")

    async def check(self) -> None:
        """Raises: EngineDied when any of them has."""
        for engine in self._engines:
            await engine.check()

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    @contextmanager
    def _chosen(self) -> Iterator[Engine]:
        """The engine with the least to do, which has a call more until the block ends."""
        chosen = self._least_busy()
        self._num_calls[chosen] += 1
        try:
            yield self._engines[chosen]
        finally:
            self._num_calls[chosen] -= 1

    def _least_busy(self) -> int:
        """The first after the one chosen last, among those with the fewest calls."""
        count = len(self._engines)
        in_turn = [(self._last + 1 + i) % count for i in range(count)]
        self._last = min(in_turn, key=self._num_calls.__getitem__)
        return self._last
