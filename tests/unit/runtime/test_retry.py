"""Calls are retried while a peer is away, until a deadline, under one visible wait."""

import logging
import threading
from collections.abc import Callable, Iterable

import grpc
import pytest

from tests.unit.clock import Clock
from trinity.errors import (
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    RolloutStageFailed,
    RpcError,
    RunFailed,
    Superseded,
    Unauthenticated,
    Unavailable,
)
from trinity.runtime import retry as retry_module
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import Retry, RetryPolicy, RpcRetry, StopRequested

REFUSED = Unavailable("refused")


class CallFailed(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A failed call with a code."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__()
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "nobody there"


class Shown:
    """The waits of this process after each change."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.waits = WaitRegistry(owner="trainer", on_change=self._look)

    def _look(self) -> None:
        waits = self.waits.to_proto()
        self.seen.append([f"{wait.waits_for}: {wait.reason}" for wait in waits])


@pytest.fixture
def shown() -> Shown:
    return Shown()


def attempt_of(errors: Iterable[Exception]) -> Callable[[], str]:
    """Raises the errors, one a call, then answers."""
    left = iter(errors)

    def attempt() -> str:
        if error := next(left, None):
            raise error
        return "answer"

    return attempt


def retry_of(clock: Clock, seconds: float = 10.0, *, cut_last_pause: bool = True) -> Retry:
    return Retry(
        seconds=seconds,
        timeout_error=RunFailed,
        max_pause_seconds=5.0,
        cut_last_pause=cut_last_pause,
        clock=clock,
    )


def rpc_retry_of(seconds: float, shown: Shown, stop: threading.Event | None = None) -> RpcRetry:
    return RpcRetry(
        peer="buffer", seconds=seconds, stop=stop or threading.Event(), waits=shown.waits
    )


@pytest.mark.parametrize(
    ("cut_last_pause", "expected"),
    [(True, [0.2, 0.4, 0.8, 1.6, 3.2, 3.8]), (False, [0.2, 0.4, 0.8, 1.6, 3.2])],
)
def test_pauses_grow_and_the_last_one_ends_at_the_deadline_or_is_not_begun(
    cut_last_pause: bool, expected: list[float]
) -> None:
    clock, pauses = Clock(), []
    retry = retry_of(clock, cut_last_pause=cut_last_pause)
    clock.now += 1_000
    with pytest.raises(RunFailed, match="refused"):
        while True:
            retry.record_failure(REFUSED)
            pauses.append(retry.next_pause())
            clock.now += pauses[-1]
    assert pauses == pytest.approx(expected)


def test_the_deadline_counts_from_the_first_failure_after_an_end() -> None:
    clock = Clock()
    retry = retry_of(clock)
    retry.record_failure(REFUSED)
    clock.now += 9.9
    retry.record_failure(REFUSED)
    retry.end()
    clock.now += 9.9
    retry.record_failure(REFUSED)
    assert retry.next_pause() == 0.2


def test_a_started_deadline_counts_the_first_attempt() -> None:
    clock = Clock()
    retry = retry_of(clock)
    retry.start()
    clock.now += 10.0
    with pytest.raises(RunFailed) as raised:
        retry.record_failure(REFUSED)
    assert raised.value.__cause__ is REFUSED


def test_no_time_means_no_second_attempt() -> None:
    with pytest.raises(RunFailed):
        retry_of(Clock(), seconds=0.0).record_failure(REFUSED)


async def test_failures_are_one_wait_and_a_log_line_per_reason(
    shown: Shown, caplog: pytest.LogCaptureFixture
) -> None:
    retry = RetryPolicy(shown.waits).new_retry(waits_for="buffer", purpose="lease")
    retry.max_pause_seconds = 0.0
    caplog.set_level(logging.WARNING)
    attempt = attempt_of([REFUSED, REFUSED, Unavailable("no route")])

    async def call() -> str:
        return attempt()

    assert await retry.call_async(call) == "answer"
    refused, no_route = "to lease: refused", "to lease: no route"
    assert [seen for seen in shown.seen if seen] == [
        [f"buffer: {reason}"] for reason in (refused, no_route)
    ]
    assert shown.seen[-1] == []
    assert [vars(record)["reason"] for record in caplog.records] == [refused, no_route]


async def test_an_outage_that_does_not_pass_ends_with_its_newest_reason(shown: Shown) -> None:
    async def call() -> None:
        raise REFUSED

    with pytest.raises(
        RolloutStageFailed, match=r"waited 0.05 s for the buffer to lease work: refused"
    ):
        await RetryPolicy(shown.waits, 0.05).retry(call, waits_for="buffer", purpose="lease work")
    assert shown.waits.to_proto() == []


@pytest.mark.parametrize("error", [NotFound("no such stage"), Unauthenticated("expired")])
async def test_a_refusal_is_not_repeated(error: Exception) -> None:
    calls: list[None] = []

    async def call() -> None:
        calls.append(None)
        raise error

    retry = Retry(seconds=60.0, timeout_error=RunFailed, refusals=(Unauthenticated,))
    with pytest.raises(type(error)) as raised:
        await retry.call_async(call)
    assert raised.value is error
    assert len(calls) == 1


def test_a_call_outlasts_a_restart_and_says_for_whom_it_waits(shown: Shown) -> None:
    attempt = attempt_of([CallFailed(grpc.StatusCode.UNAVAILABLE)])
    assert rpc_retry_of(60, shown).call(attempt) == "answer"
    assert shown.seen == [["buffer: the buffer does not answer: nobody there"], []]


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, PreconditionFailed, "the buffer refused: nobody"),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest, "the buffer refused: nobody"),
        (grpc.StatusCode.NOT_FOUND, NotFound, "the buffer refused: nobody"),
        (grpc.StatusCode.ABORTED, Superseded, "^nobody there"),
    ],
)
def test_a_peer_that_refuses_is_named_and_only_aborted_means_a_newer_incarnation(
    code: grpc.StatusCode, error: type[RpcError], text: str, shown: Shown
) -> None:
    with pytest.raises(error, match=text):
        rpc_retry_of(60, shown).call(attempt_of([CallFailed(code)]))


def test_a_peer_that_stays_away_is_named(shown: Shown) -> None:
    with pytest.raises(RunFailed, match=r"the buffer did not answer .*sync_timeout"):
        rpc_retry_of(0, shown).call(attempt_of([CallFailed(grpc.StatusCode.UNAVAILABLE)]))


def test_an_answer_is_asked_for_until_it_is_there(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry_module, "ASK_AGAIN_SECONDS", 0.0)
    answers = iter(["reading a", "reading b", "open"])
    given = rpc_retry_of(60, shown).call_until_ready(
        lambda: next(answers), lambda answer: None if answer == "open" else answer
    )
    assert given == "open"
    assert shown.seen == [["buffer: reading a"], ["buffer: reading b"], []]


def test_an_answer_that_never_comes_is_given_up_with_its_reason(shown: Shown) -> None:
    with pytest.raises(RunFailed, match=r"the buffer was not ready .*sync_timeout.*: reading a"):
        rpc_retry_of(0, shown).call_until_ready(lambda: "reading a", lambda answer: answer)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND])
def test_a_stop_ends_the_wait(code: grpc.StatusCode, shown: Shown) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        rpc_retry_of(60, shown, stop).call(attempt_of([CallFailed(code)]))
