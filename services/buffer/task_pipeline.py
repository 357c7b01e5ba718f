"""The process that takes the rows of a taskset through its task pipeline, seen from the buffer."""

import asyncio
import contextlib
import json
import signal
import sys
from array import array
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from services.buffer.domain.samples import storable
from services.buffer.store.task_pipelines import PipelineCounts
from trinity.errors import PreconditionFailed
from trinity.local.identity import OWN_IDENTITY
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

MODULE = "trinity.task_operators.worker"
CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = 64 * 1024 * 1024
CALL, DONE, ROW, SUMMARY, ERROR = b"C", b"D", b"R", b"S", b"E"


class PipelineDied(Exception):
    """Its process was ended by somebody else; nothing says that it would be again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLimits:
    """What users' task operators may take."""

    call_seconds: float
    memory_bytes: int


@dataclass(slots=True)
class PipelineProcess:
    """One taskset's; it holds rows on the disk until their order is known.

    async with PipelineProcess(pipeline, limits) as process:
        feeding = group.create_task(process.feed(rows))
        async for row in process.rows(): ...
    """

    pipeline: ResolvedTaskPipeline
    limits: PipelineLimits
    counts: PipelineCounts | None = None
    """There when all rows were given."""
    source_rows: "array[int]" = field(default_factory=lambda: array("q"))
    """Which row of the source each one is that was given."""
    _process: Process | None = None
    _calls: str = ""
    """A user's operator that is being called."""

    async def __aenter__(self) -> Self:
        argv = [sys.executable, "-m", MODULE, str(self.limits.memory_bytes)]
        command = OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def feed(self, rows: AsyncIterator[str]) -> None:
        """Give it all rows; one that has ended takes none, and `rows` says why."""
        assert self._process is not None and self._process.stdin is not None
        stdin = self._process.stdin
        with contextlib.suppress(ConnectionError):
            stdin.write(self.pipeline.model_dump_json().encode() + b"\n")
            chunk, size = [], 0
            async for row in rows:
                chunk.append(row.encode() + b"\n")
                size += len(chunk[-1])
                if size >= CHUNK_BYTES:
                    stdin.write(b"".join(chunk))
                    await stdin.drain()
                    chunk, size = [], 0
            stdin.write(b"".join(chunk))
            await stdin.drain()
            stdin.close()

    async def rows(self) -> AsyncIterator[str]:
        """The rows that stay, in their order.

        Raises: PreconditionFailed for what an operator does wrong, PipelineDied.
        """
        async for line in self._lines():
            letter, text = line[:1], line[2:]
            if letter == ROW:
                number, _, row = text.partition(b" ")
                self.source_rows.append(int(number))
                yield row.decode()
            elif letter == SUMMARY:
                self.counts = PipelineCounts(**json.loads(text))
            elif letter == ERROR:
                raise PreconditionFailed(f"task_pipeline: {storable(text.decode())}")
            else:
                self._calls = text.decode() if letter == CALL else ""
        if self.counts is None:
            called = f" while {self._calls} was called" if self._calls else ""
            raise PipelineDied(f"task_pipeline: the process that runs it ended{called}")

    async def _lines(self) -> AsyncIterator[bytes]:
        """Its answers; the time limit is that of a user's operator which is called."""
        assert self._process is not None and self._process.stdout is not None
        rest = b""
        while chunk := await self._next(self._process.stdout):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line

    async def _next(self, stdout: asyncio.StreamReader) -> bytes:
        seconds = self.limits.call_seconds if self._calls else None
        try:
            async with asyncio.timeout(seconds):
                return await stdout.read(CHUNK_BYTES)
        except TimeoutError as error:
            raise PreconditionFailed(
                f"task_pipeline: task operator {self._calls} did not answer within {seconds:g} s"
            ) from error
