"""Copies the tasks of a queue to the database that the taskset's `path` names.

A table of the taskset's name has each task once, in the order of arrival, and `storage_type: sql`
reads it back.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa

from services.buffer.domain.stage import Stage
from services.buffer.sink.targets import SinkFailed, SinkFenced, open_engine, sink_failures
from services.buffer.store.database import BufferDatabase
from services.buffer.store.stages import stage_tasksets
from services.buffer.store.tasksets import load_row_bodies
from services.buffer.tasksets.row_tables import TASK_COLUMN
from services.buffer.tenants import TenantPolicy
from trinity.config.plan.experience_sink import TaskBackup, task_backup
from trinity.errors import NotFound, PreconditionFailed, Unavailable, UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)

ROWS_AT_ONCE = 512
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class BackupTable:
    """The table of one taskset; its calls block.

    A second writer of the same rows breaks the rule that each index is there once, and is refused.
    """

    def __init__(self, backup: TaskBackup) -> None:
        """Makes the table if it is missing. Raises: SinkFailed."""
        self._place = backup.sink.shown
        with sink_failures(self._place):
            self._engine = open_engine(backup.sink.place)
            self._table = sa.Table(
                backup.table,
                sa.MetaData(),
                sa.Column("id", _NUMBER, primary_key=True),
                sa.Column("taskset_id", sa.String(36), nullable=False),
                sa.Column("task_index", sa.BigInteger, nullable=False),
                sa.Column(TASK_COLUMN, sa.JSON, nullable=False),
                sa.UniqueConstraint("taskset_id", "task_index"),
            )
            self._table.create(self._engine, checkfirst=True)

    def num_rows(self, taskset_id: str) -> int:
        """Returns the number of tasks that are there."""
        index = self._table.c.task_index
        newest = sa.select(sa.func.max(index)).where(self._table.c.taskset_id == taskset_id)
        with sink_failures(self._place), self._engine.connect() as connection:
            found = connection.execute(newest).scalar_one()
        return 0 if found is None else int(found) + 1

    def append(self, taskset_id: str, first: int, bodies: Sequence[str]) -> None:
        """Writes tasks from index `first` on, all or none. Raises: SinkFenced, SinkFailed."""
        rows = [
            {"taskset_id": taskset_id, "task_index": first + i, TASK_COLUMN: json.loads(body)}
            for i, body in enumerate(bodies)
        ]
        with sink_failures(self._place), _fenced(), self._engine.begin() as connection:
            connection.execute(sa.insert(self._table), rows)

    def close(self) -> None:
        """Releases connections."""
        self._engine.dispose()


@contextmanager
def _fenced() -> Iterator[None]:
    try:
        yield
    except sa.exc.IntegrityError as error:
        raise SinkFenced from error


class TaskBackupWriter:
    """Writes each task of a queue once; the position is what the table holds."""

    def __init__(self, *, database: BufferDatabase, policy: TenantPolicy) -> None:
        self._database = database
        self._policy = policy
        self._tables: dict[TaskBackup, BackupTable] = {}
        self._positions: dict[tuple[str, TaskBackup], int] = {}
        self._refused: set[StageKey] = set()

    async def write_stage(self, stage: Stage) -> bool:
        """Writes what a stage's queue has; returns true if nothing is left."""
        backup = task_backup(stage.plan)
        if backup is None or not self._is_allowed(stage, backup):
            return True
        try:
            while await self._write_next(stage, backup):
                pass
        except SinkFenced:
            self._positions.clear()
            return False
        except (SinkFailed, Unavailable, PreconditionFailed, NotFound) as error:
            about = {"stage": stage.key.stage, "place": backup.sink.shown}
            limited_log.warning("tasks are written later", about, why=str(error))
            return False
        return True

    async def _write_next(self, stage: Stage, backup: TaskBackup) -> bool:
        """Writes the next tasks; returns false if there are none."""
        if backup not in self._tables:
            self._tables[backup] = await asyncio.to_thread(BackupTable, backup)
        table = self._tables[backup]
        tenant = stage.key.tenant
        async with self._database.transaction() as connection:
            taskset = (await stage_tasksets(connection, stage.key)).get(backup.table)
            if taskset is None:
                return False  # the stage is being opened
            taskset_id = taskset.taskset_id
            place = (taskset_id, backup)
            if place not in self._positions:
                self._positions[place] = await asyncio.to_thread(table.num_rows, taskset_id)
            first = self._positions[place]
            bodies = await load_row_bodies(
                connection, tenant, taskset_id, first=first, count=ROWS_AT_ONCE
            )
        if not bodies:
            return False
        await asyncio.to_thread(table.append, taskset_id, first, bodies)
        self._positions[place] = first + len(bodies)
        return True

    def _is_allowed(self, stage: Stage, backup: TaskBackup) -> bool:
        """Returns false, and says so once, for a place that the operator does not allow."""
        try:
            self._policy.grants(stage.key.tenant).check_sink(backup.sink)
        except UserError as error:
            if stage.key not in self._refused:
                self._refused.add(stage.key)
                logger.warning(
                    "the tasks of a queue are not written to its `path`",
                    extra={"stage": stage.key.stage, "why": str(error)},
                )
            return False
        return True

    def close(self) -> None:
        """Releases connections."""
        for table in self._tables.values():
            table.close()
