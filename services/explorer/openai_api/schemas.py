"""Bounds the JSON Schemas that responses are held to, before an engine compiles them."""

import asyncio
import hashlib
import json
from asyncio.subprocess import DEVNULL
from collections import OrderedDict

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.runtime.process.worker import Worker, WorkerFailed
from trinity.workflows.generation import ANY_OBJECT

WORKER = "services.explorer.openai_api.schema_worker"
START_SECONDS = 180.0
"""Time to import the libraries, on a machine that does much else."""
MAX_SECONDS = 10.0
"""Time until the process that compiles a schema is killed."""
MAX_PROCESSOR_SECONDS = 1.0
"""The engine compiles a schema again, partly in the process that serves all requests."""
MAX_BYTES = 128 * 1024
MAX_VALUES = 20_000
MAX_DEPTH = 64
MAX_REMEMBERED = 4096


class SchemaChecker:
    """Compiles each new schema in a child process that is killed when it takes too long.

    A schema that compiles in time is remembered. Schemas are compiled one at a time.

        await checker.check_schema('{"type": "object"}')
        await checker.close()
    """

    def __init__(self, model_path: str, *, max_seconds: float = MAX_SECONDS) -> None:
        self._model_path = model_path
        self._max_seconds = max_seconds
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None
        self._errors: OrderedDict[bytes, str] = OrderedDict()

    async def check_schema(self, schema: str) -> None:
        """Returns if an engine may be given the schema; raises InvalidApiRequest."""
        if schema in ("", ANY_OBJECT):
            return
        check_size(schema)
        key = hashlib.sha256(schema.encode()).digest()
        if key not in self._errors:
            async with self._turn:
                if key not in self._errors:
                    self._remember(key, await self._compile(schema))
        if error := self._errors[key]:
            raise _refusal(error)

    async def close(self) -> None:
        """Kills the child process."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.kill()

    def _remember(self, key: bytes, error: str) -> None:
        self._errors[key] = error
        if len(self._errors) > MAX_REMEMBERED:
            self._errors.popitem(last=False)

    async def _compile(self, schema: str) -> str:
        """Returns why the schema is refused; empty if it is not. After a failure there is no child.

        Raises: RuntimeError when the child cannot be started.
        """
        try:
            worker = self._worker or await self._start()
            worker.ask({"schema": schema})
            async with asyncio.timeout(self._max_seconds):
                seconds = (await worker.read())["seconds"]
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                return f"did not compile within {self._max_seconds:g} s"
            if isinstance(error, WorkerFailed):
                return "takes more memory to compile than it may, or ends the compiler"
            raise
        if seconds > MAX_PROCESSOR_SECONDS:
            return f"takes {seconds:.1f} s to compile, more than {MAX_PROCESSOR_SECONDS:g} s"
        return ""

    async def _start(self) -> Worker:
        self._worker = worker = await Worker.start(WORKER, self._model_path, stderr=DEVNULL)
        worker.ask({})
        try:
            await worker.read(START_SECONDS)
        except WorkerFailed as error:
            raise RuntimeError(
                "the process that compiles JSON Schemas did not start: run "
                f"`python -P -m {WORKER} {self._model_path}` to see why"
            ) from error
        return worker


def check_size(schema: str) -> None:
    """Raises InvalidApiRequest for a schema that is too large or nested too deeply."""
    if len(schema) > MAX_BYTES:
        raise _refusal(f"has more than {MAX_BYTES // 1024} KiB")
    level: list[object] = [json.loads(schema)]
    num_values = depth = 0
    while level:
        num_values, depth = num_values + len(level), depth + 1
        if num_values > MAX_VALUES:
            raise _refusal(f"has more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise _refusal(f"is nested more than {MAX_DEPTH} deep")
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]


def _refusal(why: str) -> InvalidApiRequest:
    return InvalidApiRequest(
        f"the schema of the response {why}: give a smaller one", param="response_format"
    )
