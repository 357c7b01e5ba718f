"""The process that reads the rows of a taskset, seen from the buffer."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.buffer.child_process import end_child, start_child
from services.buffer.row_source import RowSource
from trinity.errors import PreconditionFailed

MODULE = "services.buffer.read_rows"
CHUNK_BYTES = 256 * 1024
KEPT_BYTES = 64 * 1024
"""Of what it says beside the rows: the last line says what is wrong."""


@dataclass(frozen=True, slots=True)
class Reader:
    """One that has been told what to read."""

    child: Process
    rows: asyncio.StreamReader
    said: asyncio.Task[bytes]

    async def lines(self) -> AsyncIterator[bytes]:
        """The rows as they come, whole lines with their ends: some rows at a time."""
        parts: list[bytes] = []
        while chunk := await self.rows.read(CHUNK_BYTES):
            end = chunk.rfind(b"\n") + 1
            if end:
                yield b"".join([*parts, chunk[:end]])
                parts = []
            parts.append(chunk[end:])

    async def check_end(self, name: str) -> None:
        """Raises: PreconditionFailed with what the reader says is wrong with the data."""
        said = (await self.said).decode(errors="replace").strip()
        if await self.child.wait() != 0:
            reason = (
                said.splitlines()[-1] if said else f"the reader ended with {self.child.returncode}"
            )
            raise PreconditionFailed(f"taskset {name}: {reason}")


@asynccontextmanager
async def reading(source: RowSource) -> AsyncIterator[Reader]:
    """A reader of these rows, which has ended when the block has.

    What it says is taken from it all along: it would wait for that, and its rows with it.
    """
    argv = [sys.executable, "-m", MODULE]
    child = await start_child(argv, limit=CHUNK_BYTES, stderr=PIPE)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    said = asyncio.create_task(_last_of(child.stderr))
    try:
        child.stdin.write(source.model_dump_json().encode())
        child.stdin.close()
        yield Reader(child, child.stdout, said)
    finally:
        said.cancel()
        await end_child(child)
        await asyncio.gather(said, return_exceptions=True)


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(CHUNK_BYTES):
        kept = (kept + chunk)[-KEPT_BYTES:]
    return kept
