"""Results are kept until the buffer reports on them."""

import asyncio

from services.explorer.delivery.outbox import DOUBTED_SECONDS, FIRST_RESEND_SECONDS, Unconfirmed
from services.explorer.types import Fate, Report
from trinity.api.v1.experience_pb2 import RunResult
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
    unconfirmed = Unconfirmed(Clock())
    for _ in range(3):
        unconfirmed.add(result())
    assert unconfirmed.sequences == [1, 2, 3]


async def test_a_result_leaves_with_its_fate_and_a_second_report_changes_nothing() -> None:
    unconfirmed = Unconfirmed(Clock())
    report = unconfirmed.add(result())
    unconfirmed.settle(1, Report(Fate.COMMITTED))
    unconfirmed.settle(1, Report(Fate.LATE))
    assert (await report).fate is Fate.COMMITTED
    assert len(unconfirmed) == 0


async def test_a_message_holds_what_fits_and_never_two_stages() -> None:
    unconfirmed = Unconfirmed(Clock())
    for text in ("a" * 500, "b" * 500, "c" * 2000):
        unconfirmed.add(result(reason=text))
    unconfirmed.add(result(stage="next"))
    sizes = []
    while taken := unconfirmed.take(max_results=10, max_bytes=1200):
        sizes.append([held.sequence for held in taken])
    assert sizes == [[1, 2], [3], [4]]


async def test_what_is_not_reported_on_for_long_is_sent_again() -> None:
    clock = Clock()
    unconfirmed = Unconfirmed(clock)
    unconfirmed.add(result())
    unconfirmed.sent(unconfirmed.take(64, 1000))
    assert unconfirmed.queue_overdue() == 0
    clock.now += FIRST_RESEND_SECONDS
    assert unconfirmed.queue_overdue() == 1
    (held,) = unconfirmed.take(64, 1000)
    assert (held.sequence, held.num_sends) == (1, 1)


async def test_what_a_broker_may_have_lost_is_sent_again_soon() -> None:
    clock = Clock()
    unconfirmed = Unconfirmed(clock)
    for _ in range(2):
        unconfirmed.add(result())
    unconfirmed.sent(unconfirmed.take(1, 1000))
    unconfirmed.doubt_sent()
    assert unconfirmed.queue_overdue() == 0
    clock.now += DOUBTED_SECONDS
    assert unconfirmed.queue_overdue() == 1
    assert [held.sequence for held in unconfirmed.take(64, 1000)] == [2, 1]


async def test_a_result_reported_on_meanwhile_is_not_sent_again() -> None:
    unconfirmed = Unconfirmed(Clock())
    unconfirmed.add(result())
    taken = unconfirmed.take(64, 1000)
    unconfirmed.settle(1, Report(Fate.COMMITTED))
    unconfirmed.send_again(taken)
    assert unconfirmed.take(64, 1000) == []


async def test_waiting_for_the_last_fate_ends_with_it() -> None:
    unconfirmed = Unconfirmed(Clock())
    unconfirmed.add(result())
    waiting = asyncio.create_task(unconfirmed.wait_empty())
    await asyncio.sleep(0)
    assert not waiting.done()
    unconfirmed.settle(1, Report(Fate.REJECTED))
    await waiting


async def test_the_age_is_that_of_the_oldest_result() -> None:
    clock = Clock()
    unconfirmed = Unconfirmed(clock)
    assert unconfirmed.oldest_seconds == 0
    for _ in range(2):
        unconfirmed.add(result())
        clock.now += 5
    assert unconfirmed.oldest_seconds == 10
    unconfirmed.settle(1, Report(Fate.COMMITTED))
    assert unconfirmed.oldest_seconds == 5


async def test_what_belongs_to_a_stage_that_is_over_is_forgotten() -> None:
    unconfirmed = Unconfirmed(Clock())
    unconfirmed.add(result())
    unconfirmed.add(result(stage="next"))
    unconfirmed.forget(StageKey(tenant="t", experiment_id="x", stage="main"))
    assert unconfirmed.sequences == [2]
    assert [held.sequence for held in unconfirmed.take(64, 1000)] == [2]


async def test_there_is_room_again_when_enough_is_reported_on() -> None:
    unconfirmed = Unconfirmed(Clock())
    for _ in range(3):
        unconfirmed.add(result())
    waiting = asyncio.create_task(unconfirmed.wait_fewer_than(2))
    unconfirmed.settle(1, Report(Fate.COMMITTED))
    await asyncio.sleep(0)
    assert not waiting.done()
    unconfirmed.settle(2, Report(Fate.LATE))
    await waiting


async def test_who_has_not_done_its_part_keeps_the_oldest_result_from_being_committed() -> None:
    unconfirmed = Unconfirmed(Clock())
    unconfirmed.add(result())
    assert unconfirmed.hindrance == ("broker", "it has not stored them")
    unconfirmed.sent(unconfirmed.take(64, 1000))
    assert unconfirmed.hindrance == ("buffer", "it does not report on them")
    unconfirmed.hindered("broker", "there is no connection to it")
    assert unconfirmed.hindrance == ("broker", "there is no connection to it")


async def test_what_is_sent_while_reports_are_asked_for_is_meant_as_well() -> None:
    unconfirmed = Unconfirmed(Clock())
    assert unconfirmed.watched == [0]
    unconfirmed.add(result())
    assert unconfirmed.watched == [1]
    unconfirmed.settle(1, Report(Fate.COMMITTED))
    assert unconfirmed.watched == [1]
