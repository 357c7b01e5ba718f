"""Workflows that run on the event loop or in a thread, and a watchdog of the loop."""

import asyncio
import contextlib
import importlib
import logging
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import ClassVar, Self

import trinity
from services.explorer.rollout.isolated_workflows import IsolatedReward
from trinity.rewards.reward import (
    REWARD_POOL,
    BoundReward,
    OnBadReward,
    RewardFn,
    RewardSource,
)
from trinity.types import Experience, JsonObject
from trinity.user_code.values import PartRef
from trinity.workflows.hosting import HostedRuns, NamedReward
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

logger = logging.getLogger(__name__)
BLOCKED_SECONDS = 5.0
"""Time that one step of a workflow may hold the loop."""
IMPORT_SECONDS = 60.0
"""The same for a step that imports: libraries take long, and half of an import is no use."""
TICK_SECONDS = 0.25
SIGNAL, TIMER_SIGNAL = signal.SIGUSR2, signal.SIGVTALRM
_NOT_USERS = (
    str(Path(trinity.__file__).parent),
    str(Path(__file__).parents[1]),
    sysconfig.get_paths()["stdlib"],
)
_IMPORT_FILES = ("<frozen importlib", str(Path(importlib.__file__).parent))
Made = Mapping[int, Sequence[Experience]]
"""Experiences by run."""


@dataclass(slots=True)
class RunOnLoop:
    """A run whose steps are on the event loop; `blocked` is the sentence about one that held it."""

    blocked: str = ""


class LoopBlocked(BaseException):
    """A step of a workflow held the event loop for too long.

    It is not an Exception, so that a workflow cannot catch it with `except Exception`.
    """


_CURRENT: ContextVar[RunOnLoop | None] = ContextVar("run_on_loop", default=None)


@contextlib.contextmanager
def watched_run(run: RunOnLoop) -> Iterator[None]:
    """Marks the steps of the block, and of tasks it starts, as those of a run."""
    token = _CURRENT.set(run)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class LoopWatchdog:
    """Interrupts a step of a workflow that blocks the event loop of the main thread.

    A thread pings the loop. Without an answer, it sends the main thread a signal, whose handler
    raises LoopBlocked in the step that runs, also in `time.sleep` and in a request that waits. A
    regular expression keeps the thread from running, but looks for signals: for such code the
    kernel sends one for each second of processor time. Time in which the machine does not run the
    loop's thread is not counted.

        async with LoopWatchdog():
            ...
    """

    def __init__(
        self, *, blocked_seconds: float = BLOCKED_SECONDS, import_seconds: float = IMPORT_SECONDS
    ) -> None:
        self._blocked_seconds = blocked_seconds
        self._import_seconds = import_seconds
        self._held_seconds = 0.0
        self._processor_at_beat = time.thread_time()
        self._ended = threading.Event()
        self._has_reported = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._owner = threading.current_thread()
        self._owner_in_kernel = threading.get_native_id()  # the thread's own is of before a fork
        self._can_interrupt = self._owner is threading.main_thread()
        if self._can_interrupt:
            self._before = {
                SIGNAL: signal.signal(SIGNAL, self._on_signal),
                TIMER_SIGNAL: signal.signal(TIMER_SIGNAL, self._on_processor_time),
            }
            signal.siginterrupt(TIMER_SIGNAL, False)  # system calls of libraries go on after it
            interval = min(1.0, self._blocked_seconds / 2)
            signal.setitimer(signal.ITIMER_VIRTUAL, interval, interval)
        self._thread = threading.Thread(target=self._watch, name="loop-watchdog", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        await asyncio.to_thread(self._thread.join)
        if self._can_interrupt:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _watch(self) -> None:
        processor = _processor_seconds(self._owner)
        while not self._ended.wait(TICK_SECONDS):
            before, processor = processor, _processor_seconds(self._owner)
            self._held_seconds += (
                processor - before if _is_runnable(self._owner_in_kernel) else TICK_SECONDS
            )
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._beat)
            if self._held_seconds > self._blocked_seconds:
                self._on_blocked()

    def _beat(self) -> None:
        self._held_seconds, self._has_reported = 0.0, False
        self._processor_at_beat = time.thread_time()

    def _on_blocked(self) -> None:
        frame = sys._current_frames().get(self._owner.ident or 0)  # noqa: SLF001  # no public name
        if frame is None or self._held_seconds <= self._limit_at(frame):
            return
        if not self._has_reported:
            self._has_reported = True
            logger.warning("the event loop is blocked", extra={"reason": place_of_frame(frame)})
        if self._can_interrupt and self._owner.ident is not None:
            signal.pthread_kill(self._owner.ident, SIGNAL)

    def _limit_at(self, frame: FrameType) -> float:
        files = (entry.filename for entry in traceback.extract_stack(frame))
        imports = any(file.startswith(_IMPORT_FILES) for file in files)
        return self._import_seconds if imports else self._blocked_seconds

    def _on_signal(self, _: int, frame: FrameType | None) -> None:
        self._interrupt(self._held_seconds, frame)

    def _on_processor_time(self, _: int, frame: FrameType | None) -> None:
        self._interrupt(time.thread_time() - self._processor_at_beat, frame)

    def _interrupt(self, held_seconds: float, frame: FrameType | None) -> None:
        """Raises LoopBlocked if a workflow is running and its step is over the limit."""
        run = _CURRENT.get()
        if run is None or frame is None or held_seconds <= self._limit_at(frame):
            return
        self._beat()
        run.blocked = (
            f"it blocked the explorer's event loop for {held_seconds:.1f} s at "
            f"{place_of_frame(frame)}: await what waits, or leave out `shares_loop`: "
            "then it has a process"
        )
        raise LoopBlocked(run.blocked)


