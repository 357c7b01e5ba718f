"""Worker processes of the buffer: one caller at a time, a process for each tenant."""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from services.buffer.domain.tasks import sanitize_text
from services.buffer.tenants import WorkerIsolation
from trinity.runtime.process.worker import WROTE_TO_CHANNEL, NotAnAnswer, Worker, WorkerFailed

ValueT = TypeVar("ValueT")
OUR_PREFIX = "TRINITY_"
_MISSING_KEY = re.compile(r"KeyError: '(\w+)'")
MAX_WORKERS = 4


def reader_environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment of a process that reads data named by a tenant."""
    return {name: value for name, value in given.items() if not name.startswith(OUR_PREFIX)}


def read_answer(convert: Callable[[dict[str, Any]], ValueT], answer: dict[str, Any]) -> ValueT:
    """Returns the value in an answer.

    Raises: NotAnAnswer if it holds something else: users' code knows how to answer, too.
    """
    try:
        return convert(answer)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NotAnAnswer(WROTE_TO_CHANNEL) from error


class TenantWorkers:
    """A process for each tenant: what one leaves in its process, another must not find.

    workers = TenantWorkers("trinity.operators.worker", 2**31, policy.isolation_of)
    answer = await workers.ask("a", {"kind": "operator", ...}, limit_seconds=10.0)

    One caller at a time asks; beyond MAX_WORKERS the process that was idle longest ends.
    """

    def __init__(
        self, module: str, memory_bytes: int, isolation_of: Callable[[str], WorkerIsolation]
    ) -> None:
        self._module = module
        self._memory_bytes = memory_bytes
        self._isolation_of = isolation_of
        self._workers: dict[str, Worker] = {}

    def is_running(self, tenant: str) -> bool:
        """True if the tenant's process is running and keeps its state."""
        return tenant in self._workers

    async def ask(
        self, tenant: str, request: Mapping[str, Any], limit_seconds: float
    ) -> dict[str, Any]:
        """Returns the answer of the tenant's process, and starts the process if necessary.

        Raises: WorkerFailed if there is no answer: the process is then killed; UserError if this
        machine does not allow the process.
        """
        worker = self._workers.pop(tenant, None) or await self._start(tenant)
        self._workers[tenant] = worker  # the last one: it is idle for the shortest time
        try:
            worker.ask(request)
            answer = await worker.read(limit_seconds)
            if answer.get("is_last"):
                raise WorkerFailed(str(answer.get("error")))
        except BaseException:
            # An abandoned answer must not be taken for the answer to a later request.
            await self.kill(tenant)
            raise
        return answer

    async def _start(self, tenant: str) -> Worker:
        if len(self._workers) >= MAX_WORKERS:
            await self.kill(next(iter(self._workers)))
        isolation = self._isolation_of(tenant)
        return await Worker.start(
            self._module,
            str(self._memory_bytes),
            env=isolation.environment(),
            identity=await isolation.identity(self._memory_bytes),
        )

    async def kill(self, tenant: str) -> None:
        """Kills the tenant's process, if there is one."""
        if worker := self._workers.pop(tenant, None):
            await worker.kill()

    async def kill_all(self) -> None:
        """Kills every process."""
        for tenant in tuple(self._workers):
            await self.kill(tenant)


def first_line(error: str) -> str:
    """Returns the first line of an error from a user's function.

    If it lacks a variable of this process, the line also says how to make the variable visible.
    """
    line = sanitize_text(error.strip().split("\n")[0]) or "it failed without a message"
    missing = _MISSING_KEY.search(line)
    if missing and missing[1] in os.environ:
        return f"{line}: functions see it if TRINITY_BUFFER_FUNCTION_VARIABLES names {missing[1]}"
    return line
