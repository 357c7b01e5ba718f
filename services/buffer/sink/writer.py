"""Writes the experiences of each stage to the place that `experience_buffer.path` names."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from services.buffer.domain.stage import Stage, StageState
from services.buffer.sink.targets import SinkFailed, SinkFenced, SinkRow, SinkTarget, open_target
from services.buffer.sink.task_backup import TaskBackupWriter
from services.buffer.store.database import BufferDatabase
from services.buffer.store.sink import committed_after, newest_committed, try_sink_lock
from services.buffer.store.stages import UnreadablePlan, ended_keys, find_stage, list_readable
from services.buffer.tenants import TenantPolicy
from trinity.config.plan.experience_sink import ExperienceSink, experience_sink
from trinity.errors import NotFound, PreconditionFailed, Unavailable, UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.sql import Connection
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)

LOOK_SECONDS = 2.0
ROWS_AT_ONCE = 512
LAST_SECONDS = 5.0
"""Time for what is left when the process ends; what is not written then is written next time."""


class ExperienceSinkWriter:
    """Writes each experience once, in the order of the commits of its stage.

    One replica writes a stage at a time, under a lock of the database. The position is kept with
    the rows, by the target: a writer that lost its lock without noticing is refused there, and the
    next one goes on where the last whole write ended. A target that does not answer holds nothing
    up: rows stay in the buffer, and are written when it is back.
    """

    def __init__(self, *, database: BufferDatabase, policy: TenantPolicy) -> None:
        self._database = database
        self._policy = policy
        self._backup = TaskBackupWriter(database=database, policy=policy)
        self._targets: dict[ExperienceSink, SinkTarget] = {}
        self._positions: dict[tuple[StageKey, ExperienceSink], int] = {}
        self._ended: set[StageKey] = set()
        """Stages that have ended and are written whole."""
        self._refused: set[StageKey] = set()

    async def run_writer(self) -> None:
        """Writes until cancelled, and then what is left."""
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
            self._backup.close()

    async def write_all(self) -> None:
        """Writes what is committed; a failure of one stage does not stop the others."""
        try:
            async with self._database.autocommit() as connection:
                stages = await list_readable(connection)
                self._ended -= {stage.key for stage in stages}
                ended = await self._ended_stages(connection)
        except Unavailable as error:
            limited_log.warning("experiences are written later", why=str(error))
            return
        for stage in (*stages, *ended):
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
        """Writes what a stage has; returns true if nothing is left."""
        about = {"stage": stage.key.stage, "place": sink.shown}
        if not self._is_allowed(stage, sink):
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
        """Writes the next rows, in the time of one transaction; returns false if there are none."""
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
            rows = [
                SinkRow(number=row.number, experience_id=row.experience_id, body=row.body)
                for row in found
            ]
            until = _until(rows, newest)
            await asyncio.to_thread(lambda: target.write(key, rows, after=after, until=until))
        self._positions[place] = until
        return until < newest

    async def _target(self, sink: ExperienceSink) -> SinkTarget:
        if sink not in self._targets:
            self._targets[sink] = await asyncio.to_thread(open_target, sink)
        return self._targets[sink]

    def _is_allowed(self, stage: Stage, sink: ExperienceSink) -> bool:
        """Returns false, and says so once, for a place that the operator does not allow."""
        try:
            self._policy.grants(stage.key.tenant).check_sink(sink)
        except UserError as error:
            if stage.key not in self._refused:
                self._refused.add(stage.key)
                logger.warning(
                    "experiences are not written to `experience_buffer.path`",
                    extra={"stage": stage.key.stage, "why": str(error)},
                )
            return False
        return True


def _until(rows: Sequence[SinkRow], newest: int) -> int:
    """Returns the number up to which a stage is written with these rows."""
    return rows[-1].number if len(rows) == ROWS_AT_ONCE else newest
