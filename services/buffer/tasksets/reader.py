"""Handle for the process that reads the rows of a taskset."""

import asyncio
import logging
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.buffer.tasksets.read_rows import UNREAD_MARK
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.workers.process import reader_environment
from trinity.errors import PreconditionFailed
from trinity.interpreter import module_command
from trinity.runtime.child_process import end_child, start_child
from trinity.training_rows import SkippedRows

logger = logging.getLogger(__name__)

MODULE = "services.buffer.tasksets.read_rows"
CHUNK_BYTES = 256 * 1024
KEPT_BYTES = 64 * 1024
"""Bytes of its standard error that are kept: the last line says what is wrong."""


@dataclass(frozen=True, slots=True)
class TasksetRowReader:
    """A running reader process."""

    child: Process
    rows: asyncio.StreamReader
    stderr: asyncio.Task[bytes]

    async def read_lines(self) -> AsyncIterator[bytes]:
        """Yields the rows as they arrive: chunks of whole lines with their ends."""
        parts: list[bytes] = []
        while chunk := await self.rows.read(CHUNK_BYTES):
            end = chunk.rfind(b"\n") + 1
            if end:
                yield b"".join([*parts, chunk[:end]])
                parts = []
            parts.append(chunk[end:])

    async def wait_for_exit(self, name: str) -> SkippedRows | None:
        """Waits for the exit of the reader; returns the rows that it left out, if any.

        Files that it left out are logged.

        Raises: PreconditionFailed with the reader's error about the data.
        """
        errors = (await self.stderr).decode(errors="replace").strip()
        for line in errors.splitlines():
            if line.startswith(UNREAD_MARK):
                extra = {"taskset": name, "detail": line.removeprefix(UNREAD_MARK)}
                logger.warning("files beside the shards of a taskset are not read", extra=extra)
        if await self.child.wait() == 0:
            return SkippedRows.from_lines(errors)
        reason = (
            errors.splitlines()[-1] if errors else f"the reader ended with {self.child.returncode}"
        )
        raise PreconditionFailed(f"taskset {name}: {reason}")


@asynccontextmanager
async def open_taskset_row_reader(source: RowSource) -> AsyncIterator[TasksetRowReader]:
    """Runs a reader of these rows, which ends with the block.

    Its standard error is drained all the time, because a full pipe would block it.
    """
    argv = module_command(MODULE)
    child = await start_child(argv, limit=CHUNK_BYTES, env=reader_environment(), stderr=PIPE)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    errors = asyncio.create_task(_last_of(child.stderr))
    try:
        child.stdin.write(source.to_json().encode())
        child.stdin.close()
        yield TasksetRowReader(child, child.stdout, errors)
    finally:
        errors.cancel()
        await end_child(child)
        await asyncio.gather(errors, return_exceptions=True)


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(CHUNK_BYTES):
        kept = (kept + chunk)[-KEPT_BYTES:]
    return kept
