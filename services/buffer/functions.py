"""Calls operators and advantage functions: ours here, those of users in a process of their own."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from services.buffer.domain.operator import Operator
from services.buffer.worker_process import WorkerFailed, WorkerProcess, sentence_of
from trinity.algorithm.advantage.needs import Needs, needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.errors import Unavailable, UserError
from trinity.operators.kinds import KINDS
from trinity.threads import in_daemon_thread

MODULE = "trinity.operators.worker"
LOAD_SECONDS = 30.0


class FunctionFailed(Exception):
    """The function cannot be used, or not on these samples."""


class ServiceAway(Exception):
    """What an operator of ours asks does not answer; the samples are not at fault."""


class Functions:
    """Of all stages; a call of a user's function that does harm ends its process alone.

    async with Functions(limit_seconds=10.0, memory_bytes=2**31) as functions:
        await functions.load(operator)
        await functions.compute(operator, [samples])
    """

    def __init__(self, limit_seconds: float, memory_bytes: int) -> None:
        self._limit_seconds = limit_seconds
        self._turn = asyncio.Lock()
        self._worker = WorkerProcess(MODULE, memory_bytes)
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
        await self._worker.end()

    async def load(self, operators: Sequence[Operator]) -> None:
        """Make sure that the functions are there, as their files are now.

        Raises: FunctionFailed naming the one that is not.
        """
        if not all(one.is_built_in for one in operators):
            async with self._turn:
                await self._worker.end()
        for one in operators:
            try:
                await self.needs(one)
            except FunctionFailed as error:
                raise FunctionFailed(f"{one.title}: {error}") from error

    async def needs(self, operator: Operator) -> Needs:
        """What the function asks for when it is called with its arguments.

        Raises: FunctionFailed.
        """
        if operator.is_built_in:
            return _needs(operator)
        async with self._turn:
            return await self._ask_needs(operator)

    async def compute(self, operator: Operator, parts: Sequence[Samples]) -> list[Any]:
        """Call the function once for each part, in their order; a text is why a call gave nothing.

        A part that ends the process, or takes too long, has that as its error and is the last one
        in the answer: those after it were not tried.

        Raises: ServiceAway.
        """
        if operator.is_built_in:
            return [await in_daemon_thread(partial(_call, operator, part)) for part in parts]
        if not parts:
            return []
        async with self._turn:
            try:
                await self._ask_needs(operator)
            except FunctionFailed as error:
                return [str(error) for _ in parts]
            return await self._compute(operator, parts)

    async def _compute(self, operator: Operator, parts: Sequence[Samples]) -> list[Any]:
        kind = KINDS[operator.kind]
        computed: list[Any] = []
        given = await asyncio.to_thread(lambda: [kind.given_to_json(part) for part in parts])
        await self._worker.send({**_request(operator), "parts": given})
        try:
            for _ in parts:
                answer = await self._worker.receive(self._limit_seconds)
                failed = "error" in answer
                computed.append(
                    sentence_of(answer["error"]) if failed else kind.answer_from_json(answer)
                )
        except WorkerFailed as error:
            computed.append(str(error))
        return computed

    async def _ask_needs(self, operator: Operator) -> Needs:
        if not self._worker.is_running:
            self._needs.clear()
        request = _request(operator)
        asked = json.dumps(request, sort_keys=True)
        if asked not in self._needs:
            await self._worker.send({**request, "parts": None})
            try:
                answer = await self._worker.receive(LOAD_SECONDS)
            except WorkerFailed as error:
                raise FunctionFailed(str(error)) from error
            if "error" in answer:
                raise FunctionFailed(sentence_of(answer["error"]))
            self._needs[asked] = Needs.from_json(answer)
        return self._needs[asked]


def _request(operator: Operator) -> dict[str, Any]:
    return {
        "kind": operator.kind,
        "name": operator.name,
        "arguments": dict(operator.arguments),
    }


def _needs(operator: Operator) -> Needs:
    function = KINDS[operator.kind].registry.get(operator.name)
    try:
        return needs_of(function, operator.arguments)
    except UserError as error:
        raise FunctionFailed(sentence_of(str(error))) from error


def _call(operator: Operator, part: Samples) -> Any:
    try:
        return KINDS[operator.kind].call(operator.name, part, operator.arguments)
    except UserError as error:
        return sentence_of(str(error))
    except Unavailable as error:
        raise ServiceAway(str(error)) from error
    except Exception as error:  # arguments are a user's
        return sentence_of(f"{type(error).__name__}: {error}")
