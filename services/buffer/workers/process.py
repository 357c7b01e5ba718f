"""Worker processes of the buffer: one caller at a time, a process for each tenant."""

import asyncio
import json
import os
import re
import secrets
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from services.buffer.domain.tasks import sanitize_text
from services.buffer.tenants import SHARES_ALL, WorkerIsolation
from trinity.runtime.process.child_process import end_child, module_command, start_child
from trinity.user_code.worker_process import WROTE_TO_CHANNEL, NotAnAnswer, answer_of

ValueT = TypeVar("ValueT")
OUR_PREFIX = "TRINITY_"
_MISSING_KEY = re.compile(r"KeyError: '(\w+)'")
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_WORKERS = 4


def reader_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables of a process of ours that reads what a tenant names."""
    return {name: value for name, value in given.items() if not name.startswith(OUR_PREFIX)}


class WorkerFailed(Exception):
    """Raised when the process ended or was killed; the next request starts another one."""


class WorkerProcess:
    """One process at a time, for one caller at a time.

    await worker.send({"kind": "operator", ...})
    answer = await worker.receive(limit_seconds=10.0)
    """

    def __init__(
        self, module: str, memory_bytes: int, isolation: WorkerIsolation = SHARES_ALL
    ) -> None:
        self._module = module
        self._memory_bytes = memory_bytes
        self._isolation = isolation
        self._process: Process | None = None
        self._token = ""
        """Of the last request: its answer has it, too, and no line before or after does."""

    @property
    def is_running(self) -> bool:
        """True if the process is running and keeps its state."""
        return self._process is not None

    async def send(self, request: Mapping[str, Any]) -> None:
        """Sends a request; the part that does not fit into the pipe is written in `receive`."""
        process = self._process or await self._start()
        assert process.stdin is not None
        self._token = secrets.token_hex(8)
        process.stdin.write(json.dumps({**request, "token": self._token}).encode() + b"\n")

    async def receive(self, limit_seconds: float) -> dict[str, Any]:
        """Returns the answer to the last request.

        Raises: WorkerFailed, also when a line comes that is not the answer to it.
        """
        assert self._process is not None
        try:
            async with asyncio.timeout(limit_seconds):
                line = await _next_line(self._process)
        except TimeoutError as error:
            await self.kill()
            raise WorkerFailed(f"it did not answer within {limit_seconds:g} s") from error
        except BaseException:
            # An abandoned answer must not be taken for the answer to a later request.
            await self.kill()
            raise
        if not line:
            await self.kill()
            raise WorkerFailed("the process that calls it ended")
        try:
            answer = answer_of(line, self._token)
        except NotAnAnswer as error:
            await self.kill()
            raise WorkerFailed(str(error)) from error
        if answer.get("is_last"):
            await self.kill()
            raise WorkerFailed(str(answer.get("error")))
        return answer

    async def _start(self) -> Process:
        argv = module_command(self._module, str(self._memory_bytes))
        self._process = await start_child(
            argv,
            limit=MAX_ANSWER_BYTES,
            env=self._isolation.environment(),
            identity=await self._isolation.identity(self._memory_bytes),
        )
        return self._process

    async def kill(self) -> None:
        """Kills the process and its group."""
        process, self._process = self._process, None
        if process is not None:
            await end_child(process)


def read_answer(convert: Callable[[dict[str, Any]], ValueT], answer: dict[str, Any]) -> ValueT:
    """Returns what an answer holds.

    Raises: WorkerFailed if it holds something else: users' code knows how to answer, too.
    """
    try:
        return convert(answer)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WorkerFailed(WROTE_TO_CHANNEL) from error


class TenantWorkers:
    """A process for each tenant: what one leaves in its process, another must not find.

    worker = await workers.of_tenant("a")   # the one that was idle longest ends beyond MAX_WORKERS
    """

    def __init__(
        self, module: str, memory_bytes: int, isolation_of: Callable[[str], WorkerIsolation]
    ) -> None:
        self._module = module
        self._memory_bytes = memory_bytes
        self._isolation_of = isolation_of
        self._workers: dict[str, WorkerProcess] = {}

    def is_running(self, tenant: str) -> bool:
        """True if the tenant's process is running and keeps its state."""
        return tenant in self._workers and self._workers[tenant].is_running

    async def of_tenant(self, tenant: str) -> WorkerProcess:
        """Returns the tenant's process; the caller holds the turn of all of them."""
        worker = self._workers.pop(tenant, None)
        if worker is None:
            if len(self._workers) >= MAX_WORKERS:
                await self._workers.pop(next(iter(self._workers))).kill()
            isolation = self._isolation_of(tenant)
            worker = WorkerProcess(self._module, self._memory_bytes, isolation)
        self._workers[tenant] = worker
        return worker

    async def kill(self, tenant: str) -> None:
        """Kills the tenant's process, if there is one."""
        if worker := self._workers.pop(tenant, None):
            await worker.kill()

    async def kill_all(self) -> None:
        """Kills every process."""
        for tenant in tuple(self._workers):
            await self.kill(tenant)


async def _next_line(process: Process) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    try:
        await process.stdin.drain()
        return await process.stdout.readline()
    except (ConnectionError, ValueError):
        return b""


def first_line(error: str) -> str:
    """Returns the first line of the error of a user's function.

    A variable that this process has and the function does not see is told with the way to it.
    """
    line = sanitize_text(error.strip().split("\n")[0]) or "it failed without a message"
    missing = _MISSING_KEY.search(line)
    if missing and missing[1] in os.environ:
        return f"{line}: functions see it if TRINITY_BUFFER_FUNCTION_VARIABLES names {missing[1]}"
    return line
