"""Child processes that end with the buffer, together with all processes they started."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from trinity.local.identity import OWN_IDENTITY


async def start_child(argv: list[str], *, limit: int, stderr: int | None = None) -> Process:
    """Starts a child with piped stdin and stdout, in its own process group.

    `limit` bounds the output that is buffered here before it is read, in bytes.
    """
    command = OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL)
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=stderr, limit=limit, start_new_session=True
    )


async def end_child(process: Process) -> None:
    """Kills the process and its group.

    A descendant that has moved to another group may still hold the pipes. They are closed here,
    because `wait` would wait for them.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process._transport.close()  # type: ignore[attr-defined]  # there is no other way
    await process.wait()
