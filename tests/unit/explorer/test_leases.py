"""The leases of an explorer's work."""

import asyncio
import logging
from collections.abc import Iterable
from typing import cast

import pytest

from services.explorer.clients.buffer import ExplorerBufferClient, LeaseKeeper
from services.explorer.types import Assignment
from tests.unit.explorer.builders import build_assignment
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy
from trinity.types import StageKey


class TakingBuffer:
    """Says that every lease but one is lost."""

    async def renew_leases(self, _: StageKey, held: Iterable[Assignment], __: float) -> set[str]:
        return {assignment.id for assignment in held} - {"kept"}


async def test_leases_that_end_together_are_one_line_with_their_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    leases = LeaseKeeper(
        key=StageKey(tenant="default", experiment_id="e", stage="main"),
        lease_seconds=0.3,
        buffer=cast(ExplorerBufferClient, TakingBuffer()),
        retry_policy=RetryPolicy(WaitRegistry(owner="explorer", on_change=lambda: None)),
    )

    async def work() -> None:
        await asyncio.Event().wait()

    works = {name: asyncio.create_task(work()) for name in ("first", "kept", "second")}
    for name, task in works.items():
        leases.hold(build_assignment(id=name), task)
    renewing = asyncio.create_task(leases.renew_until_cancelled())
    await asyncio.wait([works["first"], works["second"]], timeout=60)
    assert works["first"].cancelled() and works["second"].cancelled()
    assert not works["kept"].done(), "the control"
    [line] = [record for record in caplog.records if "leases ended" in record.message]
    assert vars(line)["count"] == 2 and vars(line)["assignments"] == "first second"
    renewing.cancel()
    leases.cancel_all()
    await asyncio.gather(renewing, works["kept"], return_exceptions=True)
