"""Results that the buffer has not reported on yet: kept, resent and removed."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.explorer.telemetry import published, publishing
from services.explorer.types import Report
from trinity.api.v1.experience_pb2 import RunResult
from trinity.telemetry.tracing import NO_SPAN, Span
from trinity.types import StageKey

FIRST_RESEND_SECONDS = 10.0
LONGEST_RESEND_SECONDS = 60.0
DOUBTED_SECONDS = 0.5
"""A broker that was killed may have lost the messages that it had just accepted."""


@dataclass(slots=True, kw_only=True)
class HeldResult:
    """One result, until its fate is known."""

    key: StageKey
    sequence: int
    """Its number among this producer's results."""
    body: bytes
    """The serialized result: made once, however often it is sent."""
    report: asyncio.Future[Report] = field(repr=False)
    added_at: float
    num_sends: int = 0
    resend_at: float = 0.0
    is_queued: bool = False
    span: Span = field(default=NO_SPAN, repr=False)


class Unconfirmed:
    """Holds this process's unreported results by sequence, and the queue of those to send next.

    `settle` and `forget` remove results. `add` returns a future of the report on its result.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[int, HeldResult] = {}
        self._queue: deque[HeldResult] = deque()
        self._next_sequence = 1
        self._queued = asyncio.Event()
        self._dropped = asyncio.Event()
        self._unsent: set[int] = set()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._hindrances: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def sequences(self) -> list[int]:
        """Sequence numbers of all held results, in order."""
        return sorted(self._held)

    @property
    def watched(self) -> list[int]:
        """Sequence numbers to request reports on; all after the last of them are included.

        When nothing is held, it is the last number given out: a result may be sent and committed
        while the request is in transit.
        """
        return self.sequences or [self._next_sequence - 1]

    @property
    def num_queued(self) -> int:
        """Number of results that wait to be sent."""
        return len(self._queue)

    @property
    def oldest_seconds(self) -> float:
        """Seconds that the oldest result has waited; 0 when there is none."""
        oldest = next(iter(self._held.values()), None)
        return self._clock() - oldest.added_at if oldest is not None else 0.0

    @property
    def hindrance(self) -> tuple[str, str]:
        """The peer that keeps the oldest result from being committed, and why, as far as known."""
        if self._hindrances:
            return next(iter(self._hindrances.items()))
        if next(iter(self._held), None) in self._unsent:
            return "broker", "it has not stored them"
        return "buffer", "it does not report on them"

    def hindered(self, by: str, reason: str) -> None:
        """Records that `by` keeps results from being committed."""
        self._hindrances[by] = reason

    def unhindered(self, by: str) -> None:
        """Records that `by` works."""
        self._hindrances.pop(by, None)

    def add(self, message: RunResult) -> asyncio.Future[Report]:
        """Numbers and queues a result, and returns a future of the report on it."""
        span = publishing(message)
        message.sequence = self._next_sequence
        self._next_sequence += 1
        held = HeldResult(
            key=StageKey(
                tenant=message.tenant, experiment_id=message.experiment_id, stage=message.stage
            ),
            sequence=message.sequence,
            body=message.SerializeToString(),
            report=asyncio.get_running_loop().create_future(),
            added_at=self._clock(),
            span=span,
        )
        self._held[held.sequence] = held
        self._unsent.add(held.sequence)
        self._all_sent.clear()
        self._enqueue(held)
        return held.report

    def settle(self, sequence: int, report: Report) -> None:
        """Removes a reported result; a second report on it changes nothing."""
        held = self._drop(sequence)
        if held is not None and not held.report.done():
            published(held.span, report, held.num_sends, self._clock() - held.added_at)
            held.report.set_result(report)

    def forget(self, key: StageKey) -> None:
        """Removes all results of a stage that is over for this process."""
        for held in list(self._held.values()):
            if held.key == key:
                self._drop(held.sequence)
                held.report.cancel()
                held.span.end()

    def close(self) -> None:
        """Ends the spans of the remaining results: their reports will not reach this process."""
        for held in self._held.values():
            held.span.end()

    async def wait_queued(self) -> None:
        """Waits until there is something to send."""
        await self._queued.wait()

    def take(self, max_results: int, max_bytes: int) -> list[HeldResult]:
        """Returns the next results of one stage: as many as fit, at least one if any is queued."""
        taken: list[HeldResult] = []
        room = max_bytes
        while self._queue and len(taken) < max_results:
            head = self._queue[0]
            if taken and (len(head.body) > room or head.key != taken[0].key):
                break
            held = self._queue.popleft()
            held.is_queued = False
            if held.sequence in self._held:
                taken.append(held)
                room -= len(held.body)
        if not self._queue:
            self._queued.clear()
        return taken

    def sent(self, results: Iterable[HeldResult]) -> None:
        """Records that the broker has the results; they are resent if no report comes for long."""
        for held in results:
            held.num_sends += 1
            pause = FIRST_RESEND_SECONDS * 2.0 ** (held.num_sends - 1)
            held.resend_at = self._clock() + min(pause, LONGEST_RESEND_SECONDS)
            self._note_sent(held.sequence)

    def send_again(self, results: Iterable[HeldResult]) -> None:
        """Queues results whose sending failed."""
        for held in results:
            held.num_sends += 1
            self._enqueue(held)

    def doubt_sent(self) -> None:
        """Resends everything sent if no report comes soon, because the broker was away."""
        soon = self._clock() + DOUBTED_SECONDS
        for held in self._held.values():
            if held.resend_at > 0:
                held.resend_at = min(held.resend_at, soon)

    def queue_overdue(self) -> int:
        """Queues results that were sent and not reported on for long; returns how many."""
        now = self._clock()
        overdue = [h for h in self._held.values() if not h.is_queued and 0 < h.resend_at <= now]
        for held in overdue:
            self._enqueue(held)
        return len(overdue)

    async def wait_empty(self) -> None:
        """Waits until every result has been reported on."""
        await self.wait_fewer_than(1)

    async def wait_fewer_than(self, limit: int) -> None:
        """Waits until fewer than `limit` results are left without a report."""
        while len(self._held) >= limit:
            self._dropped.clear()
            await self._dropped.wait()

    async def wait_all_sent(self) -> None:
        """Waits until the broker has had every result at least once."""
        await self._all_sent.wait()

    def _drop(self, sequence: int) -> HeldResult | None:
        held = self._held.pop(sequence, None)
        self._note_sent(sequence)
        self._dropped.set()
        return held

    def _note_sent(self, sequence: int) -> None:
        self._unsent.discard(sequence)
        if not self._unsent:
            self._all_sent.set()

    def _enqueue(self, held: HeldResult) -> None:
        if held.is_queued or held.sequence not in self._held:
            return
        held.is_queued = True
        held.resend_at = 0.0
        self._queue.append(held)
        self._queued.set()
