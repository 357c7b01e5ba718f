"""Brings tasksets into the database, each content once, however long that takes."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from services.buffer.handlers.open_stage import NeededTaskset
from services.buffer.reader import check_end, read_lines, start_reader, stop_reader
from services.buffer.store.database import Database, notify, tasksets_topic
from services.buffer.store.stages import StageTaskset
from services.buffer.store.tasks import Taskset, claim_source, copy_rows, find_taskset
from trinity.config.data_files import find_data_files
from trinity.errors import PreconditionFailed, TrinityError, UserError
from trinity.waits import Waits

logger = logging.getLogger(__name__)

SHOWN_AFTER_SECONDS = 1.0
MAX_READS = 2
"""Tasksets read at once; each takes a connection and a process."""


@dataclass(slots=True)
class Read:
    """A taskset on its way into the database."""

    num_rows: int = 0
    error: Exception | None = None
    """Kept until it is told to somebody."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tasksets that are stored, and what the others wait for."""

    stored: list[StageTaskset] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)


class TasksetLibrary:
    """Finds tasksets by the identity of their content and reads those that are new.

    A read goes on when whoever asked for it has gone; what came of it is told to whoever asks next.
    """

    def __init__(
        self,
        *,
        database: Database,
        workers: asyncio.TaskGroup,
        on_over: Callable[[], None],
        waits: Waits,
    ) -> None:
        self._database = database
        self._workers = workers
        self._on_over = on_over
        self._waits = waits
        self._turns = asyncio.Semaphore(MAX_READS)
        self._reads: dict[tuple[str, str], Read] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Read no more; what is not read whole is read again some other time."""
        for task in self._tasks:
            task.cancel()

    async def resolve(self, tenant: str, needed: Sequence[NeededTaskset]) -> Resolved:
        """Find what is stored and begin to read what is not.

        Raises: PreconditionFailed naming one that cannot be read.
        """
        resolved = Resolved()
        for one in needed:
            found = await self._find(tenant, one)
            if isinstance(found, str):
                resolved.awaited.append(found)
                continue
            if found.num_rows == 0:
                raise PreconditionFailed(f"taskset {one.name}: {one.path or 'it'} has no rows")
            resolved.stored.append(
                StageTaskset(
                    name=one.name,
                    taskset_id=found.taskset_id,
                    kind=one.kind,
                    num_rows=found.num_rows,
                )
            )
        return resolved

    async def _find(self, tenant: str, needed: NeededTaskset) -> Taskset | str:
        """The taskset, stored and complete, or what it waits for."""
        if needed.path is None:
            async with self._database.transaction() as connection:
                found = await find_taskset(connection, tenant, name=needed.name)
            if found is not None and found.is_complete:
                return found
            return f"taskset {needed.name} is awaited from a client: submit it with SubmitTaskset"
        source = await asyncio.to_thread(identity, needed, needed.path)
        async with self._database.transaction() as connection:
            stored = await find_taskset(connection, tenant, source=source)
        if stored is not None:
            return stored
        read = self._reads.get((tenant, source))
        if read is None:
            read = self._begin(tenant, needed, needed.path, source)
        if read.error is not None:
            del self._reads[tenant, source]
            raise read.error
        return f"taskset {needed.name}: {read.num_rows:,} rows read so far"

    def _begin(self, tenant: str, needed: NeededTaskset, path: str, source: str) -> Read:
        read = Read()
        self._reads[tenant, source] = read
        name = f"read taskset {needed.name}"
        work = self._run(read, tenant, needed, path, source)
        task = self._workers.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return read

    async def _run(
        self, read: Read, tenant: str, needed: NeededTaskset, path: str, source: str
    ) -> None:
        """Read, and tell who waits when it is over; an error belongs to the taskset."""
        try:
            waiting = self._waits.if_longer(
                SHOWN_AFTER_SECONDS, for_="reader", reason=f"to read taskset {needed.name} ({path})"
            )
            with waiting:
                async with self._turns:
                    await self._read(read, tenant, needed, path, source)
            del self._reads[tenant, source]
        except TrinityError as error:
            read.error = error
        except Exception as error:  # a worker's edge: one taskset must not stop the process
            logger.exception("a taskset cannot be read", extra={"taskset": needed.name})
            read.error = PreconditionFailed(f"taskset {needed.name}: {error}")
        self._on_over()

    async def _read(
        self, read: Read, tenant: str, needed: NeededTaskset, path: str, source: str
    ) -> None:
        """Read the files unless their content is stored; a failure leaves nothing behind."""
        async with self._database.transaction() as connection:
            claimed = await claim_source(connection, tenant, source)
            if claimed is None:
                return
            child = await start_reader(path, needed.split, needed.subset_name)
            try:
                rows = _counted(read_lines(child), read)
                await copy_rows(connection, tenant, claimed.taskset_id, rows)
                await check_end(child, needed.name)
            finally:
                await stop_reader(child)
            await notify(connection, tasksets_topic(tenant))


async def _counted(rows: AsyncIterator[str], read: Read) -> AsyncIterator[str]:
    async for row in rows:
        read.num_rows += 1
        yield row


def identity(needed: NeededTaskset, path: str) -> str:
    """Path, split and subset, with the sizes and times of the files that belong to them."""
    try:
        files = find_data_files(path, needed.split, needed.subset_name)
        stamps = [f"{file}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files]
    except (UserError, OSError) as error:
        raise PreconditionFailed(f"taskset {needed.name}: {error}") from error
    digest = hashlib.sha256("\n".join(stamps).encode()).hexdigest()
    return f"{path}|{needed.split}|{needed.subset_name or ''}|{digest}"
