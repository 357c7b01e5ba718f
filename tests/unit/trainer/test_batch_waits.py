"""Requests of the trainer while it waits for a batch, and the time at which it gives up."""

import threading
from dataclasses import dataclass

import pytest

from services.trainer.batch_rows import RowReader
from services.trainer.clients import BatchResult, NoBatchReason
from services.trainer.collectives import Ranks
from services.trainer.data import batches
from services.trainer.data.batches import BatchSource
from tests.unit.trainer.builders import random_batch
from trinity.errors import RunFailed
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import StopRequested


class SlowBuffer:
    """Has nothing but an incomplete batch, if that."""

    def __init__(self, *, has_rows: bool) -> None:
        self._has_rows = has_rows
        self.asked: list[bool] = []
        self.waits: list[float] = []

    def get_batch(
        self,
        step: int,
        incarnation: int,
        reader: RowReader,
        wait_seconds: float = 20.0,
        *,
        takes_incomplete: bool = False,
    ) -> BatchResult:
        del step, incarnation, reader
        self.asked.append(takes_incomplete)
        self.waits.append(wait_seconds)
        if takes_incomplete and self._has_rows:
            return BatchResult(random_batch(1, seed=3))
        threading.Event().wait(wait_seconds)
        return BatchResult(None, NoBatchReason.WAITING, "rollouts are under way")


def source(
    buffer: "SlowBuffer | FetchingBuffer",
    *,
    timeout: float,
    incomplete_after: float | None,
    fetches_ahead: bool = False,
    ranks: "Ranks | OtherRank | None" = None,
) -> BatchSource:
    return BatchSource(
        buffer=buffer,  # type: ignore[arg-type]  # the one method that is called
        ranks=ranks or Ranks(0, 1),  # type: ignore[arg-type]  # what is called of them
        incarnation=1,
        reader=RowReader(formatter=None, mixed_with_rollouts=False),
        fetches_ahead=fetches_ahead,
        timeout_seconds=timeout,
        incomplete_after=incomplete_after,
        stop=threading.Event(),
        waits=WaitRegistry(owner="trainer", on_change=lambda: None),
    )


@dataclass(frozen=True)
class OtherRank:
    """A rank that is told by the first one what became of the step."""

    code: int
    is_first: bool = False

    def broadcast_ints(self, own: list[int]) -> list[int]:
        assert own == [0], "it has no code of its own"
        return [self.code]


