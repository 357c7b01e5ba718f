"""Batches in order of step, the same on all ranks; training data is fetched one step ahead."""

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from services.trainer.batch_rows import RowReader
from services.trainer.clients import BatchResult, NoBatchReason, TrainerBufferClient
from services.trainer.collectives import Ranks
from trinity.errors import RunFailed
from trinity.runtime.retry import StopRequested, WaitReporter

logger = logging.getLogger(__name__)

WAIT_NAME = "batch"
AT_HAND_SECONDS = 1.0
"""Time in which a batch that is being fetched counts as there."""
READY, STOP = 0, 1
CODES = {
    NoBatchReason.DRAINED: 2,
    NoBatchReason.CANCELLED: 3,
    NoBatchReason.VERSION_WANTED: 4,
    NoBatchReason.WEIGHTS_DAMAGED: 5,
    NoBatchReason.STOPPING: 6,
}
STATES = {code: state for state, code in CODES.items()}


class BatchSource:
    """Fetches batches, polling until there is an answer.

    The first rank leads: the others request the batch after it has one. Only training data is
    prefetched: requesting a batch of rollouts early would compose it before the previous step is
    published, while a restarted trainer assumes the opposite order.
    """

    def __init__(
        self,
        *,
        buffer: TrainerBufferClient,
        ranks: Ranks,
        incarnation: int,
        reader: RowReader,
        fetches_ahead: bool,
        timeout_seconds: float,
        stop: threading.Event,
        waits: WaitReporter,
        has_damage: Callable[[], bool] = lambda: False,
        is_stopping: Callable[[], bool] = lambda: False,
        incomplete_after: float | None = None,
    ) -> None:
        """Damaged weights (`has_damage`) take precedence over a batch, and an order to stop over
        both; the first rank decides.

        After `incomplete_after` seconds an incomplete batch is requested.
        """
        self._buffer = buffer
        self._ranks = ranks
        self._incarnation = incarnation
        self._reader = reader
        self._timeout_seconds = timeout_seconds
        self._stop = stop
        self._waits = waits
        self._has_damage = has_damage
        self._is_stopping = is_stopping
        self._incomplete_after = math.inf if incomplete_after is None else incomplete_after
        self._executor = ThreadPoolExecutor(1, "next-batch") if fetches_ahead else None
        self._prefetched: tuple[int, Future[BatchResult]] | None = None

    def has_batch(self, step: int) -> bool:
        """True if `next_batch` will not wait, as this rank has fetched the batch ahead.

        One that is being fetched is waited for, for a moment.
        """
        if self._prefetched is None or self._prefetched[0] != step:
            return False
        future = self._prefetched[1]
        if not wait((future,), AT_HAND_SECONDS).done:
            return False
        return future.exception() is not None or future.result().state is not NoBatchReason.WAITING

    def next_batch(
        self, step: int, *, is_last: bool, check: Callable[[], None] = lambda: None
    ) -> BatchResult:
        """Returns the step's batch, or the reason that it will not come. Collective.

        Raises: RunFailed if the batch does not come in time, StopRequested if the first rank is to
        stop, and the errors of `check`, which is called while waiting.
        """
        answer, code = BatchResult(None), READY
        if self._ranks.is_first:
            answer, code = self._wait_first(step, check)
        (code,) = self._ranks.broadcast_ints([code])
        if code == STOP:
            raise StopRequested
        if code != READY:
            return BatchResult(None, STATES[code], answer.reason)
        if not self._ranks.is_first:
            answer = self._wait_for(step, check)
        if not is_last:
            self._fetch_ahead(step + 1)
        return answer

    def cancel_prefetch(self) -> None:
        """Drops the prefetched batch; a call in progress ends with its channel."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _wait_first(self, step: int, check: Callable[[], None]) -> tuple[BatchResult, int]:
        """Returns the first rank's answer, and the code that tells the others of it."""
        try:
            answer = self._wait_for(step, check)
        except StopRequested:
            return BatchResult(None), STOP
        return answer, READY if answer.state is None else CODES[answer.state]

    def _wait_for(self, step: int, check: Callable[[], None]) -> BatchResult:
        begun = time.monotonic()
        due, deadline = begun + self._incomplete_after, begun + self._timeout_seconds
        self._report_wait(BatchResult(None, reason=f"the batch of train step {step}"))
        try:
            while True:
                if self._stop.is_set():
                    raise StopRequested
                check()
                if self._ranks.is_first and self._is_stopping():
                    return BatchResult(None, NoBatchReason.STOPPING)
                if self._has_damage():
                    return BatchResult(None, NoBatchReason.WEIGHTS_DAMAGED)
                now = time.monotonic()
                is_due = now >= due
                until = deadline if is_due else min(due, deadline)
                answer = self._request_batch(step, max(until - now, 0.0), is_due=is_due)
                if answer.state is not NoBatchReason.WAITING:
                    return answer
                # An incomplete batch that is due before the deadline is requested at least once.
                if time.monotonic() >= deadline and (is_due or due > deadline):
                    raise RunFailed(
                        f"no batch for train step {step} came in {self._timeout_seconds:.0f} s"
                        f"{_missing_rollouts(answer)}: {answer.reason}"
                    )
                self._report_wait(answer)
        finally:
            self._waits.clear(WAIT_NAME)

    def _report_wait(self, answer: BatchResult) -> None:
        logger.debug("waiting for a batch", extra={"reason": answer.reason})
        self._waits.set(
            WAIT_NAME,
            waits_for="buffer",
            reason=answer.reason,
            deadline_seconds=self._timeout_seconds,
            kind=answer.waits_for,
        )

    def _request_batch(self, step: int, wait_seconds: float, *, is_due: bool) -> BatchResult:
        if self._prefetched is not None:
            ahead, future = self._prefetched
            self._prefetched = None
            answer = future.result()
            if ahead == step:
                return answer
        return self._buffer.get_batch(
            step, self._incarnation, self._reader, wait_seconds, takes_incomplete=is_due
        )

    def _fetch_ahead(self, step: int) -> None:
        if self._executor is None:
            return
        future = self._executor.submit(
            self._buffer.get_batch, step, self._incarnation, self._reader
        )
        self._prefetched = (step, future)


def _missing_rollouts(answer: BatchResult) -> str:
    if not answer.num_wanted:
        return ""
    return f", {answer.num_available} of {answer.num_wanted} rollouts are there"
