"""Results are kept until the buffer reports on them."""

import asyncio

from services.explorer.delivery.outbox import (
    EXPEDITED_SECONDS,
    FIRST_RESEND_SECONDS,
    BlockedBy,
    Outbox,
)
from services.explorer.types import CommitOutcome, ResultReport
from trinity.api.v1.experience_pb2 import RunResult
from trinity.errors import Unavailable
from trinity.runtime.members import WaitKind
from trinity.types import StageKey


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def result(stage: str = "main", reason: str = "") -> RunResult:
    return RunResult(tenant="t", experiment_id="x", stage=stage, reason=reason)


async def test_results_are_numbered_from_one() -> None:
    outbox = Outbox(Clock())
    for _ in range(3):
        outbox.enqueue_result(result())
    assert outbox.sequences == [1, 2, 3]


async def test_a_result_leaves_with_its_fate_and_a_second_report_changes_nothing() -> None:
    outbox = Outbox(Clock())
    report = outbox.enqueue_result(result())
    outbox.resolve(1, ResultReport(CommitOutcome.COMMITTED))
    outbox.resolve(1, ResultReport(CommitOutcome.LATE))
    assert (await report).outcome is CommitOutcome.COMMITTED
    assert len(outbox) == 0


async def test_a_message_holds_what_fits_and_never_two_stages() -> None:
    outbox = Outbox(Clock())
    for text in ("a" * 500, "b" * 500, "c" * 2000):
        outbox.enqueue_result(result(reason=text))
    outbox.enqueue_result(result(stage="next"))
    sizes = []
    while taken := outbox.take_batch(max_results=10, max_bytes=1200):
        sizes.append([held.sequence for held in taken])
    assert sizes == [[1, 2], [3], [4]]


async def test_what_is_not_reported_on_for_long_is_sent_again() -> None:
    clock = Clock()
    outbox = Outbox(clock)
    outbox.enqueue_result(result())
    outbox.mark_sent(outbox.take_batch(64, 1000))
    assert outbox.requeue_overdue() == 0
    clock.now += FIRST_RESEND_SECONDS
    assert outbox.requeue_overdue() == 1
    (held,) = outbox.take_batch(64, 1000)
    assert (held.sequence, held.num_sends) == (1, 1)


async def test_what_a_broker_may_have_lost_is_sent_again_soon() -> None:
    clock = Clock()
    outbox = Outbox(clock)
    for _ in range(2):
        outbox.enqueue_result(result())
    outbox.mark_sent(outbox.take_batch(1, 1000))
    outbox.expedite_resends()
    assert outbox.requeue_overdue() == 0
    clock.now += EXPEDITED_SECONDS
    assert outbox.requeue_overdue() == 1
    assert [held.sequence for held in outbox.take_batch(64, 1000)] == [2, 1]


async def test_a_result_reported_on_meanwhile_is_not_sent_again() -> None:
    outbox = Outbox(Clock())
    outbox.enqueue_result(result())
    taken = outbox.take_batch(64, 1000)
    outbox.resolve(1, ResultReport(CommitOutcome.COMMITTED))
    outbox.requeue(taken)
    assert outbox.take_batch(64, 1000) == []


async def test_waiting_for_the_last_fate_ends_with_it() -> None:
    outbox = Outbox(Clock())
    outbox.enqueue_result(result())
    waiting = asyncio.create_task(outbox.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.resolve(1, ResultReport(CommitOutcome.REJECTED))
    await waiting


async def test_the_age_is_that_of_the_oldest_result() -> None:
    clock = Clock()
    outbox = Outbox(clock)
    assert outbox.oldest_seconds == 0
    for _ in range(2):
        outbox.enqueue_result(result())
        clock.now += 5
    assert outbox.oldest_seconds == 10
    outbox.resolve(1, ResultReport(CommitOutcome.COMMITTED))
    assert outbox.oldest_seconds == 5


async def test_what_belongs_to_a_stage_that_is_over_is_forgotten() -> None:
    outbox = Outbox(Clock())
    outbox.enqueue_result(result())
    outbox.enqueue_result(result(stage="next"))
    outbox.drop_stage(StageKey(tenant="t", experiment_id="x", stage="main"))
    assert outbox.sequences == [2]
    assert [held.sequence for held in outbox.take_batch(64, 1000)] == [2]


async def test_there_is_room_again_when_enough_is_reported_on() -> None:
    outbox = Outbox(Clock())
    for _ in range(3):
        outbox.enqueue_result(result())
    waiting = asyncio.create_task(outbox.wait_fewer_than(2))
    outbox.resolve(1, ResultReport(CommitOutcome.COMMITTED))
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.resolve(2, ResultReport(CommitOutcome.LATE))
    await waiting


async def test_who_has_not_done_its_part_keeps_the_oldest_result_from_being_committed() -> None:
    outbox = Outbox(Clock())
    outbox.enqueue_result(result())
    assert outbox.blocked_by == BlockedBy("broker", "it has not stored them")
    outbox.mark_sent(outbox.take_batch(64, 1000))
    assert outbox.blocked_by == BlockedBy("buffer", "it does not report on them")
    outbox.mark_blocked("broker", Unavailable("there is no connection to it"))
    silent = WaitKind.NO_ANSWER
    assert outbox.blocked_by == BlockedBy("broker", "there is no connection to it", silent)


async def test_what_is_sent_while_reports_are_asked_for_is_meant_as_well() -> None:
    outbox = Outbox(Clock())
    assert outbox.watched_sequences == [0]
    outbox.enqueue_result(result())
    assert outbox.watched_sequences == [1]
    outbox.resolve(1, ResultReport(CommitOutcome.COMMITTED))
    assert outbox.watched_sequences == [1]