class FetchingBuffer:
    """Gives its answer when it is let to."""

    def __init__(self, answer: BatchResult | Exception) -> None:
        self._answer = answer
        self.may_answer = threading.Event()
        self.asked: list[int] = []

    def get_batch(
        self,
        step: int,
        incarnation: int,
        reader: RowReader,
        wait_seconds: float = 20.0,
        *,
        takes_incomplete: bool = False,
    ) -> BatchResult:
        del incarnation, reader, wait_seconds, takes_incomplete
        self.asked.append(step)
        if step == 1:
            return BatchResult(random_batch(1, seed=3))
        assert self.may_answer.wait(60)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "is_there"),
    [
        (BatchResult(random_batch(1, seed=3)), True),
        (BatchResult(None, NoBatchReason.DRAINED), True),
        (RunFailed("the buffer refused"), True),
        (BatchResult(None, NoBatchReason.WAITING), False),
    ],
)
def test_a_batch_is_there_once_it_was_fetched_ahead_whatever_it_is(
    answer: BatchResult | Exception, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = FetchingBuffer(answer)
    own = source(buffer, timeout=60.0, incomplete_after=None, fetches_ahead=True)
    assert not own.has_batch(1), "nothing was fetched"
    own.next_batch(1, is_last=False)
    with monkeypatch.context() as patched:
        patched.setattr(batches, "AT_HAND_SECONDS", 0.01)
        assert not own.has_batch(2), "it has not come"
    buffer.may_answer.set()
    assert own.has_batch(2) is is_there
    assert not own.has_batch(3)
    own.cancel_prefetch()


def test_what_was_fetched_ahead_is_not_asked_for_again() -> None:
    buffer = FetchingBuffer(BatchResult(random_batch(2, seed=3)))
    buffer.may_answer.set()
    own = source(buffer, timeout=60.0, incomplete_after=None, fetches_ahead=True)
    own.next_batch(1, is_last=False)
    found = own.next_batch(2, is_last=True)
    assert found.batch is not None and buffer.asked == [1, 2]
    own.cancel_prefetch()


def test_without_fetching_ahead_no_batch_is_there() -> None:
    own = source(SlowBuffer(has_rows=True), timeout=0.02, incomplete_after=0.01)
    own.next_batch(1, is_last=False)
    assert not own.has_batch(2)


@pytest.mark.parametrize("timeout", [0.02, 60.0])
def test_what_is_ready_is_trained_also_where_the_run_gives_up_at_the_same_moment(
    timeout: float,
) -> None:
    """A long `max_read_timeout` is both limits."""
    buffer = SlowBuffer(has_rows=True)
    own = source(buffer, timeout=timeout, incomplete_after=0.02)
    assert own.next_batch(1, is_last=True).batch is not None
    assert buffer.asked[-1] and not buffer.asked[0]


@pytest.mark.parametrize("incomplete_after", [0.02, None])
def test_without_any_rollout_the_run_gives_up(incomplete_after: float | None) -> None:
    buffer = SlowBuffer(has_rows=False)
    own = source(buffer, timeout=0.02, incomplete_after=incomplete_after)
    with pytest.raises(RunFailed, match="no batch for train step 1 came in 0 s: rollouts are"):
        own.next_batch(1, is_last=True)
    assert buffer.asked == [False] + [True] * (incomplete_after is not None)
    assert all(0.0 <= wait < 0.03 for wait in buffer.waits)


def test_the_run_says_how_many_rollouts_it_had_when_it_gives_up() -> None:
    few = BatchResult(None, NoBatchReason.WAITING, "rollouts are under way", 3, 8)
    buffer = FetchingBuffer(few)
    buffer.may_answer.set()
    with pytest.raises(RunFailed, match=r"came in 0 s, 3 of 8 rollouts are there: rollouts are"):
        source(buffer, timeout=0.02, incomplete_after=None).next_batch(2, is_last=True)


@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_another_rank_is_told_why_there_is_no_batch_and_asks_for_none(code: int) -> None:
    buffer = SlowBuffer(has_rows=True)
    own = source(buffer, timeout=60.0, incomplete_after=0.0, ranks=OtherRank(code))
    found = own.next_batch(1, is_last=False)
    assert found.batch is None
    assert (
        found.state
        is {
            2: NoBatchReason.DRAINED,
            3: NoBatchReason.CANCELLED,
            4: NoBatchReason.VERSION_WANTED,
            5: NoBatchReason.WEIGHTS_DAMAGED,
        }[code]
    )
    assert buffer.asked == []


def test_another_rank_asks_once_the_first_has_its_batch_and_stops_with_it() -> None:
    buffer = SlowBuffer(has_rows=True)
    own = source(buffer, timeout=60.0, incomplete_after=0.0, ranks=OtherRank(0))
    assert own.next_batch(1, is_last=True).batch is not None
    with pytest.raises(StopRequested):
        source(buffer, timeout=60.0, incomplete_after=0.0, ranks=OtherRank(1)).next_batch(
            1, is_last=True
        )
    assert len(buffer.asked) == 1


def test_what_is_being_fetched_holds_up_no_end() -> None:
    buffer = FetchingBuffer(BatchResult(None, NoBatchReason.DRAINED))
    own = source(buffer, timeout=60.0, incomplete_after=None, fetches_ahead=True)
    own.next_batch(1, is_last=False)
    own.cancel_prefetch()
    assert not buffer.may_answer.is_set(), "it did not wait for the answer"
    buffer.may_answer.set()
