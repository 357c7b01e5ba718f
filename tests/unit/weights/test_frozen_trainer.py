"""A trainer that is frozen, or whose machine is gone: it keeps its connections and says nothing."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from tests.unit.weights.test_transfer import HASTY, ROOT, offered, seat_at
from trinity.errors import TransferFailed
from trinity.weights import receiving, rendezvous
from trinity.weights.offer import Receivers
from trinity.weights.receiving import WeightsReceiver
from trinity.weights.rendezvous import request_transfer
from trinity.weights.sending import WeightsSender

ONE = Receivers(count=1, have_gpu=False)


class Frozen:
    """Between a trainer and who asks it; from `freeze` on nothing comes back."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._trainer = (host, int(port))
        self._is_frozen = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = [self._listener]
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        _beside(self._accept)

    def freeze(self) -> None:
        self._is_frozen.set()

    def close(self) -> None:
        for one in self._ends:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                asker, _ = self._listener.accept()
                trainer = socket.create_connection(self._trainer)
                self._ends += [asker, trainer]
                _beside(lambda a=asker, t=trainer: self._pass_on(a, t))  # type: ignore[misc]
                _beside(lambda a=asker, t=trainer: self._pass_on(t, a))  # type: ignore[misc]

    def _pass_on(self, from_: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while content := from_.recv(65536):
                if not self._is_frozen.is_set():
                    to.sendall(content)


def _beside(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()


@contextmanager
def frozen_later(offer: WeightsSender) -> Iterator[Frozen]:
    frozen = Frozen(offer.offer.address)
    try:
        yield frozen
    finally:
        frozen.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(rendezvous, "STORE_SECONDS", 0.5)


@pytest.fixture
def offer() -> Iterator[WeightsSender]:
    offer = offered(HASTY)  # or its end waits for who was let in and cannot come
    yield offer
    offer.withdraw(60.0)


def test_who_finds_it_frozen_takes_the_files(offer: WeightsSender) -> None:
    with frozen_later(offer) as trainer:
        trainer.freeze()
        at = replace(offer.offer, address=trainer.address)
        with pytest.raises(TransferFailed, match="could not reach the trainer"):
            request_transfer(at, ONE, limits=HASTY, weights=ROOT)


def test_who_has_reached_it_before_takes_the_files(
    offer: WeightsSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    with frozen_later(offer) as trainer:
        monkeypatch.setattr(rendezvous, "open_store", then(trainer.freeze, rendezvous.open_store))
        at = replace(offer.offer, address=trainer.address)
        with pytest.raises(TransferFailed, match="could not hear from the trainer"):
            request_transfer(at, ONE, limits=HASTY, weights=ROOT)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_engine_that_it_let_in_is_not_held_up(
    offer: WeightsSender, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with frozen_later(offer) as trainer:
        seat = replace(seat_at(offer, limits=HASTY), address=trainer.address)
        if when == "before":
            trainer.freeze()
        else:
            opened = then(trainer.freeze, rendezvous.open_store)
            monkeypatch.setattr(receiving, "open_store", opened)
        with pytest.raises(TransferFailed, match="could not re"):
            WeightsReceiver(seat, index=0, device="cpu")


def then(act: Callable[[], None], open_store: Callable[..., object]) -> Callable[..., object]:
    """Opens a store, and acts when it is open."""

    def opened(*args: object) -> object:
        store = open_store(*args)
        act()
        return store

    return opened
