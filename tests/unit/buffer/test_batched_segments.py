"""Retention looks at each batch once as long as nothing further is let go."""

from typing import cast

import pytest

from services.buffer.domain.stage import Stage
from services.buffer.operations import retention
from services.buffer.operations.retention import BatchedSegmentCache
from tests.unit.buffer.builders import stage
from trinity.runtime.sql import Connection

CONNECTION = cast(Connection, None)


class Batches:
    """Each step's batch is in a segment of its own, and what was asked of them."""

    def __init__(self) -> None:
        self.oldest_kept = 0
        self.asked: list[tuple[int, int]] = []

    async def segments_batched(
        self, _: Connection, __: Stage, first_step: int, last_step: int
    ) -> set[int]:
        self.asked.append((first_step, last_step))
        return set(range(first_step, last_step + 1))

    async def oldest_kept_step(self, *_: object) -> int:
        return self.oldest_kept


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Batches:
    made = Batches()
    for name in ("segments_batched", "oldest_kept_step"):
        monkeypatch.setattr(retention, name, getattr(made, name))
    monkeypatch.setattr(retention, "last_releasable_step", lambda _, oldest: oldest)
    return made


async def test_only_what_was_recorded_since_is_looked_at(batches: Batches) -> None:
    batched = BatchedSegmentCache()
    assert await batched.get(CONNECTION, stage(recorded_step=3)) == {1, 2, 3}
    assert await batched.get(CONNECTION, stage(recorded_step=5)) == {1, 2, 3, 4, 5}
    assert batches.asked == [(1, 3), (4, 5)]


async def test_what_is_let_go_is_needed_no_more_and_what_is_taken_back_is(
    batches: Batches,
) -> None:
    batched = BatchedSegmentCache()
    await batched.get(CONNECTION, stage(recorded_step=3))
    batches.oldest_kept = 2
    assert await batched.get(CONNECTION, stage(recorded_step=4)) == {3, 4}
    batches.oldest_kept = 1
    assert await batched.get(CONNECTION, stage(recorded_step=4)) == {2, 3, 4}
