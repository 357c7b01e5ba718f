"""A child process that answers lines of JSON: the parent's end of a `RequestChannel`.

This file uses one of asyncio's insides, a process's `_transport`, as Python 3.11 to 3.14 have it;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any, Self

from trinity.runtime.process.box import Box
from trinity.runtime.process.child_process import OWN_IDENTITY, Identity, module_command

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
        """Starts a module in a new process group.

        `max_line_bytes` also bounds the output that is buffered here before it is read.
        """
        return await cls.execute(
            module_command(module, *arguments),
            env=env,
            identity=identity,
            max_line_bytes=max_line_bytes,
            stderr=stderr,
            pass_fds=pass_fds,
        )

    @classmethod
    async def execute(
        cls,
        command: list[str],
        *,
        env: Mapping[str, str],
        identity: Identity | Box = OWN_IDENTITY,
        max_line_bytes: int = MAX_LINE_BYTES,
        stderr: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Self:
        """Starts a command in a new process group, which may be of another Python."""
        return cls(
            await asyncio.create_subprocess_exec(
                *identity.command(command, death_signal=signal.SIGKILL),
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                limit=max_line_bytes,
                env=env,
                start_new_session=True,
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
        """Kills the process and its group, and closes this end of its pipes.

        `Process.wait` would wait for a descendant in another group that holds the other end.
        """
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process._transport.close()  # type: ignore[attr-defined]  # typeshed leaves it out
        await self.process.wait()

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
