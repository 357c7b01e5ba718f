"""Child processes that end with their parent, together with all processes they started."""

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

from trinity.local.identity import OWN_IDENTITY, Identity
from trinity.runtime.asyncio_internals import close_pipes


async def start_child(
    argv: list[str],
    *,
    limit: int,
    env: Mapping[str, str],
    identity: Identity = OWN_IDENTITY,
    stderr: int | None = None,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Starts a child with piped stdin and stdout, in its own process group.

    `limit` bounds the output that is buffered here before it is read, in bytes.
    """
    command = identity.command(argv, death_signal=signal.SIGKILL)
    return await asyncio.create_subprocess_exec(
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        limit=limit,
        env=env,
        start_new_session=True,
        pass_fds=pass_fds,
    )


async def end_child(process: Process) -> None:
    """Kills the process and its group.

    A descendant that has moved to another group may still hold the pipes; they are closed here.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    close_pipes(process)
    await process.wait()
