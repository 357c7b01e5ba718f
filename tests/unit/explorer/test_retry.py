"""Others that do not answer: how long that is borne, and what is said about it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.explorer.retry import (
    IdleTimeout,
    RetryPolicy,
    RolloutStageFailed,
    WatchFeed,
    user_message,
)
from trinity.errors import NotFound, Unavailable, UserError
from trinity.runtime.presence import WaitRegistry


@pytest.fixture
def waits() -> WaitRegistry:
    return WaitRegistry(owner="explorer", on_change=lambda: None)


async def test_an_outage_that_passes_is_one_wait_whatever_its_reasons(waits: WaitRegistry) -> None:
    seen: list[str] = []
    errors = iter(["refused", "no route"])

    async def call() -> str:
        seen.extend(wait.reason for wait in waits.to_proto())
        if reason := next(errors, None):
            raise Unavailable(reason)
        return "answer"

    retry_policy = RetryPolicy(waits, 60.0)
    answer = await retry_policy.retry(call, waits_for="buffer", purpose="lease work")
    assert answer == "answer"
    assert seen == ["to lease work: refused", "to lease work: no route"]
    assert waits.to_proto() == []


async def test_an_outage_that_does_not_pass_ends_with_its_newest_reason(
    waits: WaitRegistry,
) -> None:
    async def call() -> None:
        raise Unavailable("refused")

    with pytest.raises(
        RolloutStageFailed, match=r"waited 0.05 s for the buffer to lease work: refused"
    ):
        await RetryPolicy(waits, 0.05).retry(call, waits_for="buffer", purpose="lease work")
    assert waits.to_proto() == []


async def test_an_answer_that_is_no_outage_is_not_asked_for_again(waits: WaitRegistry) -> None:
    calls: list[None] = []

    async def call() -> None:
        calls.append(None)
        raise NotFound("no such stage")

    with pytest.raises(NotFound):
        await RetryPolicy(waits).retry(call, waits_for="buffer", purpose="open the stage")
    assert len(calls) == 1


async def test_a_stream_that_stays_closed_ends_with_a_sentence(waits: WaitRegistry) -> None:
    async def stream() -> AsyncIterator[int]:
        raise Unavailable("refused")
        yield 0

    feed = WatchFeed(
        stream, waits_for="synchronizer", purpose="follow it", retry_policy=RetryPolicy(waits, 0.05)
    )
    with pytest.raises(RolloutStageFailed, match="for the synchronizer to follow it: refused"):
        await feed.follow_stream()


async def test_a_stream_that_opens_and_says_nothing_is_away(
    waits: WaitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explorer.retry.FIRST_RESPONSE_SECONDS", 0.02)

    async def silent() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    feed = WatchFeed(
        silent, waits_for="synchronizer", purpose="follow it", retry_policy=RetryPolicy(waits, 0.05)
    )
    with pytest.raises(
        RolloutStageFailed, match="for the synchronizer to follow it: it says nothing"
    ):
        await feed.follow_stream()


async def test_two_streams_of_one_service_are_two_waits(waits: WaitRegistry) -> None:
    async def closed() -> AsyncIterator[int]:
        raise Unavailable("refused")
        yield 0

    async def open_stream() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    retry_policy = RetryPolicy(waits)
    one = WatchFeed(
        closed, waits_for="synchronizer", purpose="follow one", retry_policy=retry_policy
    )
    other = WatchFeed(
        open_stream, waits_for="synchronizer", purpose="follow other", retry_policy=retry_policy
    )
    running = [asyncio.create_task(feed.follow_stream()) for feed in (one, other)]
    await other.wait_for(lambda _: True)
    (wait,) = waits.to_proto()
    assert wait.reason == "to follow one: refused"
    for task in running:
        task.cancel()
    await asyncio.wait(running)


def test_a_buffer_without_work_is_borne_while_anything_changes(waits: WaitRegistry) -> None:
    idleness = IdleTimeout(RetryPolicy(waits, 0.0))
    with pytest.raises(RolloutStageFailed, match="for the buffer to have work: version 3"):
        idleness.record_reason("version 3 is missing", is_idle=True)
    patient = IdleTimeout(RetryPolicy(waits, 60.0))
    for reason, is_idle in (("version 3", False), ("version 3", True), ("version 4", True)):
        patient.record_reason(reason, is_idle=is_idle)
    (wait,) = waits.to_proto()
    assert wait.reason == "version 4" and wait.deadline_seconds > 0


def test_work_is_not_asked_for_longer_than_a_reason_may_last(waits: WaitRegistry) -> None:
    idleness = IdleTimeout(RetryPolicy(waits, 60.0))
    assert idleness.seconds_left == 60.0
    idleness.record_reason("version 3", is_idle=True)
    assert 59.0 < idleness.seconds_left < 60.0
    idleness.reset()
    assert idleness.seconds_left == 60.0


def test_what_people_are_told_is_found_in_groups_of_groups() -> None:
    inner = ExceptionGroup("tasks", [UserError("no such reward")])
    assert user_message(ExceptionGroup("tasks", [inner])) == "no such reward"
    assert user_message(NotFound("no such stage")) == "no such stage"


def test_an_error_that_nobody_expected_is_not_hidden_behind_one_that_is_told() -> None:
    assert user_message(ExceptionGroup("tasks", [UserError("x"), ZeroDivisionError()])) is None
