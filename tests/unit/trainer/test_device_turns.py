"""A rank's turns: the learner is on the device while the lock is held, and told in order.

Where no engine waits for it, it stays there between two steps, until one does.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import pytest

from services.trainer.clients import TrainerSynchronizerClient
from services.trainer.rank import device_turns
from services.trainer.rank.device_turns import SharedDevice
from services.trainer.rank.link import RankWaitReporter
from services.trainer.types import RankTurnState, StageLearner
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1 import synchronizer_pb2_grpc as pb_grpc
from trinity.errors import RunFailed
from trinity.runtime import retry as retry_module
from trinity.runtime.device_lock import (
    DeviceLock,
    Holder,
    ReportCounter,
    WantedDevice,
    read_holder,
)
from trinity.runtime.retry import RpcRetry, StopRequested
from trinity.types import StageKey

ENGINE = Holder.of_this_process("engine", "to roll out")


class Reports:
    """A synchronizer's client that keeps what it is told; the engine leaves at a wish."""

    def __init__(self, engine: DeviceLock | None = None, error: Exception | None = None) -> None:
        self.told: list[str] = []
        self._engine = engine
        self._error = error

    def record_turn(self, state: RankTurnState, process: str, reason: str) -> None:
        assert "of the trainer on" in process
        if self._error is not None:
            raise self._error
        self.told.append(f"{state} {reason}")
        if state is RankTurnState.WANTED and self._engine is not None:
            self._engine.release()


