"""A short campaign: every kind of process dies, and at a few of the named points."""

import random
from pathlib import Path

import pytest

from tests.chaos.fire import open_fire
from tests.chaos.nemesis import Death, targets
from tests.chaos.recovery import KILLED
from tests.chaos.varieties import SHORT, Played

KILLS = 13
POINTS = (
    "buffer.upload-stored",
    "buffer.abandoned-deleted",
    "buffer.reward-stored",
    "buffer.overdue-left-out",
    "buffer.partition-detached",
)

pytestmark = pytest.mark.timeout(300)


async def test_whatever_dies_nothing_is_lost_and_the_weights_are_the_same(tmp_path: Path) -> None:
    settled: list[tuple[Death, str, Played]] = []
    wanted = targets(random.Random(3), KILLS, POINTS, SHORT)
    outcome = await open_fire(
        tmp_path, wanted=wanted, seed=3, settled=lambda *trial: settled.append(trial)
    )
    assert outcome.violations == []
    assert outcome.stalls == []
    assert {f"{kind} SIGKILL" for kind in KILLED} <= {death.target for death in outcome.deaths}
    assert len(outcome.deaths) + len(outcome.not_reached) == KILLS
    assert len(outcome.not_reached) <= 1
    assert [death for death, *_ in settled] == outcome.deaths
