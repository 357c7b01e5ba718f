"""Calls operators, advantage and priority functions: users' ones in worker processes."""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Self

from services.buffer.domain.operators import PipelineFunction
from services.buffer.tenants import DATA_JUICER, TenantPolicy
from services.buffer.workers.process import TenantWorkers, first_line, read_answer
from trinity.algorithm.advantage.needs import Needs, needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.priority import PRIORITIES, PRIORITY_PATHS
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.evaluation import compute_priorities
from trinity.config.schema.base import Args
from trinity.errors import Unavailable, UserError
from trinity.operators.kinds import PRIORITY, READ, USER_FUNCTION_KINDS
from trinity.runtime.process.worker import WorkerFailed
from trinity.runtime.threads import in_daemon_thread

OPERATOR_WORKER = "trinity.operators.worker"
LOAD_SECONDS = 90.0
"""Time to import a user's file: torch alone may take a minute from a busy or slow disk."""
TURN_SECONDS = 1.0
"""Time for calls on groups of one stage before another stage has its turn."""

UNRESTRICTED = TenantPolicy.unrestricted()
ReadBodies = Callable[[int, Sequence[int]], Awaitable[list[bytes]]]
"""Returns the wire bytes of samples, by the number of their part and their places in it."""
NEEDS_UNKNOWN = "what it needs was not known when its samples were read"


class FunctionFailed(Exception):
    """Raised when a function cannot be used at all, or not on these samples."""


class FunctionProcessDied(FunctionFailed):
    """Raised when the worker process died or did not answer; a retry may succeed."""


class ServiceUnavailable(Exception):
    """Raised when a service that a built-in operator calls does not answer."""


