"""What a rank waits for is shown by the trainer, from its beginning to its end."""

import grpc
import pytest

from services.trainer.control.status import TrainerState
from services.trainer.messages import RankActivity, RankWaiting
from tests.unit.clock import Clock
from trinity.api.v1.synchronizer_pb2 import Wait
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.presence import Heartbeats


@pytest.fixture
def state() -> TrainerState:
    """Of a trainer that has not said anything to anybody yet."""
    stub = SynchronizerServiceStub(grpc.insecure_channel("127.0.0.1:1"))
    state = TrainerState()
    state.heartbeats = Heartbeats(stub, member_id=state.trainer_id, role="trainer", address="")
    return state


def shown(state: TrainerState) -> list[Wait]:
    assert state.heartbeats is not None
    return state.heartbeats.waits.to_proto()


def waiting(reason: str) -> RankWaiting:
    return RankWaiting(name="batch", waits_for="buffer", reason=reason, deadline_seconds=100)


def test_a_wait_keeps_its_beginning_whatever_its_reason(state: TrainerState, clock: Clock) -> None:
    state.record_rank_wait(0, waiting("3 of 8 rows are there"))
    clock.now += 30
    state.record_rank_wait(0, waiting("7 of 8 rows are there"))
    (wait,) = shown(state)
    assert (wait.reason, wait.waited_seconds) == ("7 of 8 rows are there", 30)
    assert wait.deadline_seconds == 70


def test_the_time_since_a_step_is_told_while_a_stage_is_trained(
    state: TrainerState, clock: Clock
) -> None:
    assert state._since_step() == []
    state.begin_stage("experiment", "rft")
    clock.now += 30
    assert state._since_step() == [(30, {"trinity.stage": "rft"})]
    state.record_activity(RankActivity(activity="training", incarnation=1, step=1))
    clock.now += 5
    state.record_activity(RankActivity(activity="training again", incarnation=2, step=1))
    assert state._since_step() == [(5, {"trinity.stage": "rft"})]
    state.set_idle()
    assert state._since_step() == []


def test_each_rank_has_waits_of_its_own(state: TrainerState) -> None:
    state.record_rank_wait(0, waiting("rows"))
    state.record_rank_wait(1, waiting("rows"))
    state.record_rank_wait(0, RankWaiting(name="batch"))
    assert len(shown(state)) == 1


def test_ranks_that_are_gone_wait_for_nothing(state: TrainerState) -> None:
    state.record_rank_wait(0, waiting("rows"))
    state.end_waits()
    assert shown(state) == []
