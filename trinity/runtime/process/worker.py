"""A child process that answers lines of JSON: the parent's end of a `RequestChannel`."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Any, Self

from trinity.runtime.process.box import Box
from trinity.runtime.process.child_process import (
    OWN_IDENTITY,
    Identity,
    end_child,
    module_command,
    start_child,
)

Message = dict[str, Any]
MAX_LINE_BYTES = 64 * 1024**2
ENDING_SECONDS = 1.0
"""Wait for the exit code of a process that has closed its output."""
WROTE_TO_CHANNEL = (
    "your code wrote to the channel over which its process answers: write to standard output or to "
    "a file of your own"
)


class WorkerFailed(Exception):
    """Raised when a worker ended, was too slow, or wrote a line that is no answer.

    It cannot be used afterwards, and its owner kills it.
    """


class NotAnAnswer(WorkerFailed):
    """Raised for a line on the channel of a process that its worker did not write."""


def answer_of(line: bytes, token: str) -> Message:
    """Returns the message on a line.

    Raises: NotAnAnswer unless it has the token, and so was written through a `RequestChannel`.
    """
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict) or answer.pop("token", None) != token:
        raise NotAnAnswer(WROTE_TO_CHANNEL)
    return answer


class Worker:
    """A process that answers one caller at a time; it dies with this process.

    worker = await Worker.start("trinity.operators.worker", "2147483648")
    worker.ask({"kind": "operator", ...})
    answer = await worker.read()
    await worker.kill()
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._token = ""
        """Of the last `ask`: lines that answer it have it, too, and no line before does."""

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        env: Mapping[str, str] = os.environ,
        identity: Identity | Box = OWN_IDENTITY,
        max_line_bytes: int = MAX_LINE_BYTES,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Starts a module."""
        return cls(
            await start_child(
                module_command(module, *arguments),
                limit=max_line_bytes,
                env=env,
                identity=identity,
                stderr=stderr,
                pass_fds=pass_fds,
            )
        )

    def ask(self, request: Mapping[str, object]) -> None:
        """Sends a request with a new token; what does not fit into the pipe follows."""
        self._token = secrets.token_hex(8)
        self.write({**request, "token": self._token})

    def write(self, *messages: Mapping[str, object]) -> None:
        """Sends lines that belong to the last request, all of them at once."""
        assert self.process.stdin is not None
        lines = "".join(f"{json.dumps(message)}\n" for message in messages)
        self.process.stdin.write(lines.encode())

    async def read(self, limit_seconds: float | None = None) -> Message:
        """Returns the next answer to the last request.

        Raises: WorkerFailed, also when the answer does not come in time.
        """
        try:
            async with asyncio.timeout(limit_seconds):
                line = await self._line()
        except TimeoutError as error:
            raise WorkerFailed(f"it did not answer within {limit_seconds:g} s") from error
        if not line.endswith(b"\n"):
            raise WorkerFailed(f"the process that calls it ended ({await self._ending()})")
        return answer_of(line, self._token)

    async def read_payload(self, num_bytes: int) -> bytes:
        """Returns the bytes that follow an answer. Raises: WorkerFailed if it ends before."""
        assert self.process.stdout is not None
        try:
            return await self.process.stdout.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise WorkerFailed(f"the process ended ({await self._ending()})") from error

    async def kill(self) -> None:
        """Kills the process and all that it started."""
        await end_child(self.process)

    async def _line(self) -> bytes:
        assert self.process.stdout is not None
        with contextlib.suppress(ConnectionError, ValueError):  # also what came before its end
            return await self.process.stdout.readline()
        return b""

    async def _ending(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_SECONDS):
                await self.process.wait()
        code = self.process.returncode
        if code is not None and code < 0:
            return f"by {signal.Signals(-code).name}"
        return f"with exit code {code}"
