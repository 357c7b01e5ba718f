"""Queue depth metrics: pending messages in the stream, and rows of each stage before a batch."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.buffer.domain.admission import Load, credit_rows
from services.buffer.domain.stage import Stage
from services.buffer.store.database import Database
from services.buffer.store.load import current_load
from services.buffer.store.stages import list_readable
from services.buffer.stream import RunStream
from trinity.errors import Unavailable
from trinity.telemetry import instruments, metrics, names
from trinity.telemetry.metrics import Observation
from trinity.telemetry.tracing import Attributes

MEASURE_SECONDS = 1.0
Measure = Callable[[Stage, Load], int]


@dataclass(slots=True)
class Depths:
    """The last measurements; nothing for sources that are unavailable and stages that ended."""

    database: Database
    stream: RunStream
    _pending: int | None = None
    _loads: list[tuple[Stage, Load]] = field(default_factory=list)

    async def run(self) -> None:
        """Measures periodically until cancelled, if metrics are on."""
        if not metrics.is_on():
            return
        instruments.STREAM_PENDING.by(self._in_stream)
        instruments.CREDIT.by(lambda: self._of_stages(_credit))
        instruments.OUTSTANDING.by(lambda: self._of_stages(lambda _, load: load.num_outstanding))
        instruments.READY.by(lambda: self._of_stages(lambda _, load: load.num_ready))
        while True:
            await self.measure()
            await asyncio.sleep(MEASURE_SECONDS)

    async def measure(self) -> None:
        """Measures stream and database independently: one may be unavailable."""
        try:
            self._pending = await self.stream.num_pending()
        except Unavailable:
            self._pending = None
        try:
            async with self.database.autocommit() as connection:
                stages = await list_readable(connection)
                self._loads = [(stage, await current_load(connection, stage)) for stage in stages]
        except Unavailable:
            self._loads = []

    def _in_stream(self) -> list[Observation]:
        return [] if self._pending is None else [(self._pending, {})]

    def _of_stages(self, measure: Measure) -> Iterator[Observation]:
        for stage, load in self._loads:
            yield measure(stage, load), _about(stage)


def _credit(stage: Stage, load: Load) -> int:
    return credit_rows(stage) - load.total


def _about(stage: Stage) -> Attributes:
    """Returns attributes that tell apart stages with the same name in several experiments."""
    key = stage.key
    return {
        names.RL_RUN: key.experiment_id,
        names.TENANT: key.tenant,
        names.STAGE: key.stage,
    }
