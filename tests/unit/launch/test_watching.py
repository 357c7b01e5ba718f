"""The plan's monitor, while an experiment is followed."""

from pathlib import Path
from typing import cast

from tests.unit.config.builders import config
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.config.planning import plan_experiment
from trinity.run.launch.follow import watched
from trinity.run.monitors.feed import MonitorOutage
from trinity.run.progress.lines import LineReporter


async def test_a_monitor_that_nobody_feeds_any_more_is_not_away(tmp_path: Path) -> None:
    """As a launcher left it that was killed, before its run went on without a monitor."""
    MonitorOutage(monitor="wandb", reason="no answer", since=1.0).save_outage(tmp_path)
    plan = plan_experiment(config(monitor={"monitor_type": "none"}))
    said: list[str] = []
    reporter = LineReporter(said.append)
    async with watched(plan, "e", cast(BufferServiceStub, None), reporter, tmp_path):
        assert MonitorOutage.load_outage(tmp_path) is None
