"""Calls outlast a peer's restart, but not for ever, and never silently."""

import threading

import grpc
import pytest

from services.trainer import retry as retry_module
from services.trainer.retry import RpcRetry, StopRequested
from trinity.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RpcError,
    RunFailed,
    Superseded,
)
from trinity.runtime.presence import WaitRegistry


class Refused(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
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


class Shown:
    """What others saw this process wait for, after each change."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.waits = WaitRegistry(owner="trainer", on_change=self._look)

    def _look(self) -> None:
        waits = self.waits.to_proto()
        self.seen.append([f"{wait.waits_for}: {wait.reason}" for wait in waits])


def retry_of(
    seconds: float, shown: Shown | None = None, stop: threading.Event | None = None
) -> RpcRetry:
    return RpcRetry(
        peer="buffer",
        seconds=seconds,
        stop=stop or threading.Event(),
        waits=(shown or Shown()).waits,
    )


def test_a_call_outlasts_a_restart_and_says_for_whom_it_waits() -> None:
    shown = Shown()
    peer = Peer(1, grpc.StatusCode.UNAVAILABLE)
    assert retry_of(60, shown).call(peer) == "answer"
    assert shown.seen == [["buffer: the buffer does not answer: nobody there"], []]


def test_a_peer_that_stays_away_is_named() -> None:
    with pytest.raises(RunFailed, match=r"the buffer did not answer .*sync_timeout"):
        retry_of(0).call(Peer(9, grpc.StatusCode.UNAVAILABLE))


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, PreconditionFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, NotFound),
    ],
)
def test_a_refusal_is_not_repeated_and_says_who_refused(
    code: grpc.StatusCode, error: type[RpcError]
) -> None:
    with pytest.raises(error, match="the buffer refused: nobody there"):
        retry_of(60).call(Peer(1, code))


def test_only_aborted_means_that_a_newer_incarnation_exists() -> None:
    with pytest.raises(Superseded):
        retry_of(60).call(Peer(1, grpc.StatusCode.ABORTED))


def test_an_answer_is_asked_for_until_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "ASK_AGAIN_SECONDS", 0.0)
    shown, answers = Shown(), iter(["reading a", "reading b", "open"])
    given = retry_of(60, shown).call_until_ready(
        lambda: next(answers), lambda answer: None if answer == "open" else answer
    )
    assert given == "open"
    assert shown.seen == [["buffer: reading a"], ["buffer: reading b"], []]


def test_an_answer_that_never_comes_is_given_up_with_its_reason() -> None:
    with pytest.raises(RunFailed, match=r"the buffer was not ready .*sync_timeout.*: reading a"):
        retry_of(0).call_until_ready(lambda: "reading a", lambda answer: answer)


def test_a_stop_ends_the_wait() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        retry_of(60, stop=stop).call(Peer(9, grpc.StatusCode.UNAVAILABLE))
