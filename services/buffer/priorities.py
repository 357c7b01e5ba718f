"""Calls priority functions: ours here, those of users in a process of their own."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from services.buffer.domain.samples import storable
from trinity.algorithm.priority import BUILT_IN, PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.computing import priorities_of
from trinity.config.section import Args
from trinity.local.identity import OWN_IDENTITY

MODULE = "trinity.algorithm.priority.worker"
LOAD_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class PriorityFailed(Exception):
    """The function cannot be used, or not on these samples."""


class Priorities:
    """One worker process, started when first needed; killed when it does not answer.

    async with Priorities(limit_seconds=10.0) as priorities:
        await priorities.load("my_priorities.surprising", {})
        await priorities.compute("my_priorities.surprising", {}, candidates)
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    async def load(self, name: str, arguments: Args) -> None:
        """Make sure that the function is there, as its file is now.

        Raises: PriorityFailed.
        """
        if name not in BUILT_IN:
            async with self._turn:
                self._end()
                await self._ask(name, arguments, [], LOAD_SECONDS)

    async def compute(
        self, name: str, arguments: Args, candidates: Sequence[Candidate]
    ) -> list[float | None]:
        """One for each candidate.

        Raises: PriorityFailed.
        """
        if name not in BUILT_IN:
            async with self._turn:
                limit = self._limit_seconds + (0.0 if self._process else LOAD_SECONDS)
                return await self._ask(name, arguments, candidates, limit)
        try:
            return await asyncio.to_thread(
                priorities_of, PRIORITIES.get(name), arguments, candidates
            )
        except Exception as error:  # arguments are a user's
            raise PriorityFailed(_sentence(f"{type(error).__name__}: {error}")) from error

    async def _ask(
        self, name: str, arguments: Args, candidates: Sequence[Candidate], limit_seconds: float
    ) -> list[float | None]:
        listed = [asdict(one) for one in candidates]
        request = {"name": name, "arguments": arguments, "candidates": listed}
        process = self._process or await self._start()
        answer = await self._answer(process, json.dumps(request), limit_seconds)
        if "error" in answer:
            raise PriorityFailed(_sentence(answer["error"]))
        computed: list[float | None] = answer["priorities"]
        return computed

    async def _answer(self, process: Process, line: str, limit_seconds: float) -> dict[str, Any]:
        """The worker is not used any more after it broke off."""
        try:
            async with asyncio.timeout(limit_seconds):
                said = await _exchange(process, line.encode() + b"\n")
        except BaseException as error:
            self._end()
            if isinstance(error, TimeoutError):
                text = f"it did not answer within {limit_seconds:g} s"
                raise PriorityFailed(text) from error
            raise
        if not said:
            self._end()
            raise PriorityFailed("the process that calls it ended")
        answer: dict[str, Any] = json.loads(said)
        return answer

    async def _start(self) -> Process:
        command = OWN_IDENTITY.command([sys.executable, "-m", MODULE], death_signal=signal.SIGKILL)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()


async def _exchange(process: Process, line: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line)
    try:
        await process.stdin.drain()
        return await process.stdout.readline()
    except (ConnectionError, ValueError):
        return b""


def _sentence(error: str) -> str:
    """The first line of what it says."""
    return storable(error.strip().split("\n")[0]) or "it failed without a word"
