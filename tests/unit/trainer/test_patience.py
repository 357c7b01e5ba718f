"""Calls outlast a peer's restart, but not for ever, and never silently."""

import threading

import grpc
import pytest

from services.trainer.patience import Patience, StopRequested
from trinity.errors import PreconditionFailed, RunFailed


class Refused(grpc.RpcError):
    """What grpc raises when a call ends badly."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "nobody there"


class Peer:
    """Refuses a number of calls, then answers."""

    def __init__(self, num_refusals: int, code: grpc.StatusCode) -> None:
        self._left = num_refusals
        self._code = code

    def __call__(self) -> str:
        self._left -= 1
        if self._left >= 0:
            raise Refused(self._code)
        return "answer"


def patience_of(
    seconds: float, waits: list[str] | None = None, stop: threading.Event | None = None
) -> Patience:
    seen = waits if waits is not None else []
    return Patience(
        peer="buffer",
        seconds=seconds,
        stop=stop or threading.Event(),
        report=lambda waits_for, _reason, _deadline: seen.append(waits_for),
    )


def test_a_call_outlasts_a_restart_and_says_for_whom_it_waits() -> None:
    waits: list[str] = []
    peer = Peer(1, grpc.StatusCode.UNAVAILABLE)
    assert patience_of(60, waits).call(peer) == "answer"
    assert waits == ["buffer", ""]


def test_a_peer_that_stays_away_is_named() -> None:
    with pytest.raises(RunFailed, match=r"the buffer did not answer .*sync_timeout"):
        patience_of(0).call(Peer(9, grpc.StatusCode.UNAVAILABLE))


def test_a_state_that_is_gone_is_not_asked_for_again() -> None:
    with pytest.raises(PreconditionFailed):
        patience_of(60).call(Peer(1, grpc.StatusCode.FAILED_PRECONDITION))


def test_a_refusal_is_not_repeated() -> None:
    with pytest.raises(RunFailed, match="refused"):
        patience_of(60).call(Peer(1, grpc.StatusCode.INVALID_ARGUMENT))


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        patience_of(60, stop=stop).call(Peer(9, grpc.StatusCode.UNAVAILABLE))
