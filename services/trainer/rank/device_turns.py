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
from services.trainer.types import RankTurnState, StageLearner
from trinity.runtime.device_lock import (
    POLL_SECONDS,
    DeviceLock,
    Holder,
    HolderWatch,
    describe_wait,
    is_wanted,
)
from trinity.runtime.life import LIFE_SECONDS
from trinity.runtime.retry import StopRequested, WaitReporter

logger = logging.getLogger(__name__)

ROLE = "trainer"
WAIT_NAME = "device"
SHOWN_AFTER_SECONDS = 1.0
GIVE_WAY_SECONDS = 5.0
"""Longest wait for the engine to take the device that it asked for; then the work goes on."""
KEPT = "until it is asked for"


class RankTurns(Protocol):
    """The turns of a rank on its device."""

    @property
    def is_kept(self) -> bool:
        """True if the learner was left on a shared device after its work."""

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Returns the learner that `make` builds on the device."""

    def on_device(self, learner: StageLearner, reason: str) -> AbstractContextManager[None]:
        """Returns a block in which the learner is on the device."""

    def give_back(self, learner: StageLearner) -> None:
        """Has the learner leave the device if it was kept there."""

    def show_life(self) -> None:
        """Shows that the work goes on."""


class OwnDevice:
    """The turns of a rank that does not share its device: they never end."""

    is_kept = False

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Builds it."""
        return make()

    @contextmanager
    def on_device(self, learner: StageLearner, reason: str) -> Iterator[None]:
        """Enters at once: the learner is always on the device."""
        del learner, reason
        yield

    def give_back(self, learner: StageLearner) -> None:
        """Has no effect: the learner stays on the device."""

    def show_life(self) -> None:
        """Has no effect: the device is not shared."""


class SharedDevice:
    """The turns of a rank that shares its device with the engine.

    Between turns the learner's weights, gradients and optimizer are in the host's memory. A lock of
    the kernel excludes the engine; reports to the synchronizer make the explorer put the engine to
    sleep. With `keeps_device` the learner stays there after its work, for stages in which no engine
    waits for it, until another process shows that it wants the device.

        turns = SharedDevice(path, synchronizer=client, stop=stop, waits=waits, silence_seconds=60)
        learner = turns.build(make_learner)
        with turns.on_device(learner, "to train step 3"):
            learner.train_step(batch, rate)
        turns.give_back(learner)
    """

    def __init__(
        self,
        path: Path,
        *,
        synchronizer: TrainerSynchronizerClient,
        stop: threading.Event,
        waits: WaitReporter,
        silence_seconds: float,
        keeps_device: bool = False,
    ) -> None:
        self._path = path
        self._lock = DeviceLock(path)
        self._synchronizer = synchronizer
        self._stop = stop
        self._waits = waits
        self._silence_seconds = silence_seconds
        self._keeps_device = keeps_device
        self.is_kept = False
        self._showed_life_at = 0.0
        self._may_use_device = False
        """True until the learner has left the device; after an error in that it never does."""
        self._reporter = ThreadPoolExecutor(1, "device-turns")
        self._reports: list[Future[None]] = []

    def build(self, make: Callable[[], StageLearner]) -> StageLearner:
        """Builds a learner on the device, and has it leave again.

        After an error parts of it may be there, so the lock goes with this process.
        """
        holder = self._take("to load the model")
        self._may_use_device = True
        learner = make()
        self._leave_and_release(learner)
        self._report(RankTurnState.RELEASED, holder)
        return learner

    @contextmanager
    def on_device(self, learner: StageLearner, reason: str) -> Iterator[None]:
        """Waits for the device and moves the learner there; both back at the end, unless kept.

        After an error the end goes unreported: the next holder reports itself.

        Raises: StopRequested if told to stop meanwhile, RunFailed if a holder that shows no sign of
        life cannot be ended.
        """
        holder = self._take(reason)
        try:
            if not self._may_use_device:  # else it has stayed there
                self._may_use_device = True
                learner.enter_device()
            yield
        except BaseException:
            self._leave_and_release(learner)
            raise
        if self._keeps_device and not is_wanted(self._path):
            self._keep()
        else:
            self._leave_and_release(learner)
            self._report(RankTurnState.RELEASED, holder)

    def give_back(self, learner: StageLearner) -> None:
        """Has the learner leave the device if it was kept there."""
        if self.is_kept:
            self.is_kept = False
            self._leave_and_release(learner)
            self._report(RankTurnState.RELEASED, Holder.of_this_process(ROLE, KEPT))

    def _keep(self) -> None:
        """Leaves the learner on the device, and reports it."""
        self.is_kept = True
        self._show_holder(Holder.of_this_process(ROLE, KEPT))

    def _show_holder(self, holder: Holder) -> None:
        self._lock.describe(holder)
        self._report(RankTurnState.HELD, holder)

    def _leave_and_release(self, learner: StageLearner) -> None:
        """Lets go of the lock, unless the learner cannot leave the device.

        It is kept then: it goes with this process, which such an error ends, as the memory on the
        device does.
        """
        learner.leave_device()
        self._may_use_device = False
        self._lock.release()

    def show_life(self) -> None:
        """Shows that the work goes on, so that a waiting explorer does not take it for a hang."""
        now = time.monotonic()
        if self._lock.is_held and now - self._showed_life_at >= LIFE_SECONDS:
            self._showed_life_at = now
            self._lock.show_life()

    def _take(self, reason: str) -> Holder:
        """Takes the lock, unless it was kept, and reports what for."""
        holder = Holder.of_this_process(ROLE, reason)
        if self.is_kept:
            self._show_holder(holder)
            self.is_kept = False
            return holder
        if self._keeps_device:
            self._give_way()
        if not self._lock.try_take(holder):
            self._report(RankTurnState.WANTED, holder)
            self._wait_and_take(holder)
        self._report(RankTurnState.HELD, holder)
        return holder

    def _give_way(self) -> None:
        """Lets a process that waits go first: between two steps the lock is free too briefly."""
        until = time.monotonic() + GIVE_WAY_SECONDS
        while is_wanted(self._path) and time.monotonic() < until:
            if self._stop.wait(POLL_SECONDS):
                raise StopRequested

    def _report(self, state: RankTurnState, holder: Holder) -> None:
        """Tells the synchronizer, in order and meanwhile; raises the error of an earlier report."""
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
