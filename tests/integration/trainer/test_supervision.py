"""No stage is left in silence: it goes on, it ends with a reason, or another trainer has it."""

import uuid
from pathlib import Path

import pytest

from services.trainer.control import supervisor
from services.trainer.messages import RankActivity, RankStageEnded, RankStageFailed, RankWaiting
from tests.integration.trainer.peers import Peers
from tests.integration.trainer.service import peers_of, plan_in
from tests.integration.trainer.supervised import OWN_ADDRESS, Says, group_of, supervised
from trinity.api.v1 import synchronizer_pb2

CANCELLED = RankStageEnded(outcome="cancelled", reason="a short batch is not allowed: add tasks")
SUPERSEDED = RankStageEnded(outcome="superseded", reason="incarnation 2 exists")
TRAINING = RankActivity(activity="training", incarnation=1, step=1)
BUSY: Says = [TRAINING]


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    """Of a stage that one rank trains."""
    return peers_of(plan_in(tmp_path, tmp_path))


@pytest.fixture
def peers_of_two(tmp_path: Path) -> Peers:
    """Of a stage that two ranks train."""
    return peers_of(plan_in(tmp_path, tmp_path, rank_num=2))


def other_trainer(peers: Peers) -> synchronizer_pb2.Member:
    return synchronizer_pb2.Member(
        id=str(uuid.uuid4()),
        role=synchronizer_pb2.ROLE_TRAINER,
        experiment_id=peers.experiment.id,
        stage="sft",
    )


async def test_a_stage_that_the_buffer_ended_ends_the_run_with_its_reason(peers: Peers) -> None:
    async with supervised(peers, [[CANCELLED]]) as trainer:
        await trainer.until(lambda: bool(peers.failure))
    assert peers.failure == "the buffer ended stage `sft`: a short batch is not allowed: add tasks"


async def test_a_resumed_experiment_is_taken_up_again(peers: Peers) -> None:
    async with supervised(peers, [[CANCELLED]], [BUSY]) as trainer:
        await trainer.until(lambda: bool(peers.failure))
        await peers.resume()
        await trainer.until(lambda: peers.trainer.activity == "training")
    assert trainer.gangs.num_starts == 2


async def test_a_start_is_left_at_once_for_the_next_one(peers: Peers) -> None:
    """As when a killed run is run again and its services are quicker than its launcher."""
    async with supervised(peers, [BUSY], stop_seconds=1000.0) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "training")
        await peers.resume()
        await trainer.until(lambda: trainer.gangs.num_starts == 2)


async def test_a_stage_that_a_person_cancelled_is_not_called_a_failure(peers: Peers) -> None:
    async with supervised(peers, [BUSY]) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "training")
        await peers.cancel()
        await trainer.until(lambda: peers.trainer.activity == "waiting for a stage")
    assert peers.failure == ""


async def test_a_superseded_gang_stops_quietly_and_says_for_whom_it_stands_by(
    peers: Peers,
) -> None:
    async with supervised(peers, [[SUPERSEDED]]) as trainer:
        await trainer.until(lambda: trainer.gangs.num_starts == 1)
        peers.members = [other_trainer(peers)]
        await trainer.until(lambda: peers.trainer.activity == "standing by")
        await peers.note()
        await trainer.until(lambda: bool(peers.trainer.waits))
        (wait,) = peers.trainer.waits
    assert (wait.waits_for, wait.reason) == ("another trainer", "it works on stage sft")
    assert (peers.failure, trainer.gangs.num_starts) == ("", 1)


async def test_a_stage_that_another_trainer_works_on_is_left_to_it(peers: Peers) -> None:
    peers.members = [other_trainer(peers)]
    async with supervised(peers, [BUSY]) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "standing by")
        await peers.note()
        await trainer.until(lambda: bool(peers.trainer.waits))
        assert trainer.gangs.num_starts == 0
        peers.members = []
        await peers.note()
        await trainer.until(lambda: peers.trainer.activity == "training")


async def test_a_restarted_trainer_does_not_wait_for_its_own_end(peers: Peers) -> None:
    before = other_trainer(peers)
    before.address = OWN_ADDRESS
    peers.members = [before]
    async with supervised(peers, [BUSY]) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "training")


async def test_a_stage_whose_other_trainer_is_gone_is_taken_up_again(peers: Peers) -> None:
    async with supervised(peers, [[SUPERSEDED]], [BUSY]) as trainer:
        await trainer.until(lambda: trainer.gangs.num_starts == 1)
        peers.members = [other_trainer(peers)]
        await trainer.until(lambda: peers.trainer.activity == "standing by")
        peers.members = []
        await peers.note()
        await trainer.until(lambda: peers.trainer.activity == "training")