class FunctionRunner:
    """Calls the functions of all stages; a harmful call only ends the worker process.

    async with FunctionRunner(limit_seconds=10.0, memory_bytes=2**31) as functions:
        await functions.load_functions("a tenant", [operator])
        await functions.call_function("a tenant", operator, [samples])
        await functions.load_priority("a tenant", "my_priorities.surprising", {})
        await functions.compute_priorities("a tenant", "my_priorities.surprising", {}, candidates)
    """

    def __init__(
        self, limit_seconds: float, memory_bytes: int, policy: TenantPolicy = UNRESTRICTED
    ) -> None:
        self._limit_seconds = limit_seconds
        self._memory_bytes = memory_bytes
        self._policy = policy
        self._turn = asyncio.Lock()
        self._workers = TenantWorkers(OPERATOR_WORKER, memory_bytes, policy.isolation_of)
        self._needs: dict[tuple[str, str], Needs] = {}

    @property
    def limit_seconds(self) -> float:
        """Time limit of one call."""
        return self._limit_seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._workers.kill_all()

    async def load_functions(self, tenant: str, operators: Sequence[PipelineFunction]) -> None:
        """Loads a tenant's functions, as their files are now.

        Raises: FunctionFailed that names the one that cannot be loaded.
        """
        for operator in operators:
            await self._check(tenant, operator)
        if not all(operator.is_built_in for operator in operators):
            async with self._turn:
                await self._workers.kill(tenant)
        for operator in operators:
            try:
                await self.needs(tenant, operator)
            except FunctionFailed as error:
                raise FunctionFailed(f"{operator.title}: {error}") from error

    async def needs(self, tenant: str, operator: PipelineFunction) -> Needs:
        """Returns the inputs that the function needs when called with its arguments.

        Raises: FunctionFailed, also for one that the tenant may not have run.
        """
        await self._check(tenant, operator)
        if operator.is_built_in:
            return _needs(operator)
        if known := self._known_needs(tenant, operator):
            return known
        async with self._turn:
            return await self._ask_needs(tenant, operator)

    async def _check(self, tenant: str, operator: PipelineFunction) -> None:
        grants = self._policy.grants(tenant)
        try:
            if not operator.is_built_in:
                grants.check_function(operator.title)
                await self._policy.isolation.identity(self._memory_bytes)
            elif operator.name == DATA_JUICER:
                grants.check_data_juicer(dict(operator.arguments))
        except UserError as error:
            raise FunctionFailed(str(error)) from error

    async def call_function(
        self,
        tenant: str,
        operator: PipelineFunction,
        parts: Sequence[Samples],
        read: ReadBodies | None = None,
    ) -> list[Any]:
        """Calls the function on each part in order; a result that is a text is the call's error.

        `read` loads whole samples when the function needs more than their given fields.

        The result may be shorter than `parts`; the others were not tried. It ends after a part that
        ends the process or takes too long, which gets that as its error, when the turn is over, and
        before a part for which a service is unavailable.

        Raises: ServiceUnavailable when the service is unavailable for the first part.
        """
        try:
            await self._check(tenant, operator)
        except FunctionFailed as error:
            return [str(error) for _ in parts]
        if operator.is_built_in:
            return await _compute_here(operator, parts)
        if not parts:
            return []
        async with self._turn:
            try:
                needs = await self._ask_needs(tenant, operator)
            except FunctionFailed as error:
                return [str(error) for _ in parts]
            if needs != operator.needs:
                # The process was lost before it reported its needs: inputs may be missing.
                return [NEEDS_UNKNOWN for _ in parts]
            return await self._call_in_worker(tenant, operator, parts, read)

    async def _call_in_worker(
        self,
        tenant: str,
        operator: PipelineFunction,
        parts: Sequence[Samples],
        read: ReadBodies | None,
    ) -> list[Any]:
        kind = USER_FUNCTION_KINDS[operator.kind]
        computed: list[Any] = []
        try:
            for number, part in enumerate(_in_turn(parts)):
                encoded = await asyncio.to_thread(kind.input_to_json, part)
                asked = {**_request(operator), "part": encoded, "can_read": read is not None}
                answer = await self._answer(
                    tenant, asked, len(part.rewards), read and partial(read, number)
                )
                failed = "error" in answer
                computed.append(read_answer(_error if failed else kind.result_from_json, answer))
        except WorkerFailed as error:
            computed.append(str(error))
        return computed

    async def _answer(
        self,
        tenant: str,
        asked: dict[str, Any],
        num_samples: int,
        read: Callable[[Sequence[int]], Awaitable[list[bytes]]] | None,
    ) -> dict[str, Any]:
        """Returns the answer to a call, during which the function may read whole samples.

        Loading them does not count towards its time limit.
        """
        left = self._limit_seconds
        while True:
            begun = time.monotonic()
            answer = await self._workers.ask(tenant, asked, left)
            if read is None or READ not in answer:
                return answer
            left -= time.monotonic() - begun
            try:
                bodies = await read(read_answer(partial(_places, num_samples), answer))
            except BaseException:
                # It would take the next request for the samples that it waits for.
                await self._workers.kill(tenant)
                raise
            asked = {"bodies": [base64.b64encode(body).decode() for body in bodies]}

    async def load_priority(self, tenant: str, name: str, arguments: Args) -> None:
        """Loads a tenant's priority function, as its file is now.

        Raises: FunctionFailed, also for one that the tenant may not have run.
        """
        if name not in PRIORITY_PATHS:
            async with self._turn:
                await self._workers.kill(tenant)
                await self._ask_priorities(tenant, name, arguments, [], LOAD_SECONDS)

    async def compute_priorities(
        self, tenant: str, name: str, arguments: Args, candidates: Sequence[Candidate]
    ) -> list[float | None]:
        """Returns one priority per candidate.

        Raises: FunctionFailed; FunctionProcessDied if it may be retried.
        """
        if name not in PRIORITY_PATHS:
            async with self._turn:
                is_loaded = self._workers.is_running(tenant)
                limit = self._limit_seconds + (0.0 if is_loaded else LOAD_SECONDS)
                return await self._ask_priorities(tenant, name, arguments, candidates, limit)
        try:
            return await asyncio.to_thread(
                compute_priorities, PRIORITIES.get(name), arguments, candidates
            )
        except Exception as error:  # arguments are a user's
            raise FunctionFailed(first_line(f"{type(error).__name__}: {error}")) from error

    async def _ask_priorities(
        self,
        tenant: str,
        name: str,
        arguments: Args,
        candidates: Sequence[Candidate],
        limit_seconds: float,
    ) -> list[float | None]:
        listed = [asdict(candidate) for candidate in candidates]
        asked = {"kind": PRIORITY, "name": name, "arguments": arguments, "candidates": listed}
        try:
            self._policy.grants(tenant).check_function("it")
            answer = await self._workers.ask(tenant, asked, limit_seconds)
            if "error" in answer:
                raise FunctionFailed(read_answer(_error, answer))
            return read_answer(partial(_priorities, len(candidates)), answer)
        except UserError as error:
            raise FunctionFailed(str(error)) from error
        except WorkerFailed as error:
            raise FunctionProcessDied(str(error)) from error

    async def _ask_needs(self, tenant: str, operator: PipelineFunction) -> Needs:
        if known := self._known_needs(tenant, operator):
            return known
        asked = {**_request(operator), "part": None}
        try:
            answer = await self._workers.ask(tenant, asked, LOAD_SECONDS)
            if "error" in answer:
                raise FunctionFailed(read_answer(_error, answer))
            needs = read_answer(Needs.from_json, answer)
        except UserError as error:
            raise FunctionFailed(str(error)) from error
        except WorkerFailed as error:
            raise FunctionFailed(f"while its file was loaded, {error}") from error
        self._needs[tenant, _asked(operator)] = needs
        return needs

    def _known_needs(self, tenant: str, operator: PipelineFunction) -> Needs | None:
        """Returns needs reported by the current process; another one may load other files."""
        self._needs = {
            key: needs for key, needs in self._needs.items() if self._workers.is_running(key[0])
        }
        return self._needs.get((tenant, _asked(operator)))