def place_of_frame(frame: FrameType) -> str:
    """Returns file and line of the innermost frame in a user's file, else of the innermost."""
    entries = traceback.extract_stack(frame)
    own = [entry for entry in entries if not entry.filename.startswith((*_NOT_USERS, "<"))]
    shown = (own or entries)[-1]
    return f"{shown.filename}, line {shown.lineno}"


def _processor_seconds(thread: threading.Thread) -> float:
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def _is_runnable(thread: int) -> bool:
    """Returns true if the thread with the kernel's number `thread` computes or could.

    It could if the machine had a processor for it.
    """
    stat = Path(f"/proc/self/task/{thread}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "R"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """A reward to be constructed later."""

    source: RewardSource
    args: JsonObject
    name: str
    on_failure: OnBadReward = "fail"
    isolated: IsolatedReward | None = None
    """The reward as it is called in a process that can be killed; None for one that runs here."""

    def named(self, models: Sequence[ModelWrapper]) -> NamedReward:
        """Returns the reward for a workflow that makes it by itself."""
        return NamedReward(
            source=self.source,
            args=self.args,
            name=self.name,
            on_failure=self.on_failure,
            models=models,
        )

    def to_json(self) -> JsonObject:
        """Returns the reward for a workflow in another process."""
        reference = PartRef.of(self.name, self.source).to_json()
        return {"part": reference, "args": self.args, "on_failure": self.on_failure}

    def create_reward(self, models: Sequence[ModelWrapper] = ()) -> BoundReward:
        """Constructs the reward; raises UserError for bad arguments, or its constructor's error."""
        return BoundReward(
            self.source,
            self.args,
            self.name,
            on_failure=self.on_failure,
            elsewhere=self.isolated,
            models=models,
        )

    @property
    def may_block(self) -> bool:
        """True if the constructor may take long: that of a class may, unless it says otherwise."""
        source = self.source
        if not isinstance(source, type) or self.isolated is not None:
            return False
        return source.in_thread if issubclass(source, RewardFn) else True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpec:
    """A workflow that shares the event loop; constructors of users may take as long as a run."""

    workflow_class: type[Workflow]
    task: Task
    """The task without its reward."""
    reward: RewardSpec | None
    model: ModelWrapper
    auxiliary_models: Sequence[ModelWrapper]
    run: int
    made_rewards: list[BoundReward] = field(default_factory=list)

    @property
    def called_reward(self) -> bool | None:
        """True if it called its reward."""
        return any(own.was_called for own in self.made_rewards) if self.reward else None

    @property
    def name(self) -> str:
        """Name of the workflow's class."""
        return self.workflow_class.__name__

    @property
    def models(self) -> Sequence[ModelWrapper]:
        """The models to close when it is over."""
        return (self.model, *self.auxiliary_models)

    @property
    def stuck_at(self) -> str:
        """Describes the stuck call of a reward in another process; otherwise empty."""
        isolated = self.reward.isolated if self.reward is not None else None
        return isolated.stuck_at if isolated is not None else ""

    async def run_on_loop(self) -> Made:
        """Makes it on the event loop and runs it there."""
        workflow = await self.create_on_loop()
        return {self.run: await workflow.run_async()}

    async def create_on_loop(self) -> Workflow:
        """Constructs the workflow here, and a reward that may take long in a reward thread."""
        if self.reward is None:
            return self._workflow(None)
        create = partial(self.reward.create_reward, self.auxiliary_models)
        if not self.reward.may_block:
            return self._workflow(create())
        return self._workflow(await REWARD_POOL.run_in_thread(create))

    def _workflow(self, reward: BoundReward | None) -> Workflow:
        if reward is not None:
            self.made_rewards.append(reward)
        task = replace(self.task, make_reward=None if reward is None else lambda: reward)
        if not self.auxiliary_models:  # workflows may leave the argument out
            return self.workflow_class(task=task, model=self.model)
        return self.workflow_class(
            task=task, model=self.model, auxiliary_models=self.auxiliary_models
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedSpec:
    """A workflow that may block, in a thread."""

    hosted: HostedRuns
    stuck_at: ClassVar[str] = ""

    @property
    def called_reward(self) -> bool | None:
        """True if it called its reward."""
        reward = self.hosted.inputs.reward
        return None if reward is None else reward.was_called

    @property
    def name(self) -> str:
        """Name of the workflow's class."""
        return self.hosted.inputs.workflow.__name__

    @property
    def models(self) -> Sequence[ModelWrapper]:
        """The models to close when it is over."""
        return (self.hosted.model, *self.hosted.auxiliary_models)

    def run_in_thread(self) -> Made:
        """Constructs and runs the workflow here; it may block."""
        return self.hosted.make()


WorkflowSpec = LoopSpec | HostedSpec
"""A workflow to be constructed and run later, for one run or several of the same task."""
