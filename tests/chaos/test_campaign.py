"""A short campaign: every kind of process dies, and at a few of the named points."""

from pathlib import Path

import pytest

from tests.chaos.fire import open_fire
from tests.chaos.recovery import KINDS

KILLS = 12
POINTS = (
    "buffer.upload-stored",
    "buffer.abandoned-deleted",
    "buffer.reward-stored",
    "buffer.overdue-left-out",
    "buffer.partition-detached",
)

pytestmark = pytest.mark.timeout(300)


async def test_whatever_dies_nothing_is_lost_and_the_weights_are_the_same(tmp_path: Path) -> None:
    outcome = await open_fire(tmp_path, kills=KILLS, seed=3, points=POINTS)
    assert outcome.violations == []
    assert outcome.stalls == []
    assert {*KINDS} <= {death.target for death in outcome.deaths}
    assert len(outcome.deaths) + len(outcome.not_reached) == KILLS
    assert len(outcome.not_reached) <= 1
