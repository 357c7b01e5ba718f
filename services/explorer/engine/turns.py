"""The engine's turns on a device that it shares with the trainer."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.explorer.engine.interface import DeviceRequest, Engine, EngineDied, SleepingEngine
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.engine.work_clock import WorkClock
from services.explorer.types import EngineTurnState
from trinity.runtime.device_lock import (
    POLL_SECONDS,
    DeviceLock,
    Holder,
    HolderWatch,
    WantedDevice,
    describe_wait,
    read_holder,
)
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import deadline

logger = logging.getLogger(__name__)

ROLE = "explorer"
WAIT_NAME = "device"
REQUEST_SECONDS = 1.0
"""Time that the engine's process waits for the lock at a time; then the holder is looked at."""
LIFE_SECONDS = 1.0
WITHOUT_WEIGHTS = 2
"""The level of sleep after which an engine has no weights."""
TO_START = "to start the engine"
TO_ROLL_OUT = "to roll out"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """The lock, the level of sleep and the limits of an engine's turns."""

    path: Path
    """File of the device's lock."""
    sleep_level: int
    keeps_runs: bool = False
    """True if runs may be unfinished when the trainer's turn comes; they go on after it."""
    silence_seconds: float
    """Time without a sign of life after which a holder is killed, and in which an engine must fall
    asleep or wake up."""


class EngineSharedDevice:
    """The turns of an engine that shares its device with a rank of the trainer.

    The kernel's lock excludes the two. It is held by the engine's own process, which has the
    memory, and by this one while it starts an engine. The trainer's requests come from the
    synchronizer. The state of this side is reported there; its own requests use a second lock file.

        async with turns.starting():
            turns.attach(await start(...), loader)
            await turns.give_back()
        ...
        await turns.take()      # the engine generates
        await turns.give_back()
    """

    def __init__(
        self,
        settings: TurnSettings,
        *,
        is_wanted: Callable[[], bool],
        record: Callable[[EngineTurnState, str, str], Awaitable[None]],
        waits: WaitRegistry,
    ) -> None:
        self._settings = settings
        self._is_wanted = is_wanted
        self._record = record
        self._waits = waits
        self._lock = DeviceLock(settings.path)
        self._wish = WantedDevice(settings.path)
        self._engine: SleepingEngine | None = None
        self._loader: WeightLoader | None = None
        self._beats: asyncio.Task[None] | None = None
        self._reports: asyncio.Task[None] | None = None
        self.keeps_runs = settings.keeps_runs
        self.clock = WorkClock()
        self.has_device = False

    @property
    def must_give_back(self) -> bool:
        """True if the trainer waits for the device."""
        return self._is_wanted()

    def attach(self, engine: Engine, loader: WeightLoader) -> None:
        """Sets the engine, which sleeps or has just started."""
        assert isinstance(engine, SleepingEngine), f"{engine} does not sleep"
        self._engine, self._loader = engine, loader

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Waits for the device and holds it in this process until the block ends."""
        await self._await_device(TO_START, self._try_here)
        try:
            yield
        finally:
            self._end_turn()
            self._lock.release()
        self._report(EngineTurnState.RELEASED, TO_START)

    async def take(self) -> None:
        """Waits for the device, and wakes the engine.

        Raises: EngineDied if the engine does not wake up in time, RunFailed if a holder that shows
        no sign of life cannot be ended.
        """
        if self.has_device:
            return
        await self._await_device(TO_ROLL_OUT, self._try_in_engine)
        self.clock.go_on()

    async def give_back(self, *, with_runs: bool = False) -> None:
        """Has the engine sleep, in whose process the lock is let go.

        Runs that are unfinished go on when it wakes up, with the same weights. Their time stands
        still.

        Raises: EngineDied if it does not fall asleep in time.
        """
        engine, loader = self._engine, self._loader
        assert engine is not None and loader is not None
        if with_runs:
            assert self._settings.sleep_level < WITHOUT_WEIGHTS
            logger.debug("the engine sleeps with unfinished runs")
            self.clock.stop()
        if self._settings.sleep_level >= WITHOUT_WEIGHTS:
            loader.forget_content()
        error = EngineDied(
            f"the engine did not fall asleep in {self._settings.silence_seconds:g} s"
        )
        try:
            async with deadline(self._settings.silence_seconds, error):
                await engine.sleep(self._settings.sleep_level, keeps_requests=with_runs)
        except Exception:
            self.has_device = False  # its process is given up
            raise
        self.has_device = False
        self._end_turn()
        if not self._lock.is_held:  # else it is the start that ends
            self._report(EngineTurnState.RELEASED, TO_ROLL_OUT)

    async def _await_device(self, reason: str, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Tries until the device is taken, and ends a holder that shows no sign of life.

        Meanwhile it shows its wish, at which a trainer that keeps the device leaves.
        """
        watch = HolderWatch(self._settings.path, silence_seconds=self._settings.silence_seconds)
        has_waited = False
        self._wish.show()
        try:
            while not await attempt():
                self._raise_if_unheard()
                self._wish.show()
                if not has_waited:
                    self._report(EngineTurnState.WANTED, reason)
                    has_waited = True
                self._show_wait(reason)
                await asyncio.to_thread(watch.end_silent_holder)
        finally:
            self._wish.withdraw()
            self._waits.clear(WAIT_NAME)
        self._beats = asyncio.create_task(self._show_life())
        self._report(EngineTurnState.HELD, reason)

    async def _try_here(self) -> bool:
        """Tries for a second to take the lock in this process."""
        holder = Holder.of_this_process(ROLE, TO_START)
        loop = asyncio.get_running_loop()
        until = loop.time() + REQUEST_SECONDS
        while not self._lock.try_take(holder):
            if loop.time() >= until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    async def _try_in_engine(self) -> bool:
        """Has the engine's process try for a second."""
        assert self._engine is not None
        request = DeviceRequest(
            path=self._settings.path, reason=TO_ROLL_OUT, seconds=REQUEST_SECONDS
        )
        seconds = self._settings.silence_seconds
        error = EngineDied(f"the engine did not wake up in {seconds:g} s")
        self.has_device = True  # a call that is cancelled goes on in the engine's process
        try:
            async with deadline(seconds, error):
                self.has_device = await self._engine.wake_up(request)
        except Exception:
            self.has_device = False  # its process is given up
            raise
        return self.has_device

    def _report(self, state: EngineTurnState, reason: str) -> None:
        """Tells the synchronizer, in order and meanwhile; the next turn raises what fails."""
        holder = read_holder(self._settings.path)
        process = holder.process if holder is not None and state is EngineTurnState.HELD else ""
        self._reports = asyncio.create_task(self._send(self._reports, state, process, reason))

    async def _send(
        self, before: asyncio.Task[None] | None, state: EngineTurnState, process: str, reason: str
    ) -> None:
        if before is not None:
            await before
        await self._record(state, process, reason)

    def _raise_if_unheard(self) -> None:
        if self._reports is not None and self._reports.done():
            self._reports.result()

    def _show_wait(self, reason: str) -> None:
        waits_for, sentence = describe_wait(self._settings.path, reason)
        self._waits.set(WAIT_NAME, waits_for=waits_for, reason=sentence)

    async def _show_life(self) -> None:
        while True:
            self._lock.show_life()
            await asyncio.sleep(LIFE_SECONDS)

    def _end_turn(self) -> None:
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None