@pytest.mark.parametrize(
    ("end", "failure"), [(CANCELLED, "the buffer ended stage"), (SUPERSEDED, "")]
)
async def test_one_rank_that_ends_early_ends_the_gang(
    peers_of_two: Peers, end: RankStageEnded, failure: str
) -> None:
    async with supervised(peers_of_two, [BUSY, [end]]) as trainer:
        await trainer.until(lambda: trainer.gangs.num_starts == 1)
        peers_of_two.members = [other_trainer(peers_of_two)]
        await trainer.until(
            lambda: bool(peers_of_two.failure) or peers_of_two.trainer.activity == "standing by"
        )
    assert peers_of_two.failure.startswith(failure)
    assert trainer.gangs.num_starts == 1


async def test_a_refusal_on_any_rank_fails_the_stage_at_once(peers_of_two: Peers) -> None:
    refused = RankStageFailed(reason="the buffer refused: no data", can_retry=False)
    async with supervised(peers_of_two, [BUSY, [refused]]) as trainer:
        await trainer.until(lambda: bool(peers_of_two.failure))
    assert peers_of_two.failure == "the trainer failed in stage `sft`: the buffer refused: no data"
    assert trainer.gangs.num_starts == 1


async def test_a_gang_that_dies_again_and_again_fails_the_stage(peers: Peers) -> None:
    async with supervised(peers, [[7]]) as trainer:
        await trainer.until(lambda: bool(peers.failure))
    assert peers.failure == "the trainer failed in stage `sft`: rank 0 ended with code 7"
    assert trainer.gangs.num_starts == 3


async def test_a_gang_waits_for_its_hosts_until_a_deadline_and_a_number_of_times(
    peers: Peers,
) -> None:
    hosts = group_of(3)
    async with supervised(peers, [BUSY], hosts=hosts, host_wait_seconds=0.3) as trainer:
        await trainer.until(lambda: bool(peers.failure))
    assert "of 3 hosts, these have not come back for" in peers.failure
    assert ": 1, 2 (TRINITY_TRAINER_HOST_WAIT_SECONDS)" in peers.failure
    assert trainer.gangs.num_starts == 0


async def test_a_gang_says_for_which_host_it_waits_and_leaves_a_stage_that_is_cancelled(
    peers: Peers,
) -> None:
    async with supervised(peers, [BUSY], hosts=group_of(2)) as trainer:
        await trainer.until(lambda: bool(peers.trainer.waits))
        (wait,) = peers.trainer.waits
        assert (wait.waits_for, wait.reason) == (
            "hosts of the worker group",
            "host 1 of 2 is not there",
        )
        await peers.cancel()
        await trainer.until(lambda: peers.trainer.activity == "waiting for a stage")
    assert (peers.failure, trainer.gangs.num_starts) == ("", 0)


async def test_a_gang_that_is_stuck_is_killed_and_started_again(tmp_path: Path) -> None:
    peers = peers_of(plan_in(tmp_path, tmp_path, sync_timeout=0.2))
    again = RankActivity(activity="training again", incarnation=2, step=1)
    waiting = RankWaiting(name="batch", waits_for="buffer", reason="rows")
    async with supervised(peers, [BUSY], [[again, waiting]]) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "training again")
    assert trainer.gangs.num_starts == 2


async def test_gangs_that_are_always_stuck_fail_the_stage_with_that(tmp_path: Path) -> None:
    peers = peers_of(plan_in(tmp_path, tmp_path, sync_timeout=0.2))
    async with supervised(peers, [BUSY]) as trainer:
        await trainer.until(lambda: bool(peers.failure))
    assert "no rank gave a sign of life for" in peers.failure
    assert trainer.gangs.num_starts == 3


async def test_a_dead_gang_waits_for_nothing(peers: Peers) -> None:
    waiting = RankWaiting(name="batch", waits_for="buffer", reason="rows")
    async with supervised(peers, [[waiting, 7]], [[waiting]]) as trainer:
        await trainer.until(lambda: trainer.gangs.num_starts == 2 and bool(peers.trainer.waits))
        await peers.cancel()
        await trainer.until(lambda: not peers.trainer.waits)


async def test_a_gang_that_goes_on_with_an_unwanted_stage_is_ended(peers: Peers) -> None:
    async with supervised(peers, [[TRAINING, "again"]]) as trainer:
        await trainer.until(lambda: peers.trainer.activity == "training")
        await peers.cancel()
        await trainer.until(lambda: peers.trainer.activity == "waiting for a stage")


async def test_the_trainer_is_ready_once_both_peers_answer_and_a_wanted_stage_has_a_gang(
    peers: Peers,
) -> None:
    async with supervised(peers, [BUSY]) as trainer:
        assert not trainer.health.ready
        await trainer.until(lambda: trainer.health.ready)
        assert trainer.gangs.num_starts == 1
        await peers.call_buffer_ready(False)
        await trainer.until(lambda: not trainer.health.ready)
        await peers.call_buffer_ready(True)
        await trainer.until(lambda: trainer.health.ready)


async def test_a_failure_that_cannot_be_told_is_told_later(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.0)
    peers.num_deaf_calls = 2
    async with supervised(peers, [[CANCELLED]]) as trainer:
        await trainer.until(lambda: bool(peers.failure))
