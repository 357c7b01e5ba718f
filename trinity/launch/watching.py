"""Feeds the plan's monitor while an experiment is followed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from trinity.api.v1 import buffer_pb2_grpc
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.base import is_secret
from trinity.monitors.absence import Absence
from trinity.monitors.feed import MonitorFeed, Says
from trinity.monitors.making import make_monitor
from trinity.monitors.points import Points, runs_of_task


class Watcher(Protocol):
    """A receiver that is told how far the events go."""

    async def catch_up(self, last_event: int) -> None:
        """Waits until everything up to an event is shown, or a timeout."""


class Nobody:
    """Stands in when there is no monitor."""

    async def catch_up(self, last_event: int) -> None:
        """Does nothing: there is nothing to show."""


@contextlib.asynccontextmanager
async def watched(
    plan: ExperimentPlan,
    experiment_id: str,
    buffer: buffer_pb2_grpc.BufferServiceStub,
    reporter: Says,
    directory: Path,
) -> AsyncIterator[Watcher]:
    """Feeds the plan's monitor while the block runs, then shuts it down gracefully."""
    monitor = make_monitor(plan, experiment_id, directory)
    if monitor is None:
        Absence.end(directory)
        yield Nobody()
        return
    config = plan.stages[0].config.monitor
    feed = MonitorFeed(
        name=config.monitor_type,
        monitor=monitor,
        points=Points(runs_of_task(plan), is_detailed=config.detailed_stats),
        tenant=plan.tenant,
        experiment_id=experiment_id,
        buffer=buffer,
        reporter=reporter,
        directory=directory,
        secrets=tuple(
            str(value) for name, value in config.monitor_args.items() if is_secret(name) and value
        ),
    )
    feeding = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await feed.close()
