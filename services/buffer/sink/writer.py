"""Writes the experiences of each stage to the place that `experience_buffer.path` names."""

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import sqlalchemy as sa

from services.buffer.domain.stage import Stage, StageState
from services.buffer.sink.targets import (
    SinkFailed,
    SinkFenced,
    SinkForeign,
    SinkRow,
    SinkTarget,
    check_table,
    open_engine,
    open_target,
    sink_failures,
)
from services.buffer.store.database import BufferDatabase, columns_of
from services.buffer.store.queries import committed_after, newest_committed, try_sink_lock
from services.buffer.store.stages import (
    UnreadablePlan,
    ended_keys,
    find_stage,
    list_readable,
    stage_tasksets,
)
from services.buffer.store.tasksets import load_row_bodies
from services.buffer.tasksets.row_tables import TASK_COLUMN
from services.buffer.tenants import TenantPolicy
from trinity.config.plan.experience_sink import (
    ExperienceSink,
    TaskBackup,
    experience_sink,
    task_backup,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import NotFound, PreconditionFailed, Unavailable, UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.sql import Connection
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)

ROWS_AT_ONCE = 512
NO_STAGE = StageKey(tenant="", experiment_id="", stage="")
"""Reading its position checks a target."""
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
LOOK_SECONDS = 2.0
LAST_SECONDS = 5.0
"""Time to write the remaining rows when the process ends; the next process writes the others."""


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
            check_table(self._engine, self._table, self._place)
            self._table.create(self._engine, checkfirst=True)

    def num_rows(self, taskset_id: str) -> int:
        """Returns the number of tasks that are there."""
        index = self._table.c.task_index
        newest = sa.select(sa.func.max(index)).where(self._table.c.taskset_id == taskset_id)
        with sink_failures(self._place), self._engine.connect() as connection:
            found = connection.execute(newest).scalar_one()
        return 0 if found is None else int(found) + 1

    def append(self, taskset_id: str, first: int, bodies: Sequence[str]) -> None:
        """Writes tasks from index `first` on, atomically. Raises: SinkFenced, SinkFailed."""
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


class AllowedSinks:
    """The places that the operator allows; one that is not allowed is logged once for a stage."""

    def __init__(self, policy: TenantPolicy, text: str) -> None:
        self._policy = policy
        self._text = text
        self._refused: set[StageKey] = set()

    def has(self, key: StageKey, sink: ExperienceSink) -> bool:
        """Returns whether the stage may write there."""
        try:
            self._policy.grants(key.tenant).check_sink(sink)
        except UserError as error:
            if key not in self._refused:
                self._refused.add(key)
                logger.warning(self._text, extra={"stage": key.stage, "why": str(error)})
            return False
        return True