def _error(answer: dict[str, Any]) -> str:
    return first_line(answer["error"])


def _places(num_samples: int, answer: dict[str, Any]) -> list[int]:
    return [range(num_samples)[place] for place in answer[READ]]


async def _compute_here(operator: PipelineFunction, parts: Sequence[Samples]) -> list[Any]:
    computed: list[Any] = []
    for part in _in_turn(parts):
        try:
            computed.append(await in_daemon_thread(partial(_call, operator, part)))
        except ServiceUnavailable:
            if not computed:
                raise
            break
    return computed


def _in_turn(parts: Sequence[Samples]) -> Iterator[Samples]:
    """Yields the first part, and others as long as the turn lasts."""
    ends = time.monotonic() + TURN_SECONDS
    for place, part in enumerate(parts):
        if place and time.monotonic() >= ends:
            return
        yield part


def _asked(operator: PipelineFunction) -> str:
    return json.dumps(_request(operator), sort_keys=True)


def _request(operator: PipelineFunction) -> dict[str, Any]:
    return {"kind": operator.kind, "name": operator.name, "arguments": dict(operator.arguments)}


def _needs(operator: PipelineFunction) -> Needs:
    function = USER_FUNCTION_KINDS[operator.kind].registry.get(operator.name)
    try:
        return needs_of(function, operator.arguments)
    except UserError as error:
        raise FunctionFailed(first_line(str(error))) from error


def _call(operator: PipelineFunction, part: Samples) -> Any:
    try:
        return USER_FUNCTION_KINDS[operator.kind].call(operator.name, part, operator.arguments)
    except UserError as error:
        return first_line(str(error))
    except Unavailable as error:
        raise ServiceUnavailable(str(error)) from error
    except Exception as error:  # arguments are a user's
        return first_line(f"{type(error).__name__}: {error}")


def _priorities(num_candidates: int, answer: dict[str, Any]) -> list[float | None]:
    computed = [None if value is None else float(value) for value in answer["priorities"]]
    if len(computed) != num_candidates:
        raise ValueError
    return computed
