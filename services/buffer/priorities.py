"""Calls priority functions: built-in ones here, users' in a worker process."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Self

from services.buffer.worker_process import WorkerFailed, WorkerProcess, sentence_of
from trinity.algorithm.priority import BUILT_IN, PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.computing import priorities_of
from trinity.config.section import Args

MODULE = "trinity.algorithm.priority.worker"
LOAD_SECONDS = 30.0


class PriorityFailed(Exception):
    """Raised when a function cannot be used at all, or not on these samples."""


class PriorityDied(PriorityFailed):
    """Raised when the worker process died or did not answer; a retry may succeed."""


class Priorities:
    """Calls functions in one worker process, started on demand and killed on a timeout.

    async with Priorities(limit_seconds=10.0, memory_bytes=2**31) as priorities:
        await priorities.load("my_priorities.surprising", {})
        await priorities.compute("my_priorities.surprising", {}, candidates)
    """

    def __init__(self, limit_seconds: float, memory_bytes: int) -> None:
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()
        self._worker = WorkerProcess(MODULE, memory_bytes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._worker.end()

    async def load(self, name: str, arguments: Args) -> None:
        """Loads the function, as its file is now.

        Raises: PriorityFailed.
        """
        if name not in BUILT_IN:
            async with self._turn:
                await self._worker.end()
                await self._ask(name, arguments, [], LOAD_SECONDS)

    async def compute(
        self, name: str, arguments: Args, candidates: Sequence[Candidate]
    ) -> list[float | None]:
        """Returns one priority per candidate.

        Raises: PriorityFailed; PriorityDied if it may be retried.
        """
        if name not in BUILT_IN:
            async with self._turn:
                limit = self._limit_seconds + (0.0 if self._worker.is_running else LOAD_SECONDS)
                return await self._ask(name, arguments, candidates, limit)
        try:
            return await asyncio.to_thread(
                priorities_of, PRIORITIES.get(name), arguments, candidates
            )
        except Exception as error:  # arguments are a user's
            raise PriorityFailed(sentence_of(f"{type(error).__name__}: {error}")) from error

    async def _ask(
        self, name: str, arguments: Args, candidates: Sequence[Candidate], limit_seconds: float
    ) -> list[float | None]:
        listed = [asdict(candidate) for candidate in candidates]
        try:
            await self._worker.send({"name": name, "arguments": arguments, "candidates": listed})
            answer = await self._worker.receive(limit_seconds)
        except WorkerFailed as error:
            raise PriorityDied(str(error)) from error
        if "error" in answer:
            raise PriorityFailed(sentence_of(answer["error"]))
        computed: list[float | None] = answer["priorities"]
        return computed