class TaskBackupWriter:
    """Writes each task of a queue once; the table itself holds the position."""

    def __init__(self, *, database: BufferDatabase, policy: TenantPolicy) -> None:
        self._database = database
        text = "the tasks of a queue are not written to its `path`"
        self._allowed = AllowedSinks(policy, text)
        self._tables: dict[TaskBackup, BackupTable] = {}
        self._positions: dict[tuple[str, TaskBackup], int] = {}

    async def write_stage(self, stage: Stage) -> bool:
        """Writes the tasks of a stage's queue; returns true if all are written."""
        backup = task_backup(stage.plan)
        if backup is None or not self._allowed.has(stage.key, backup.sink):
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
        """Writes the next tasks; returns false if there are no more."""
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

    def close(self) -> None:
        """Releases connections."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()


class ExperienceSinkWriter:
    """Writes each experience once, in the order of the commits of its stage.

    One replica writes a stage at a time, under a lock of the database. The position is kept with
    the rows, by the target: a writer that lost its lock without noticing is refused there, and the
    next one continues after the last complete write. If a target does not answer, its rows stay in
    the buffer and are written when it is back; other work goes on.
    """

    def __init__(self, *, database: BufferDatabase, policy: TenantPolicy) -> None:
        self._database = database
        self._policy = policy
        text = "experiences are not written to `experience_buffer.path`"
        self._allowed = AllowedSinks(policy, text)
        self._backup = TaskBackupWriter(database=database, policy=policy)
        self._targets: dict[ExperienceSink, SinkTarget] = {}
        self._positions: dict[tuple[StageKey, ExperienceSink], int] = {}
        self._ended: set[StageKey] = set()
        """Stages that have ended and are written whole."""

    async def run_writer(self) -> None:
        """Writes until cancelled, then writes the remaining rows."""
        try:
            while True:
                await self.write_all()
                await asyncio.sleep(LOOK_SECONDS)
        except asyncio.CancelledError:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.write_all()
            raise
        finally:
            for target in self._targets.values():
                target.close()
            self._targets.clear()
            self._backup.close()

    async def check_places(self, tenant: str, plan: StagePlan) -> None:
        """Checks that a stage's targets have no foreign contents; skips unavailable targets.

        Raises: PreconditionFailed.
        """
        grants = self._policy.grants(tenant)
        sink, backup = experience_sink(plan), task_backup(plan)
        try:
            if sink is not None:
                grants.check_sink(sink)
                target = await asyncio.to_thread(open_target, sink)
                await asyncio.to_thread(target.position, NO_STAGE)
                target.close()
            if backup is not None:
                grants.check_sink(backup.sink)
                (await asyncio.to_thread(BackupTable, backup)).close()
        except SinkForeign as error:
            raise PreconditionFailed(str(error)) from error
        except (SinkFailed, UserError) as error:  # it is written later, or not, which the log says
            logger.info("a place is not looked into", extra={"why": str(error)})

    async def write_all(self) -> None:
        """Writes committed rows; a failure of one stage does not stop the others.

        Raises: ExceptionGroup of unexpected errors, after all stages.
        """
        try:
            async with self._database.autocommit() as connection:
                stages = await list_readable(connection)
                self._ended -= {stage.key for stage in stages}
                ended = await self._ended_stages(connection)
        except Unavailable as error:
            limited_log.warning("experiences are written later", why=str(error))
            return
        failures: list[Exception] = []
        for stage in (*stages, *ended):
            try:
                await self._write_both(stage)
            except Exception as error:  # one stage must not stop all others
                failures.append(error)
        if failures:
            raise ExceptionGroup("places of experiences", failures)

    async def _write_both(self, stage: Stage) -> None:
        """Writes the experiences of a stage and the tasks of its queue."""
        sink = experience_sink(stage.plan)
        is_written = sink is None or await self._write_stage(stage, sink)
        is_written = await self._backup.write_stage(stage) and is_written
        if stage.state is not StageState.OPEN and is_written:
            self._ended.add(stage.key)

    async def _ended_stages(self, connection: Connection) -> list[Stage]:
        """Returns ended stages that may not be written whole: another process may have ended."""
        found = []
        for key in await ended_keys(connection):
            if key in self._ended:
                continue
            try:
                stage = await find_stage(connection, key)
            except UnreadablePlan:
                stage = None
            if stage is None:
                self._ended.add(key)
            else:
                found.append(stage)
        return found

    async def _write_stage(self, stage: Stage, sink: ExperienceSink) -> bool:
        """Writes the rows of a stage; returns true if all are written."""
        about = {"stage": stage.key.stage, "place": sink.shown}
        if not self._allowed.has(stage.key, sink):
            return True
        try:
            while await self._write_next(stage.key, sink):
                pass
        except SinkFenced:
            self._positions.pop((stage.key, sink), None)
            return False
        except (SinkFailed, Unavailable, PreconditionFailed, NotFound) as error:
            limited_log.warning("experiences are written later", about, why=str(error))
            return False
        return True

    async def _write_next(self, key: StageKey, sink: ExperienceSink) -> bool:
        """Writes the next rows within one transaction; returns true if there are more."""
        target = await self._target(sink)
        place = (key, sink)
        if place not in self._positions:
            self._positions[place] = await asyncio.to_thread(target.position, key)
        after = self._positions[place]
        async with self._database.transaction() as connection:
            newest = await newest_committed(connection, key, after)
        if newest <= after:
            return False
        async with self._database.transaction() as connection:
            if not await try_sink_lock(connection, key):
                self._positions.pop(place)
                return False
            found = await committed_after(
                connection, key, after=after, until=newest, most=ROWS_AT_ONCE
            )
            rows = [SinkRow(**columns_of(row)) for row in found]
            until = _until(rows, newest)
            await asyncio.to_thread(lambda: target.write(key, rows, after=after, until=until))
        self._positions[place] = until
        return until < newest

    async def _target(self, sink: ExperienceSink) -> SinkTarget:
        if sink not in self._targets:
            self._targets[sink] = await asyncio.to_thread(open_target, sink)
        return self._targets[sink]


def _until(rows: Sequence[SinkRow], newest: int) -> int:
    """Returns the number up to which a stage is written with these rows."""
    return rows[-1].number if len(rows) == ROWS_AT_ONCE else newest
