"""Results and turns without a report of the buffer: kept, resent, resolved, with a deadline."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.telemetry import begin_result_span, end_result_span
from services.explorer.types import ResultReport
from trinity.api.v1.experience_pb2 import RunResult, RunResultBatch, SessionTurn
from trinity.errors import RpcError
from trinity.runtime.members import WaitKind
from trinity.runtime.retry import RetryPolicy, wait_kind_of
from trinity.runtime.telemetry.tracing import NO_SPAN, Span
from trinity.types import StageKey

RESULTS_FIELD = RunResultBatch.RESULTS_FIELD_NUMBER
TURNS_FIELD = RunResultBatch.TURNS_FIELD_NUMBER
FIRST_RESEND_SECONDS = 10.0
MAX_RESEND_SECONDS = 60.0
EXPEDITED_SECONDS = 0.5
"""A broker that was killed may have lost the messages that it had just accepted."""
PAUSE_SECONDS = 0.2
CHECK_SECONDS = 0.5
SHOWN_AFTER_SECONDS = 1.0
"""Most results are committed within a tenth of this."""
WAIT = "commits"


@dataclass(slots=True, kw_only=True)
class PendingResult:
    """One result or turn, until its fate is known."""

    key: StageKey
    sequence: int
    """Its number among this producer's results and turns."""
    field_number: int
    """The field of a message that takes it."""
    body: bytes
    """The serialized result or turn: made once, however often it is sent."""
    report: asyncio.Future[ResultReport] = field(repr=False)
    added_at: float
    num_sends: int = 0
    resend_at: float = 0.0
    is_queued: bool = False
    span: Span = field(default=NO_SPAN, repr=False)


@dataclass(frozen=True, slots=True)
class BlockedBy:
    """A peer that keeps results from being committed."""

    waits_for: str
    reason: str
    kind: WaitKind = WaitKind.COMMIT


