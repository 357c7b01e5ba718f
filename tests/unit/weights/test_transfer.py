"""Weights between a trainer and receivers of one process, over gloo on loopback."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from trinity.errors import TransferFailed
from trinity.weights import receiving, sending, tensors
from trinity.weights.identity import WeightsRoots
from trinity.weights.offer import Receivers, ReceiverSlot, TransferTimeouts, next_slot
from trinity.weights.process_group import local_address_for
from trinity.weights.receiving import WeightsReceiver
from trinity.weights.rendezvous import request_transfer
from trinity.weights.sending import WeightsSender
from trinity.weights.tensors import RootDigest

LIMITS = TransferTimeouts(
    turn_seconds=60.0, join_seconds=60.0, stall_seconds=60.0, whole_seconds=120.0
)
IMPATIENT = replace(LIMITS, stall_seconds=0.5)
HASTY = replace(LIMITS, turn_seconds=0.5, join_seconds=0.5)
TENSORS = {
    "model.b": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "model.a": torch.arange(5, dtype=torch.bfloat16),
    "model.c": torch.tensor(2.5),
    "model.empty": torch.empty(0, 4),
}


def root() -> WeightsRoots:
    digest = RootDigest("blake3")
    for name, tensor in TENSORS.items():
        digest.add_tensor(name, tensor)
    return digest.roots()


ROOT = root()


def offered(limits: TransferTimeouts = LIMITS, host: str = "127.0.0.1") -> WeightsSender:
    return WeightsSender(
        TENSORS, host=host, name="weights", limits=limits, transfer_lock=threading.Lock()
    )


@pytest.fixture
def offer() -> Iterator[WeightsSender]:
    offer = offered()
    yield offer
    offer.withdraw(60.0)


def seat_at(
    offer: WeightsSender, count: int = 1, limits: TransferTimeouts = LIMITS
) -> ReceiverSlot:
    receivers = Receivers(count=count, have_gpu=False)
    return request_transfer(offer.offer, receivers, limits=limits, weights=ROOT)


def receive(seat: ReceiverSlot, index: int = 0) -> tuple[dict[str, torch.Tensor], str]:
    arrival = WeightsReceiver(seat, index=index, device="cpu")
    return dict(arrival.tensors()), arrival.finish()


def assert_same(weights: dict[str, torch.Tensor]) -> None:
    assert weights.keys() == TENSORS.keys()
    for name, tensor in weights.items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


def test_what_arrives_is_what_was_offered(offer: WeightsSender) -> None:
    weights, failure = receive(seat_at(offer))
    assert not failure
    assert_same(weights)


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6 address")
def test_weights_go_over_an_ipv6_address_too() -> None:
    sender = offered(host="::1")
    assert sender.offer.address.startswith("[::1]:")
    weights, failure = receive(seat_at(sender))
    sender.withdraw(60.0)
    assert not failure
    assert_same(weights)
    assert local_address_for("::1") == "::1"


def test_a_later_one_gets_the_same(offer: WeightsSender) -> None:
    for _ in range(2):
        assert not receive(seat_at(offer))[1]


def test_all_processes_of_two_engines_receive_at_once(offer: WeightsSender) -> None:
    seat = seat_at(offer, count=3)
    places = [(seat, 0), (seat, 1), (next_slot(seat, 2), 0)]
    with ThreadPoolExecutor(3) as threads:
        for weights, failure in threads.map(lambda place: receive(*place), places):
            assert not failure
            assert_same(weights)


def test_small_messages_carry_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensors, "MESSAGE_BYTES", 16)
    small = offered()
    weights, failure = receive(seat_at(small))
    small.withdraw(60.0)
    assert not failure
    assert_same(weights)


def test_a_changed_bit_is_noticed(offer: WeightsSender, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_bit_changed(*arguments: object) -> torch.Tensor:
        buffer = tensors.pack(*arguments)  # type: ignore[arg-type]
        buffer[3] ^= 1
        return buffer

    monkeypatch.setattr(sending, "pack", one_bit_changed)
    weights, failure = receive(seat_at(offer))
    assert weights.keys() == TENSORS.keys()
    assert "hash differs" in failure


def test_a_sender_that_falls_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was promised is given all the same, so that a model's loading ends as usual."""
    released = threading.Event()

    def never(*arguments: object) -> torch.Tensor:
        released.wait(60.0)
        return tensors.pack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sending, "pack", never)
    offer = offered()
    weights, failure = receive(seat_at(offer, limits=IMPATIENT))
    assert weights.keys() == TENSORS.keys()
    assert "could not pass a message on" in failure
    released.set()
    offer.withdraw(60.0)


def test_an_engine_without_room_for_them_loads_the_files(
    offer: WeightsSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    seat = seat_at(offer, limits=IMPATIENT)
    arrival = WeightsReceiver(seat, index=0, device="cpu")
    monkeypatch.setattr(receiving, "allocate_buffer", no_room)
    assert dict(arrival.tensors()).keys() == TENSORS.keys()
    assert "2 GiB" in arrival.finish()


def test_receivers_that_do_not_come_cost_the_next_one_nothing() -> None:
    offer = offered(HASTY)
    seat_at(offer)
    weights, failure = receive(seat_at(offer))
    offer.withdraw(60.0)
    assert not failure
    assert_same(weights)


def test_what_is_withdrawn_is_not_given() -> None:
    offer = offered()
    offer.withdraw(60.0)
    with pytest.raises(TransferFailed, match="no longer offered"):
        seat_at(offer)


def test_who_waits_for_a_turn_is_told_that_there_is_none() -> None:
    turn = threading.Lock()
    turn.acquire()
    offer = WeightsSender(
        TENSORS, host="127.0.0.1", name="weights", limits=LIMITS, transfer_lock=turn
    )
    with ThreadPoolExecutor(2) as threads:
        seats = [threads.submit(seat_at, offer) for _ in range(2)]
        offer.withdraw()
        turn.release()
        endings = [seat.exception(120.0) for seat in seats]
    assert all(isinstance(ending, TransferFailed) for ending in endings), endings


def test_another_group_is_not_answered(offer: WeightsSender) -> None:
    guessed = replace(offer.offer, group="weights-guessed")
    with pytest.raises(TransferFailed, match="could not hear from the trainer"):
        request_transfer(
            guessed,
            Receivers(count=1, have_gpu=False),
            limits=HASTY,
            weights=ROOT,
        )


def test_a_list_of_tensors_that_is_none_is_refused() -> None:
    with pytest.raises(TransferFailed, match="list of tensors"):
        tensors.parse_layout(b'[[["w", "int8", [1]]]]')


def test_limits_leave_time_for_the_files() -> None:
    for seconds in (1.0, 60.0, 3600.0):
        limits = TransferTimeouts.within(seconds)
        parts = (limits.turn_seconds, limits.join_seconds, limits.whole_seconds)
        assert sum(parts) + limits.stall_seconds < 0.6 * seconds
