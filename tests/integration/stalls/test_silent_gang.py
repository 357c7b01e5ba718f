"""Ranks that say nothing are what the trainer waits for, unless they said whom they wait for."""

from pathlib import Path

import pytest

from services.trainer.control import attempt
from services.trainer.messages import RankActivity, RankWaiting
from tests.integration.trainer.service import peers_of, plan_in
from tests.integration.trainer.supervised import supervised

TRAINING = RankActivity(activity="training", incarnation=1, step=1)
BATCH = RankWaiting(name="batch", waits_for="buffer", reason="rows", deadline_seconds=60)
SHOWN_SECONDS = 0.1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "SHOWN_SILENCE_SECONDS", SHOWN_SECONDS)


async def test_silence_is_shown_with_what_the_ranks_said_last_and_when_it_ends(
    tmp_path: Path,
) -> None:
    peers = peers_of(plan_in(tmp_path, tmp_path, sync_timeout=30.0))
    async with supervised(peers, [[TRAINING]]) as trainer:
        await trainer.until(lambda: any("training" in w.reason for w in peers.trainer.waits))
        (wait,) = peers.trainer.waits
        assert wait.waits_for == "ranks" and wait.waited_seconds >= SHOWN_SECONDS
        assert 0 < wait.deadline_seconds < 30


async def test_a_rank_that_waits_is_not_called_silent(tmp_path: Path) -> None:
    peers = peers_of(plan_in(tmp_path, tmp_path))
    async with supervised(peers, [[TRAINING, BATCH]]) as trainer:
        await trainer.until(
            lambda: any(
                wait.waits_for == "buffer" and wait.waited_seconds > 3 * SHOWN_SECONDS
                for wait in peers.trainer.waits
            )
        )
        assert [wait.waits_for for wait in peers.trainer.waits] == ["buffer"]
