"""The longest run is shown, and a buffer without work for too long ends the stage."""

import asyncio

import pytest

from services.explorer.rollout import scheduler
from services.explorer.rollout.runner import RunTimeLimit
from services.explorer.rollout.scheduler import IdleTimeout, LongRunReporter
from services.explorer.types import Attempt, NoWorkYet
from tests.unit.explorer.builders import build_assignment
from trinity.api.v1 import synchronizer_pb2
from trinity.config.schema.explorer import ExplorerConfig
from trinity.errors import RolloutStageFailed
from trinity.runtime.members import WaitKind
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy
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


def test_an_idle_buffer_is_tolerated_while_its_reason_changes() -> None:
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    with pytest.raises(RolloutStageFailed, match="for the buffer to have work: version 3"):
        missing = NoWorkYet("version 3 is missing")
        IdleTimeout(RetryPolicy(waits, 0.0)).record_reason(missing, is_idle=True)
    idle = IdleTimeout(RetryPolicy(waits, 60.0))
    assert idle.seconds_left == 60.0
    for reason, is_idle in (("version 3", False), ("version 3", True), ("version 4", True)):
        idle.record_reason(NoWorkYet(reason, WaitKind.TASKS), is_idle=is_idle)
    (wait,) = waits.to_proto()
    assert wait.reason == "version 4" and wait.deadline_seconds > 0
    assert wait.kind == synchronizer_pb2.WAIT_KIND_TASKS
    assert 59.0 < idle.seconds_left < 60.0
    idle.reset()
    assert idle.seconds_left == 60.0
