"""Others that do not answer: how long that is borne, and what is said about it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.explorer.clients.streams import Feed
from services.explorer.retry import Patience, StageFailed, sentence_of
from services.explorer.rollout.scheduler import Idleness
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

    patience = Patience(waits, 60.0)
    answer = await patience.persist(call, waits_for="buffer", purpose="lease work")
    assert answer == "answer"
    assert seen == ["to lease work: refused", "to lease work: no route"]
    assert waits.to_proto() == []


async def test_an_outage_that_does_not_pass_ends_with_its_newest_reason(
    waits: WaitRegistry,
) -> None:
    async def call() -> None:
        raise Unavailable("refused")

    with pytest.raises(StageFailed, match=r"waited 0.05 s for the buffer to lease work: refused"):
        await Patience(waits, 0.05).persist(call, waits_for="buffer", purpose="lease work")
    assert waits.to_proto() == []


async def test_an_answer_that_is_no_outage_is_not_asked_for_again(waits: WaitRegistry) -> None:
    calls: list[None] = []

    async def call() -> None:
        calls.append(None)
        raise NotFound("no such stage")

    with pytest.raises(NotFound):
        await Patience(waits).persist(call, waits_for="buffer", purpose="open the stage")
    assert len(calls) == 1


async def test_a_stream_that_stays_closed_ends_with_a_sentence(waits: WaitRegistry) -> None:
    async def stream() -> AsyncIterator[int]:
        raise Unavailable("refused")
        yield 0

    feed = Feed(
        stream, waits_for="synchronizer", purpose="follow it", patience=Patience(waits, 0.05)
    )
    with pytest.raises(StageFailed, match="for the synchronizer to follow it: refused"):
        await feed.run()


async def test_a_stream_that_opens_and_says_nothing_is_away(
    waits: WaitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.explorer.clients.streams.FIRST_ANSWER_SECONDS", 0.02)

    async def silent() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 0

    feed = Feed(
        silent, waits_for="synchronizer", purpose="follow it", patience=Patience(waits, 0.05)
    )
    with pytest.raises(StageFailed, match="for the synchronizer to follow it: it says nothing"):
        await feed.run()


async def test_two_streams_of_one_service_are_two_waits(waits: WaitRegistry) -> None:
    async def closed() -> AsyncIterator[int]:
        raise Unavailable("refused")
        yield 0

    async def open_stream() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    patience = Patience(waits)
    one = Feed(closed, waits_for="synchronizer", purpose="follow one", patience=patience)
    other = Feed(open_stream, waits_for="synchronizer", purpose="follow other", patience=patience)
    running = [asyncio.create_task(feed.run()) for feed in (one, other)]
    await other.wait_for(lambda _: True)
    (wait,) = waits.to_proto()
    assert wait.reason == "to follow one: refused"
    for task in running:
        task.cancel()
    await asyncio.wait(running)


def test_a_buffer_without_work_is_borne_while_anything_changes(waits: WaitRegistry) -> None:
    idleness = Idleness(Patience(waits, 0.0))
    with pytest.raises(StageFailed, match="for the buffer to have work: version 3"):
        idleness.note("version 3 is missing", is_idle=True)
    patient = Idleness(Patience(waits, 60.0))
    for reason, is_idle in (("version 3", False), ("version 3", True), ("version 4", True)):
        patient.note(reason, is_idle=is_idle)
    (wait,) = waits.to_proto()
    assert wait.reason == "version 4" and wait.deadline_seconds > 0


def test_work_is_not_asked_for_longer_than_a_reason_may_last(waits: WaitRegistry) -> None:
    idleness = Idleness(Patience(waits, 60.0))
    assert idleness.seconds_left == 60.0
    idleness.note("version 3", is_idle=True)
    assert 59.0 < idleness.seconds_left < 60.0
    idleness.over()
    assert idleness.seconds_left == 60.0


def test_what_people_are_told_is_found_in_groups_of_groups() -> None:
    inner = ExceptionGroup("tasks", [UserError("no such reward")])
    assert sentence_of(ExceptionGroup("tasks", [inner])) == "no such reward"
    assert sentence_of(NotFound("no such stage")) == "no such stage"


def test_an_error_that_nobody_expected_is_not_hidden_behind_one_that_is_told() -> None:
    assert sentence_of(ExceptionGroup("tasks", [UserError("x"), ZeroDivisionError()])) is None
