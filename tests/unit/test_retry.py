"""A failing call is tried again until a deadline, and shown as one wait."""

import pytest

from tests.unit.clock import Clock
from trinity.errors import RunFailed, Unavailable
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import Retry, RetryWait

REFUSED = Unavailable("refused")


def retry_of(
    clock: Clock,
    seconds: float = 10.0,
    waits: WaitRegistry | None = None,
    *,
    cut_last_pause: bool = True,
    logged: list[str] | None = None,
) -> Retry:
    wait = RetryWait(reporter=waits, name="lease", waits_for="buffer") if waits else None
    return Retry(
        seconds=seconds,
        timeout_error=RunFailed,
        log=(logged if logged is not None else []).append,
        prefix="to lease: ",
        wait=wait,
        max_pause_seconds=5.0,
        cut_last_pause=cut_last_pause,
        clock=clock,
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


def test_failures_are_one_wait_and_a_log_line_per_reason() -> None:
    waits = WaitRegistry(owner="explorer", on_change=lambda: None)
    logged: list[str] = []
    retry = retry_of(Clock(), waits=waits, logged=logged)
    errors = iter([REFUSED, REFUSED, Unavailable("no route")])
    seen: list[list[str]] = []

    def attempt() -> str:
        seen.append([wait.reason for wait in waits.to_proto()])
        if error := next(errors, None):
            raise error
        return "lease"

    assert retry.call(attempt, sleep=lambda _: None) == "lease"
    assert seen == [[], ["to lease: refused"], ["to lease: refused"], ["to lease: no route"]]
    assert waits.to_proto() == []
    assert logged == ["refused", "no route"]


async def test_other_errors_are_not_retried() -> None:
    async def attempt() -> None:
        raise RunFailed("wrong")

    with pytest.raises(RunFailed, match="wrong"):
        await retry_of(Clock()).call_async(attempt)
