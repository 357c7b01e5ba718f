"""Of the runs that go on, the longest is shown."""

import asyncio

import pytest

from services.explorer.rollout import scheduler
from services.explorer.rollout.runner import RunTimeLimit
from services.explorer.rollout.scheduler import LongRunReporter
from services.explorer.types import Attempt
from tests.unit.explorer.builders import build_assignment
from trinity.config.schema.explorer import ExplorerConfig
from trinity.runtime.presence import WaitRegistry
from trinity.types import StageKey

KEY = StageKey(tenant="t", experiment_id="e", stage="rft")


def attempt(run: int) -> Attempt:
    return Attempt(key=KEY, assignment=build_assignment(), run=run, number=0)


async def test_the_longest_run_is_shown_with_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "SHOWN_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(scheduler, "REPORT_SECONDS", 0.01)
    changed = asyncio.Event()
    waits = WaitRegistry(owner="explorer", on_change=changed.set)
    runs = LongRunReporter(waits=waits, limit=RunTimeLimit(ExplorerConfig(max_timeout=60.0)))
    looking = asyncio.create_task(runs.report_long_runs())
    with runs.track(attempt(1)):
        with runs.track(attempt(0)):
            await changed.wait()
            (shown,) = waits.to_proto()
            assert shown.waits_for == "workflow" and "run 1 of row 0" in shown.reason
            assert shown.waited_seconds >= 0.02 and 59 < shown.deadline_seconds < 60
        changed.clear()
    await changed.wait()
    assert waits.to_proto() == []
    looking.cancel()
    await asyncio.wait([looking])
