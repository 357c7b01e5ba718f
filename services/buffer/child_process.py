"""Child processes that end with the buffer, and with all that they started."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from trinity.local.identity import OWN_IDENTITY


async def start_child(argv: list[str], *, limit: int, stderr: int | None = None) -> Process:
    """One that reads what is written to it and writes what is read, in a group of its own.

    `limit` bounds what is read of it before somebody takes it, in bytes.
    """
    command = OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL)
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=stderr, limit=limit, start_new_session=True
    )


async def end_child(process: Process) -> None:
    """Kill it and what it started.

    One of these that is in another group by now may hold its pipes: they are closed here, as
    `wait` would wait for them.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process._transport.close()  # type: ignore[attr-defined]  # there is no other way
    await process.wait()
