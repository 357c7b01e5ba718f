"""The process that reads the rows of a taskset, seen from the buffer."""

import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from services.buffer.child_process import end_child, start_child
from services.buffer.row_source import RowSource
from trinity.errors import PreconditionFailed

MODULE = "services.buffer.read_rows"
CHUNK_BYTES = 256 * 1024


async def start_reader(source: RowSource) -> Process:
    """Start to read; the rows come as lines."""
    argv = [sys.executable, "-m", MODULE]
    child = await start_child(argv, limit=CHUNK_BYTES, stderr=PIPE)
    assert child.stdin is not None
    child.stdin.write(source.model_dump_json().encode())
    child.stdin.close()
    return child


async def read_lines(child: Process) -> AsyncIterator[bytes]:
    """The rows as they come, whole lines with their ends: some rows at a time."""
    assert child.stdout is not None
    parts: list[bytes] = []
    while chunk := await child.stdout.read(CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*parts, chunk[:end]])
            parts = []
        parts.append(chunk[end:])


async def check_end(child: Process, name: str) -> None:
    """Raises: PreconditionFailed with what the reader says is wrong with the data."""
    assert child.stderr is not None
    said = (await child.stderr.read()).decode(errors="replace").strip()
    if await child.wait() != 0:
        reason = said.splitlines()[-1] if said else f"the reader ended with {child.returncode}"
        raise PreconditionFailed(f"taskset {name}: {reason}")


async def stop_reader(child: Process) -> None:
    """End the process if it has not ended."""
    await end_child(child)