class MovingLearner:
    """A learner that keeps where it is, and whether it had the lock when it moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_on_device = True
        self.num_moves = 0
        self.fails_to_leave = False
        self.check_lock()

    def enter_device(self) -> None:
        self.check_lock()
        self.num_moves += 1
        self.is_on_device = True

    def leave_device(self) -> None:
        self.check_lock()
        if self.fails_to_leave:
            raise ZeroDivisionError
        self.is_on_device = False

    def check_lock(self) -> None:
        assert not DeviceLock(self._path).try_take(ENGINE), "it moved without the lock"


def turns_on(
    path: Path,
    reports: Reports,
    stop: threading.Event | None = None,
    *,
    keeps_device: bool = False,
) -> SharedDevice:
    return SharedDevice(
        path,
        synchronizer=cast("TrainerSynchronizerClient", reports),
        stop=stop or threading.Event(),
        waits=RankWaitReporter(lambda _: None),
        silence_seconds=60,
        keeps_device=keeps_device,
    )


def built(turns: SharedDevice, path: Path) -> MovingLearner:
    return cast("MovingLearner", turns.build(lambda: cast("StageLearner", MovingLearner(path))))


def test_a_learner_is_built_on_the_device_and_leaves_it(tmp_path: Path) -> None:
    path, reports = tmp_path / "lock", Reports()
    turns = turns_on(path, reports)
    learner = built(turns, path)
    assert not learner.is_on_device
    assert DeviceLock(path).try_take(ENGINE)
    turns.close()
    assert reports.told == ["held to load the model", "released to load the model"]


def test_it_asks_for_a_device_that_the_engine_has(tmp_path: Path) -> None:
    path, engine = tmp_path / "lock", DeviceLock(tmp_path / "lock")
    reports = Reports(engine)
    turns = turns_on(path, reports)
    learner = built(turns, path)
    assert engine.try_take(ENGINE)
    with turns.on_device(cast("StageLearner", learner), "to train step 1"):
        assert learner.is_on_device
        turns.show_life()
    assert not learner.is_on_device
    turns.close()
    assert reports.told[2:] == [
        f"{state} to train step 1" for state in ("wanted", "held", "released")
    ]


def test_an_error_on_the_device_lets_the_engine_in(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    turns = turns_on(path, Reports())
    learner = built(turns, path)
    with (
        pytest.raises(ZeroDivisionError),
        turns.on_device(cast("StageLearner", learner), "to train step 1"),
    ):
        raise ZeroDivisionError
    assert not learner.is_on_device
    assert DeviceLock(path).try_take(ENGINE)
    turns.close()


def test_a_learner_that_cannot_leave_the_device_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    turns = turns_on(path, Reports())
    learner = built(turns, path)
    learner.fails_to_leave = True
    with (
        pytest.raises(ZeroDivisionError),
        turns.on_device(cast("StageLearner", learner), "to train step 1"),
    ):
        pass
    assert not DeviceLock(path).try_take(ENGINE), "its memory is on the device until it ends"
    turns.close()


def test_a_model_that_fails_to_load_keeps_the_device(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    turns = turns_on(path, Reports())

    def make() -> StageLearner:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turns.build(make)
    assert not DeviceLock(path).try_take(ENGINE), "parts of it may be on the device"
    turns.close()


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    path, stop = tmp_path / "lock", threading.Event()
    turns = turns_on(path, Reports(), stop)
    engine = DeviceLock(path)
    assert engine.try_take(ENGINE)
    stop.set()
    with pytest.raises(StopRequested):
        built(turns, path)
    turns.close()


def test_a_synchronizer_that_stays_away_ends_the_wait(tmp_path: Path) -> None:
    path, engine = tmp_path / "lock", DeviceLock(tmp_path / "lock")
    assert engine.try_take(ENGINE)
    turns = turns_on(path, Reports(error=RunFailed("it does not answer")))
    with pytest.raises(RunFailed, match="does not answer"):
        built(turns, path)
    turns.close()


@dataclass
class Keeping:
    """Turns that keep the device, and their learner."""

    path: Path
    reports: Reports
    turns: SharedDevice
    learner: MovingLearner
    stop: threading.Event

    def train(self, step: int) -> None:
        with self.turns.on_device(cast("StageLearner", self.learner), f"to train step {step}"):
            assert self.learner.is_on_device
            self.learner.check_lock()

    def give_back(self) -> None:
        self.turns.give_back(cast("StageLearner", self.learner))


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    path, engine, stop = tmp_path / "lock", DeviceLock(tmp_path / "lock"), threading.Event()
    reports = Reports(engine)
    turns = turns_on(path, reports, stop, keeps_device=True)
    yield Keeping(path, reports, turns, built(turns, path), stop)
    turns.close()


def test_a_device_that_no_other_wants_is_kept_between_steps(keeping: Keeping) -> None:
    for step in (1, 2, 3):
        keeping.train(step)
        assert keeping.turns.is_kept
        keeping.learner.check_lock()
        holder = read_holder(keeping.path)
        assert holder is not None and holder.reason == "until it is asked for"
    assert (keeping.learner.num_moves, keeping.learner.is_on_device) == (1, True)
    keeping.give_back()
    keeping.give_back()
    assert not keeping.learner.is_on_device and not keeping.turns.is_kept
    assert DeviceLock(keeping.path).try_take(ENGINE)
    keeping.turns.close()
    kept = "held until it is asked for"
    assert keeping.reports.told[2:] == [
        *("held to train step 1", kept, "held to train step 2", kept, "held to train step 3"),
        *(kept, "released until it is asked for"),
    ]


def test_a_turn_that_keeps_nothing_moves_at_each_step(tmp_path: Path) -> None:
    """The control."""
    path = tmp_path / "lock"
    turns = turns_on(path, Reports())
    learner = built(turns, path)
    for step in (1, 2, 3):
        with turns.on_device(cast("StageLearner", learner), f"to train step {step}"):
            pass
        assert not learner.is_on_device and not turns.is_kept
    assert learner.num_moves == 3
    turns.close()


def test_one_that_wants_the_device_has_it_after_the_step(keeping: Keeping) -> None:
    wish, engine = WantedDevice(keeping.path), DeviceLock(keeping.path)
    keeping.train(1)
    wish.show()
    assert not engine.try_take(ENGINE)
    keeping.train(2)
    assert not keeping.learner.is_on_device and not keeping.turns.is_kept
    assert engine.try_take(ENGINE)
    wish.withdraw()
    engine.release()
    keeping.turns.close()
    assert keeping.reports.told[-2:] == ["held to train step 2", "released to train step 2"]


def test_it_goes_before_the_next_step_however_soon_that_comes(tmp_path: Path) -> None:
    """Each time the trainer looks the lock is free, and the engine takes it a little later."""
    path, engine = tmp_path / "lock", DeviceLock(tmp_path / "lock")
    turns = turns_on(path, Reports(engine), keeps_device=True)
    learner = built(turns, path)
    wish, order = WantedDevice(path), []
    wish.show()

    def take_late() -> None:
        threading.Event().wait(0.05)
        assert engine.take(ENGINE, 60)
        order.append("engine")
        wish.withdraw()

    with ThreadPoolExecutor(1) as thread:
        taking = thread.submit(take_late)
        with turns.on_device(cast("StageLearner", learner), "to train step 1"):
            order.append("trainer")
        taking.result()
    assert order == ["engine", "trainer"]
    turns.close()


def test_a_wish_that_takes_nothing_does_not_hold_the_training_up(
    keeping: Keeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_turns, "GIVE_WAY_SECONDS", 0.02)
    wish = WantedDevice(keeping.path)
    wish.show()
    keeping.train(1)
    keeping.train(2)
    assert keeping.learner.num_moves == 2, "and it leaves after each step"
    wish.withdraw()


def test_a_stop_ends_the_giving_way(keeping: Keeping) -> None:
    wish = WantedDevice(keeping.path)
    wish.show()
    keeping.stop.set()
    with pytest.raises(StopRequested):
        keeping.train(1)
    wish.withdraw()


def test_an_error_ends_the_keeping(keeping: Keeping) -> None:
    keeping.train(1)
    with (
        pytest.raises(ZeroDivisionError),
        keeping.turns.on_device(cast("StageLearner", keeping.learner), "to train step 2"),
    ):
        raise ZeroDivisionError
    assert not keeping.learner.is_on_device and not keeping.turns.is_kept
    assert DeviceLock(keeping.path).try_take(ENGINE)


class ServesAtSecondTry(pb_grpc.SynchronizerServiceServicer):
    """A synchronizer that is away at each first try of a call."""

    def __init__(self) -> None:
        self.tries: list[pb.RecordTurnRequest] = []

    def RecordTurn(
        self, request: pb.RecordTurnRequest, context: grpc.ServicerContext
    ) -> pb.RecordTurnResponse:
        self.tries.append(request)
        if len(self.tries) % 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        return pb.RecordTurnResponse()


def test_a_report_that_is_sent_again_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try that is served late can be told from a later report."""
    monkeypatch.setattr(retry_module, "ASK_AGAIN_SECONDS", 0.0)
    peer, server = ServesAtSecondTry(), grpc.server(ThreadPoolExecutor(1))
    pb_grpc.add_SynchronizerServiceServicer_to_server(peer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    waits = RankWaitReporter(lambda _: None)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = TrainerSynchronizerClient(
            channel=channel,
            key=StageKey(tenant="default", experiment_id="e", stage="rft"),
            retry=RpcRetry(peer="it", seconds=60, stop=threading.Event(), waits=waits),
        )
        for state in (RankTurnState.WANTED, RankTurnState.HELD):
            client.record_turn(state, "process 7", "to train step 1")
    server.stop(None).wait()
    first, again, second, again_2 = (request.sequence for request in peer.tries)
    assert (first, second) == (again, again_2)
    assert 0 < first < second
    assert len({request.clock for request in peer.tries}) == 1


def test_a_later_process_has_higher_numbers() -> None:
    before = [ReportCounter().next_place(), ReportCounter().next_place()]
    later = ReportCounter()
    places = [*before, later.next_place(), later.next_place()]
    assert places == sorted(places, key=lambda place: place.sequence)
    assert len({place.sequence for place in places}) == 4
