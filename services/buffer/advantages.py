"""Calls advantage functions: ours here, those of users in a process of their own."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from services.buffer.domain.samples import storable
from trinity.algorithm.advantage import ADVANTAGES, BUILT_IN
from trinity.algorithm.advantage import samples as contract
from trinity.algorithm.advantage.needs import Arguments, Needs, needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.advantage.wire import advantages_from_json, samples_to_json
from trinity.errors import UserError
from trinity.local.identity import OWN_IDENTITY
from trinity.types import JsonObject

MODULE = "trinity.algorithm.advantage.worker"
LOAD_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
Computed = contract.Advantages | str
"""What a call gave, or why it gave nothing."""


class AdvantageFailed(Exception):
    """The function cannot be used, or not on these samples."""


class Advantages:
    """One worker process, started when first needed; killed when it does not answer.

    async with Advantages(limit_seconds=10.0) as advantages:
        await advantages.load("my_rewards.centered")
        await advantages.compute("my_rewards.centered", {}, [samples])
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._needs: dict[str, Needs] = {}

    @property
    def limit_seconds(self) -> float:
        """How long a function may take for one call."""
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
            await self._ask_needs(name, {})

    async def needs(self, name: str, arguments: Arguments) -> Needs:
        """What the function asks for when it is called with these arguments.

        Raises: AdvantageFailed.
        """
        if name in BUILT_IN:
            return needs_of(ADVANTAGES.get(name), arguments)
        async with self._turn:
            return await self._ask_needs(name, arguments)

    async def compute(
        self, name: str, arguments: Arguments, parts: Sequence[Samples]
    ) -> list[Computed]:
        """Call the function once for each part, in their order.

        A part that ends the process, or takes too long, has that as its error and is the last one
        in the answer: those after it were not tried.
        """
        if name in BUILT_IN:
            return [await asyncio.to_thread(_call, name, arguments, part) for part in parts]
        async with self._turn:
            try:
                await self._ask_needs(name, arguments)
            except AdvantageFailed as error:
                return [str(error) for _ in parts]
            return await self._compute(name, arguments, parts)

    async def _compute(
        self, name: str, arguments: Arguments, parts: Sequence[Samples]
    ) -> list[Computed]:
        computed: list[Computed] = []
        await self._send(name, arguments, [samples_to_json(part) for part in parts])
        try:
            for _ in parts:
                computed.append(_read(await self._receive(self._limit_seconds)))
        except AdvantageFailed as error:
            computed.append(str(error))
        return computed

    async def _ask_needs(self, name: str, arguments: Arguments) -> Needs:
        asked = json.dumps([name, dict(arguments)], sort_keys=True)
        if asked not in self._needs:
            await self._send(name, arguments, None)
            answer = await self._receive(LOAD_SECONDS)
            if "error" in answer:
                raise AdvantageFailed(_sentence(answer["error"]))
            self._needs[asked] = Needs(**answer)
        return self._needs[asked]

    async def _send(
        self, name: str, arguments: Arguments, parts: Sequence[JsonObject] | None
    ) -> None:
        request = {"name": name, "arguments": dict(arguments), "parts": parts}
        process = self._process or await self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _receive(self, limit_seconds: float) -> dict[str, Any]:
        """The next line of the process, which is written to as long as it reads."""
        assert self._process is not None
        try:
            async with asyncio.timeout(limit_seconds):
                line = await _next_line(self._process)
        except TimeoutError as error:
            await self._end()
            raise AdvantageFailed(f"it did not answer within {limit_seconds:g} s") from error
        except BaseException:
            # Answers that nobody waits for must not be taken for those of others.
            await self._end()
            raise
        if not line:
            await self._end()
            raise AdvantageFailed("the process that calls it ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _start(self) -> Process:
        command = OWN_IDENTITY.command([sys.executable, "-m", MODULE], death_signal=signal.SIGKILL)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=MAX_ANSWER_BYTES
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        self._needs.clear()
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


def _call(name: str, arguments: Arguments, part: Samples) -> Computed:
    try:
        return ADVANTAGES.get(name)(part, **arguments)
    except UserError as error:
        return _sentence(str(error))
    except Exception as error:  # arguments are a user's
        return _sentence(f"{type(error).__name__}: {error}")


def _read(answer: dict[str, Any]) -> Computed:
    if "error" in answer:
        return _sentence(answer["error"])
    return advantages_from_json(answer)


def _sentence(error: str) -> str:
    """The first line of what it says."""
    return storable(error.strip().split("\n")[0]) or "it failed without a word"


async def _next_line(process: Process) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    try:
        await process.stdin.drain()
        return await process.stdout.readline()
    except (ConnectionError, ValueError):
        return b""