class Outbox:
    """Holds this process's unreported results by sequence, and the queue of those to send next.

    `resolve` and `drop_stage` remove results. `enqueue_result` returns a future of the report on
    its result.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pending: dict[int, PendingResult] = {}
        self._queue: deque[PendingResult] = deque()
        self._next_sequence = 1
        self._queued = asyncio.Event()
        self._removed = asyncio.Event()
        self._unsent: set[int] = set()
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._blocked: dict[str, BlockedBy] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def sequences(self) -> list[int]:
        """Sequence numbers of all pending results, in order."""
        return sorted(self._pending)

    @property
    def watched_sequences(self) -> list[int]:
        """Sequence numbers to request reports on; all after the last of them are included.

        Without pending results, it is the last number given out: a result may be sent and committed
        while the request is in transit.
        """
        return self.sequences or [self._next_sequence - 1]

    @property
    def num_queued(self) -> int:
        """Number of results that wait to be sent."""
        return len(self._queue)

    @property
    def oldest_seconds(self) -> float:
        """Seconds that the oldest result has waited; 0 for an empty outbox."""
        oldest = next(iter(self._pending.values()), None)
        return self._clock() - oldest.added_at if oldest is not None else 0.0

    @property
    def blocked_by(self) -> "BlockedBy":
        """The peer that keeps the oldest result from being committed, and why, as far as known."""
        if self._blocked:
            return next(iter(self._blocked.values()))
        if next(iter(self._pending), None) in self._unsent:
            return BlockedBy("broker", "it has not stored them")
        return BlockedBy("buffer", "it does not report on them")

    def mark_blocked(self, by: str, error: Exception, prefix: str = "") -> None:
        """Records that `by` keeps results from being committed."""
        kind = wait_kind_of(error)
        kind = WaitKind.COMMIT if kind is WaitKind.STATE else kind
        self._blocked[by] = BlockedBy(by, f"{prefix}{error}", kind)

    def clear_blocked(self, by: str) -> None:
        """Records that `by` works."""
        self._blocked.pop(by, None)

    def enqueue_result(self, message: RunResult) -> asyncio.Future[ResultReport]:
        """Numbers and queues a result, and returns a future of the report on it."""
        return self._add(message, RESULTS_FIELD, begin_result_span(message))

    def enqueue_turn(self, message: SessionTurn) -> asyncio.Future[ResultReport]:
        """Numbers and queues a turn, and returns a future of the report on it."""
        return self._add(message, TURNS_FIELD, NO_SPAN)

    def _add(
        self, message: RunResult | SessionTurn, field_number: int, span: Span
    ) -> asyncio.Future[ResultReport]:
        message.sequence = self._next_sequence
        self._next_sequence += 1
        pending = PendingResult(
            key=_stage_key(message),
            sequence=message.sequence,
            field_number=field_number,
            body=message.SerializeToString(),
            report=asyncio.get_running_loop().create_future(),
            added_at=self._clock(),
            span=span,
        )
        self._pending[pending.sequence] = pending
        self._unsent.add(pending.sequence)
        self._all_sent.clear()
        self._enqueue(pending)
        return pending.report

    def resolve(self, sequence: int, report: ResultReport) -> None:
        """Removes a reported result; a second report on it is ignored."""
        pending = self._drop(sequence)
        if pending is not None and not pending.report.done():
            end_result_span(
                pending.span, report, pending.num_sends, self._clock() - pending.added_at
            )
            pending.report.set_result(report)

    def drop_stage(self, key: StageKey) -> None:
        """Removes all results of a stage that is over for this process."""
        for pending in list(self._pending.values()):
            if pending.key == key:
                self._drop(pending.sequence)
                pending.report.cancel()
                pending.span.end()

    def end_spans(self) -> None:
        """Ends the spans of the remaining results: their reports will not reach this process."""
        for pending in self._pending.values():
            pending.span.end()

    async def wait_queued(self) -> None:
        """Waits until there is something to send."""
        await self._queued.wait()

    def take_batch(self, max_results: int, max_bytes: int) -> list[PendingResult]:
        """Returns the next results of one stage: as many as fit, at least one if any is queued."""
        taken: list[PendingResult] = []
        room = max_bytes
        while self._queue and len(taken) < max_results:
            head = self._queue[0]
            if taken and (len(head.body) > room or head.key != taken[0].key):
                break
            pending = self._queue.popleft()
            pending.is_queued = False
            if pending.sequence in self._pending:
                taken.append(pending)
                room -= len(pending.body)
        if not self._queue:
            self._queued.clear()
        return taken

    def mark_sent(self, results: Iterable[PendingResult]) -> None:
        """Records that the broker has the results; they are resent if no report comes for long."""
        for pending in results:
            pending.num_sends += 1
            pause = FIRST_RESEND_SECONDS * 2.0 ** (pending.num_sends - 1)
            pending.resend_at = self._clock() + min(pause, MAX_RESEND_SECONDS)
            self._discard_unsent(pending.sequence)

    def requeue(self, results: Iterable[PendingResult]) -> None:
        """Queues results whose sending failed."""
        for pending in results:
            pending.num_sends += 1
            self._enqueue(pending)

    def expedite_resends(self) -> None:
        """Resends everything sent if no report comes soon, because the broker was away."""
        soon = self._clock() + EXPEDITED_SECONDS
        for pending in self._pending.values():
            if pending.resend_at > 0:
                pending.resend_at = min(pending.resend_at, soon)

    def requeue_overdue(self) -> int:
        """Queues results that were sent and not reported on for long; returns how many."""
        now = self._clock()
        overdue = [
            pending
            for pending in self._pending.values()
            if not pending.is_queued and 0 < pending.resend_at <= now
        ]
        for pending in overdue:
            self._enqueue(pending)
        return len(overdue)

    async def wait_empty(self) -> None:
        """Waits until every result has been reported on."""
        await self.wait_fewer_than(1)

    async def wait_fewer_than(self, limit: int) -> None:
        """Waits until fewer than `limit` results are left without a report."""
        while len(self._pending) >= limit:
            self._removed.clear()
            await self._removed.wait()

    async def wait_all_sent(self) -> None:
        """Waits until the broker has had every result at least once."""
        await self._all_sent.wait()

    def _drop(self, sequence: int) -> PendingResult | None:
        pending = self._pending.pop(sequence, None)
        self._discard_unsent(sequence)
        self._removed.set()
        return pending

    def _discard_unsent(self, sequence: int) -> None:
        self._unsent.discard(sequence)
        if not self._unsent:
            self._all_sent.set()

    def _enqueue(self, pending: PendingResult) -> None:
        if pending.is_queued or pending.sequence not in self._pending:
            return
        pending.is_queued = True
        pending.resend_at = 0.0
        self._queue.append(pending)
        self._queued.set()


def _stage_key(message: RunResult | SessionTurn) -> StageKey:
    return StageKey(tenant=message.tenant, experiment_id=message.experiment_id, stage=message.stage)


class CommitReportWatcher:
    """Resolves results as the buffer reports on them; reopens the stream when it ends."""

    def __init__(self, *, producer: str, buffer: ExplorerBufferClient, outbox: Outbox) -> None:
        self._producer = producer
        self._buffer = buffer
        self._outbox = outbox

    async def follow_reports(self) -> None:
        """Runs until cancelled; callers that wait for reports set their own deadlines."""
        while True:
            try:
                await self._follow()
            except RpcError as error:
                self._outbox.mark_blocked("buffer", error, "its reports cannot be followed: ")
            await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self) -> None:
        sequences = self._outbox.watched_sequences
        async for reports in self._buffer.watch_commits(self._producer, sequences):
            self._outbox.clear_blocked("buffer")
            for sequence, report in reports:
                self._outbox.resolve(sequence, report)


class CommitDeadline:
    """Watches the oldest result that the buffer has not reported on."""

    def __init__(self, *, outbox: Outbox, retry_policy: RetryPolicy) -> None:
        self._outbox = outbox
        self._retry_policy = retry_policy

    async def enforce_deadline(self) -> None:
        """Runs until cancelled.

        Raises: RolloutStageFailed when a result waits for too long.
        """
        try:
            while True:
                self._check()
                left = self._retry_policy.seconds - self._outbox.oldest_seconds
                await asyncio.sleep(min(max(left, 0.0), CHECK_SECONDS))
        finally:
            self._retry_policy.waits.clear(WAIT)

    def _check(self) -> None:
        waited = self._outbox.oldest_seconds
        by = self._outbox.blocked_by
        if waited and waited >= self._retry_policy.seconds:
            what = f"to have results committed: {by.reason}"
            raise self._retry_policy.deadline_error(by.waits_for, what)
        if waited < SHOWN_AFTER_SECONDS:
            self._retry_policy.waits.clear(WAIT)
            return
        self._retry_policy.waits.set(
            WAIT,
            waits_for=by.waits_for,
            reason=f"{len(self._outbox)} results to be committed: {by.reason}",
            deadline_seconds=self._retry_policy.deadline_seconds,
            kind=by.kind,
        )
