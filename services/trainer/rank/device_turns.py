"""A rank's turns on a device that it shares with the engine: it takes, works, and gives it back."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from services.trainer.clients import TrainerSynchronizerClient
from services.trainer.retry import StopRequested
from services.trainer.types import RankTurnState, StageLearner
from trinity.runtime.device_lock import POLL_SECONDS, DeviceLock, Holder, HolderWatch, describe_wait
from trinity.runtime.life import LIFE_SECONDS
from trinity.runtime.retry import WaitReporter

logger = logging.getLogger(__name__)

ROLE = "trainer"
WAIT_NAME = "device"
SHOWN_AFTER_SECONDS = 1.0


class RankTurns(Protocol):
    """The turns of a rank on its device."""

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Returns the learner that `make` builds on the device."""

    def on_device(self, learner: StageLearner, reason: str) -> AbstractContextManager[None]:
        """Returns a block in which the learner is on the device."""

    def show_life(self) -> None:
        """Shows that the work goes on."""


class OwnDevice:
    """The turns of a rank with a device of its own: they never end."""

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Builds it."""
        return make()

    @contextmanager
    def on_device(self, learner: StageLearner, reason: str) -> Iterator[None]:
        """Does nothing: the learner is there."""
        del learner, reason
        yield

    def show_life(self) -> None:
        """Does nothing."""


class SharedDevice:
    """The turns of a rank that shares its device with the engine.

    Between turns the learner's weights, gradients and optimizer are in the host's memory. The
    kernel's lock is what excludes the engine; the synchronizer is told, and tells the explorer to
    let the engine sleep.

        turns = SharedDevice(path, synchronizer=client, stop=stop, waits=waits, silence_seconds=60)
        learner = turns.build(make_learner)
        with turns.on_device(learner, "to train step 3"):
            learner.train_step(batch, rate)
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronizer: TrainerSynchronizerClient,
        stop: threading.Event,
        waits: WaitReporter,
        silence_seconds: float,
    ) -> None:
        self._path = path
        self._lock = DeviceLock(path)
        self._synchronizer = synchronizer
        self._stop = stop
        self._waits = waits
        self._silence_seconds = silence_seconds
        self._showed_life_at = 0.0
        self._may_use_device = False
        """True until the learner has left the device; after an error in that it never does."""
        self._reporter = ThreadPoolExecutor(1, "device-turns")
        self._reports: list[Future[None]] = []

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Builds a learner on the device, and has it leave again."""
        with self._hold("to load the model"):
            self._may_use_device = True
            learner = make()
            self._leave(learner)
        return learner

    @contextmanager
    def on_device(self, learner: StageLearner, reason: str) -> Iterator[None]:
        """Waits for the device, moves the learner there, and both back at the end.

        Raises: StopRequested if told to stop meanwhile, RunFailed if a holder that shows no sign of
        life cannot be ended.
        """
        with self._hold(reason):
            self._may_use_device = True
            try:
                learner.enter_device()
                yield
            finally:
                self._leave(learner)

    def _leave(self, learner: StageLearner) -> None:
        learner.leave_device()
        self._may_use_device = False

    def show_life(self) -> None:
        """Shows that the work goes on, so that a waiting explorer does not take it for a hang."""
        now = time.monotonic()
        if self._lock.is_held and now - self._showed_life_at >= LIFE_SECONDS:
            self._showed_life_at = now
            self._lock.show_life()

    @contextmanager
    def _hold(self, reason: str) -> Iterator[None]:
        """Holds the lock. After an error it goes unreported: the next holder reports itself.

        It is kept where the learner could not leave the device: it goes with this process then,
        which such an error ends, as the memory on the device does.
        """
        holder = Holder.of_this_process(ROLE, reason)
        if not self._lock.try_take(holder):
            self._report(RankTurnState.WANTED, holder)
            self._wait_and_take(holder)
        self._report(RankTurnState.HELD, holder)
        try:
            yield
        finally:
            if not self._may_use_device:
                self._lock.release()
        self._report(RankTurnState.RELEASED, holder)

    def _report(self, state: RankTurnState, holder: Holder) -> None:
        """Tells the synchronizer, in order and meanwhile; raises what an earlier report did."""
        self._raise_if_unheard()
        call = partial(self._synchronizer.record_turn, state, holder.process, holder.reason)
        self._reports.append(self._reporter.submit(call))

    def _raise_if_unheard(self) -> None:
        for report in self._reports:
            if report.done():
                report.result()
        self._reports = [report for report in self._reports if not report.done()]

    def close(self) -> None:
        """Waits until the synchronizer knows; calls under way end with their channel."""
        self._reporter.shutdown(wait=True)

    def _wait_and_take(self, holder: Holder) -> None:
        watch = HolderWatch(self._path, silence_seconds=self._silence_seconds)
        begun = looked = time.monotonic()
        try:
            while not self._lock.try_take(holder):
                self._raise_if_unheard()
                if self._stop.wait(POLL_SECONDS):
                    raise StopRequested
                now = time.monotonic()
                if now - looked >= SHOWN_AFTER_SECONDS:
                    looked = now
                    self._report_wait(holder.reason)
                    watch.end_silent_holder()
        finally:
            self._waits.clear(WAIT_NAME)
        logger.debug("took the device", extra={"seconds": round(time.monotonic() - begun, 3)})

    def _report_wait(self, reason: str) -> None:
        waits_for, sentence = describe_wait(self._path, reason)
        self._waits.set(WAIT_NAME, waits_for=waits_for, reason=sentence)
