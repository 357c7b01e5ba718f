"""Computes the advantages of groups: ours here, those of users in a process of their own."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np

from services.buffer.domain.group import FloatVector
from services.buffer.domain.samples import storable
from trinity.algorithm.advantage import ADVANTAGES, BUILT_IN
from trinity.algorithm.advantage.samples import Samples
from trinity.local.identity import OWN_IDENTITY
from trinity.types import JsonObject, JsonValue

MODULE = "trinity.algorithm.advantage.worker"
LOAD_SECONDS = 30.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024


class AdvantageFailed(Exception):
    """The function cannot be used, or not on this group."""


class AdvantageTimeout(AdvantageFailed):
    """The function did not come to its end; others may have to wait for the next process."""


class Advantages:
    """One worker process, started when first needed; killed when it does not answer.

    async with Advantages(limit_seconds=10.0) as advantages:
        await advantages.load("my_rewards.centered")
        await advantages.compute("my_rewards.centered", {}, rewards)
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._loaded: set[str] = set()

    @property
    def limit_seconds(self) -> float:
        """How long a function may take for one group."""
        return self._limit_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def load(self, name: str) -> None:
        """Make sure that the function is there, as its file is now.

        Raises: AdvantageFailed.
        """
        if name in BUILT_IN:
            return
        async with self._turn:
            await self._end()
            await self._load(name)

    async def compute(
        self, name: str, arguments: Mapping[str, JsonValue], rewards: FloatVector
    ) -> FloatVector:
        """Rewards [N] to advantages, which may be anything that a user's function gives.

        Raises: AdvantageFailed.
        """
        if name in BUILT_IN:
            return ADVANTAGES.get(name)(Samples.of_groups(rewards), **arguments).values
        async with self._turn:
            if name not in self._loaded:
                await self._load(name)
            request: JsonObject = {
                "name": name,
                "arguments": dict(arguments),
                "rewards": rewards.tolist(),
            }
            answer = await self._ask(request, self._limit_seconds)
        return np.array(answer["advantages"], dtype=np.float64)

    async def _load(self, name: str) -> None:
        request: JsonObject = {"name": name, "arguments": {}, "rewards": None}
        await self._ask(request, LOAD_SECONDS)
        self._loaded.add(name)

    async def _ask(self, request: JsonObject, limit_seconds: float) -> JsonObject:
        process = self._process or await self._start()
        try:
            async with asyncio.timeout(limit_seconds):
                line = await _exchange(process, json.dumps(request))
        except TimeoutError as error:
            await self._end()
            raise AdvantageTimeout(f"it did not answer within {limit_seconds:g} s") from error
        except BaseException:
            # An answer that nobody waits for must not be taken for the next one's.
            await self._end()
            raise
        if not line:
            await self._end()
            raise AdvantageFailed("the process that calls it ended")
        answer: JsonObject = json.loads(line)
        if error_text := answer.get("error"):
            raise AdvantageFailed(storable(str(error_text)))
        return answer

    async def _start(self) -> Process:
        command = OWN_IDENTITY.command([sys.executable, "-m", MODULE], death_signal=signal.SIGKILL)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._loaded.clear()
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


async def _exchange(process: Process, request: str) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(request.encode() + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()
    except (ConnectionError, ValueError):
        return b""
