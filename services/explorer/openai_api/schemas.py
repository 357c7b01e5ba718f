"""Bounds the JSON Schemas that responses are held to, before an engine compiles them."""

import asyncio
import hashlib
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from contextlib import suppress

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.runtime.process.child_process import OWN_IDENTITY, close_pipes, module_command
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
        self._process: Process | None = None
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
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        close_pipes(process)
        await process.wait()

    def _remember(self, key: bytes, error: str) -> None:
        self._errors[key] = error
        if len(self._errors) > MAX_REMEMBERED:
            self._errors.popitem(last=False)

    async def _compile(self, schema: str) -> str:
        """Returns why the schema is refused; empty if it is not."""
        try:
            answer = await self._ask(schema)
        except TimeoutError:
            return f"did not compile within {self._max_seconds:g} s"
        if answer is None:
            return "takes more memory to compile than it may, or ends the compiler"
        seconds = json.loads(answer)["seconds"]
        if seconds > MAX_PROCESSOR_SECONDS:
            return f"takes {seconds:.1f} s to compile, more than {MAX_PROCESSOR_SECONDS:g} s"
        return ""

    async def _ask(self, schema: str) -> bytes | None:
        """Returns the child's answer; None if it ended. After any failure there is no child."""
        try:
            process = self._process or await self._start()
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(self._max_seconds):
                process.stdin.write(json.dumps(schema).encode() + b"\n")
                answer = await process.stdout.readline()
        except BaseException:
            await self.close()
            raise
        if not answer:
            await self.close()
        return answer or None

    async def _start(self) -> Process:
        argv = module_command(WORKER, self._model_path)
        self._process = process = await asyncio.create_subprocess_exec(
            *OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await process.stdout.readline()
        except TimeoutError:
            ready = b""
        if not ready:
            raise RuntimeError(
                "the process that compiles JSON Schemas did not start: run "
                f"`python -P -m {WORKER} {self._model_path}` to see why"
            )
        return process


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
