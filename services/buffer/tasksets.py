"""Brings tasksets into the database, each content once."""

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence

from services.buffer.handlers.open_stage import NeededTaskset
from services.buffer.store.database import Database
from services.buffer.store.stages import StageTaskset
from services.buffer.store.tasks import Taskset, claim_source, copy_rows, find_taskset
from trinity.config.data_files import find_data_files
from trinity.errors import PreconditionFailed, UserError

MAX_LINE_BYTES = 64 * 1024 * 1024


class TasksetLibrary:
    """Finds tasksets by the identity of their content and reads those that are new."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def resolve(self, tenant: str, needed: Sequence[NeededTaskset]) -> list[StageTaskset]:
        """The tasksets, stored.

        Raises: PreconditionFailed naming the one that cannot be read or was not submitted.
        """
        return [await self._resolve(tenant, one) for one in needed]

    async def _resolve(self, tenant: str, needed: NeededTaskset) -> StageTaskset:
        if needed.path is None:
            found = await self._submitted(tenant, needed.name)
        else:
            found = await self._read_once(tenant, needed, needed.path)
        if found.num_rows == 0:
            raise PreconditionFailed(f"taskset {needed.name}: {needed.path or 'it'} has no rows")
        return StageTaskset(
            name=needed.name,
            taskset_id=found.taskset_id,
            kind=needed.kind,
            num_rows=found.num_rows,
        )

    async def _submitted(self, tenant: str, name: str) -> Taskset:
        async with self._database.transaction() as connection:
            found = await find_taskset(connection, tenant, name=name)
        if found is None or not found.is_complete:
            raise PreconditionFailed(
                f"taskset {name}: no client has submitted it yet; submit it, then start again"
            )
        return found

    async def _read_once(self, tenant: str, needed: NeededTaskset, path: str) -> Taskset:
        """Read the files unless their content is stored; a failure leaves nothing behind."""
        source = await asyncio.to_thread(_identity, needed, path)
        async with self._database.transaction() as connection:
            claimed = await claim_source(connection, tenant, source)
            if claimed is not None:
                child = await _start_reader(needed, path)
                try:
                    await copy_rows(connection, tenant, claimed.taskset_id, _lines(child))
                    await _check_end(child, needed)
                finally:
                    await _stop(child)
            found = await find_taskset(connection, tenant, source=source)
        assert found is not None
        return found


def _identity(needed: NeededTaskset, path: str) -> str:
    """Path, split and subset, with the sizes and times of the files that belong to them."""
    try:
        files = find_data_files(path, needed.split, needed.subset_name)
        stamps = [f"{file}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files]
    except (UserError, OSError) as error:
        raise PreconditionFailed(f"taskset {needed.name}: {error}") from error
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()
    return f"{path}|{needed.split}|{needed.subset_name or ''}|{digest}"


async def _start_reader(needed: NeededTaskset, path: str) -> Process:
    subset = ["--subset", needed.subset_name] if needed.subset_name else []
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.buffer.read_rows", "--path", path, "--split", needed.split, *subset),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        limit=MAX_LINE_BYTES,
    )


async def _lines(child: Process) -> AsyncIterator[str]:
    assert child.stdout is not None
    try:
        async for line in child.stdout:
            yield line.decode().rstrip("\n")
    except ValueError as error:
        raise PreconditionFailed(f"a row is longer than {MAX_LINE_BYTES} bytes") from error


async def _check_end(child: Process, needed: NeededTaskset) -> None:
    assert child.stderr is not None
    said = (await child.stderr.read()).decode(errors="replace").strip()
    if await child.wait() != 0:
        reason = said.splitlines()[-1] if said else f"the reader ended with {child.returncode}"
        raise PreconditionFailed(f"taskset {needed.name}: {reason}")


async def _stop(child: Process) -> None:
    if child.returncode is None:
        child.kill()
        await child.wait()
