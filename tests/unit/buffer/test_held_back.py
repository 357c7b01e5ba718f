"""Stages whose results another version of the buffer must store are waited for while they come."""

import pytest

from services.buffer.ingest import ingest
from services.buffer.ingest.ingest import PlanVersionWaits
from services.buffer.store.stages import UnreadablePlan
from trinity.runtime.presence import WaitRegistry
from trinity.types import StageKey

KEY = StageKey(tenant="default", experiment_id="e", stage="rft")


async def test_a_wait_is_over_when_no_result_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = WaitRegistry(owner="buffer", on_change=lambda: None)
    seen = PlanVersionWaits(waits)
    seen.record(UnreadablePlan("stage rft has an odd plan", key=KEY, is_open=True))
    seen.expire()
    assert [one.reason for one in waits.to_proto()] == [
        "to store results: stage rft has an odd plan"
    ]
    monkeypatch.setattr(ingest, "EXPIRY_SECONDS", -1.0)
    seen.expire()
    assert waits.to_proto() == []
