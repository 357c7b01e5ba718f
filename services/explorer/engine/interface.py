"""The interface of an engine and of its turns; a pool of engines, and a reporter of slow calls."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from services.explorer.engine.work_clock import WorkClock
from trinity.config.schema.explorer import EngineConfig
from trinity.data.vision import VisionTokens
from trinity.errors import TrinityError
from trinity.runtime.json_values import JsonObject
from trinity.runtime.presence import WaitRegistry
from trinity.types import SamplingParams
from trinity.weights.offer import Receivers, ReceiverSlot, next_slot
from trinity.workflows.generation import (
    Generation,
    Generator,
    OnDelta,
    RatedChat,
    Scores,
    rater_of,
)

if TYPE_CHECKING:  # that module imports this one
    from services.explorer.engine.weight_transfer import WeightLoader


class EngineDied(TrinityError):
    """The engine's process is gone: this process must be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """The device that an engine shares, as its process asks for it."""

    path: Path
    """File of the device's lock."""
    reason: str
    seconds: float
    """Time to wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpan:
    """The place of this host in an engine over several, and where all workers meet."""

    num_hosts: int
    host: int
    address: str
    """Address of this host in the engine's network."""
    meeting_address: str
    meeting_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedRow:
    """A chat as a model that scores reads it, and where it is scored."""

    token_ids: list[int]
    places: list[int]
    """Indices of the tokens after which there is a score."""
    is_whole: bool
    """True for one score of all."""


EncodeRated = Callable[[RatedChat], RatedRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A model and how to run it."""

    model_path: str
    max_model_len: int
    end_token_ids: tuple[int, ...]
    """Tokens that end a response."""
    rollout: EngineConfig
    number: int = 0
    """Index of this engine among the `engine_num` engines of the model."""
    first_gpu: int = 0
    """Index of the first GPU of the model's engines among the GPUs of this process."""
    num_process_gpus: int | None = None
    """Number of GPUs for the engines of all models; None with a single model."""
    structured_output: bool = False
    """True if responses may be constrained by a JSON Schema, which needs the tokenizer."""
    rope: JsonObject | None = None
    """Keys of the model's config.json with position embeddings, if the user changed these."""
    records_experts: bool = False
    """True if responses come with the experts that were chosen for each token."""
    trusts_code: bool = False
    """True if the Python code that comes with the model is run."""
    sleeps: bool = False
    """True if it gives its device to the trainer by turns."""
    role: str = "the rollout engine"
    """Name of the engine in messages."""
    encode_rated: EncodeRated | None = None
    """Encodes the chats of a model that scores; None for one that generates."""
    score_token_ids: tuple[int, ...] = ()
    """Tokens whose logits are the scores of a model without a head for them."""
    vision: VisionTokens | None = None
    """What a model that reads images says of them."""
    span: EngineSpan | None = None
    """The place of this host, if the engine is on several."""


class Engine(Generator, Protocol):
    """A model in memory that generates tokens and accepts new weights.

    `load_weights` is called only while no tokens are being generated.
    """

    async def load_weights(self, directory: Path) -> None:
        """Replaces the weights with those of a Hugging Face directory of the same architecture."""
        ...

    @property
    def receivers(self) -> Receivers:
        """The engine's processes that would receive weights."""
        ...

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Replaces the weights with those sent from a trainer's memory.

        Returns the reason why they must not be used and others must be loaded; empty on success.
        Like `load_weights`, it is called only while no tokens are being generated.
        """
        ...

    async def check(self) -> None:
        """Raises EngineDied if the engine has died."""
        ...

    async def close(self) -> None:
        """Releases the engine's resources."""
        ...


@runtime_checkable
class SleepingEngine(Engine, Protocol):
    """An engine that gives its device to the trainer by turns."""

    async def sleep(self, level: int, *, keeps_requests: bool = False) -> None:
        """Frees the memory of its device and lets go of the device's lock.

        Level 1 keeps the weights in the host's memory; after level 2 weights must be loaded before
        it generates. It is called only while no tokens are being generated, unless it keeps
        requests: their tokens are kept, and they continue when the engine wakes up.
        """
        ...

    async def wake_up(self, device: DeviceRequest) -> bool:
        """Takes the device's lock in the process that uses the device, then its memory.

        Returns False, and sleeps on, if another process has the device for all that time.
        """
        ...


class EngineTurns(Protocol):
    """The turns of the policy's engine on its device."""

    @property
    def has_device(self) -> bool:
        """True if the engine is awake, or may be after a call that was cancelled."""

    @property
    def must_give_back(self) -> bool:
        """True if the trainer waits for the device."""

    @property
    def keeps_runs(self) -> bool:
        """True if runs may be unfinished when the trainer's turn comes."""

    @property
    def clock(self) -> WorkClock:
        """The clock of runs, which stands still while they are kept."""

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Returns a block in which an engine may start."""

    def attach(self, engine: Engine, loader: "WeightLoader") -> None:
        """Sets the engine, which sleeps or has just started."""

    async def take(self) -> None:
        """Waits for the device and wakes the engine. Raises: EngineDied."""

    async def give_back(self, *, with_runs: bool = False) -> None:
        """Puts the engine to sleep, with or without unfinished runs, and releases the device.

        Raises: EngineDied.
        """


class EngineOwnDevice:
    """The turns of an engine with an exclusive device: they never end."""

    has_device = False
    must_give_back = False
    keeps_runs = False

    def __init__(self) -> None:
        self.clock = WorkClock()

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Starts without a lock."""
        yield

    def attach(self, engine: Engine, loader: "WeightLoader") -> None:
        """Keeps no reference: the engine is never put to sleep."""

    async def take(self) -> None:
        """Returns at once: the engine always has the device."""

    async def give_back(self, *, with_runs: bool = False) -> None:
        """Keeps the device: no other process waits for it."""


SHOWN_AFTER_SECONDS = 2.0


class FixedWeights:
    """The part of an `Engine` that all have whose weights do not change."""

    async def load_weights(self, directory: Path) -> None:
        """Never called."""
        raise AssertionError(f"the engine keeps its weights, and takes none of {directory}")

    @property
    def receivers(self) -> Receivers:
        """No process receives weights."""
        return Receivers(count=0, have_gpu=False)

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Never called."""
        raise AssertionError(f"the engine keeps its weights, and takes none for {slot}")


class EnginePool:
    """Sends each call to the engine with the fewest calls, in turn among equals.

    The choice does not affect the response, which follows from weights, prompt and seed. All
    engines have the same weights whenever no load is in progress. If one dies, the pool fails: the
    process would have less capacity than its leases were taken for.
    """

    def __init__(self, engines: Sequence[Engine], *, loads_in_turn: bool = False) -> None:
        self._engines = list(engines)
        self._loads_in_turn = loads_in_turn
        self._num_calls = [0] * len(engines)
        self._last = -1

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt on the least busy engine."""
        with self._checked_out() as engine:
            return await engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores tokens on the least busy engine."""
        with self._checked_out() as engine:
            return await engine.score(token_ids, num_likeliest=num_likeliest)

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Scores a chat on the least busy engine."""
        with self._checked_out() as engine:
            return await rater_of(engine).rate(chat)

    async def load_weights(self, directory: Path) -> None:
        """Loads the same weights into all engines; in turn where the others go on meanwhile."""
        if self._loads_in_turn:
            for engine in self._engines:
                await engine.load_weights(directory)
            return
        async with asyncio.TaskGroup() as tasks:
            for engine in self._engines:
                tasks.create_task(engine.load_weights(directory))

    @property
    def receivers(self) -> Receivers:
        """The receivers of all engines, in the engines' order; all are of one kind."""
        parts = [engine.receivers for engine in self._engines]
        return Receivers(
            count=sum(part.count for part in parts), have_gpu=all(part.have_gpu for part in parts)
        )

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Receives in all engines at once, as one group; a failure in one is the result for all."""
        async with asyncio.TaskGroup() as tasks:
            receiving = []
            for engine in self._engines:
                receiving.append(tasks.create_task(engine.receive_weights(slot)))
                slot = next_slot(slot, engine.receivers.count)
        return next((task.result() for task in receiving if task.result()), "")

    async def check(self) -> None:
        """Raises EngineDied if any engine has died."""
        for engine in self._engines:
            await engine.check()

    async def close(self) -> None:
        """Closes all engines."""
        await asyncio.gather(*(engine.close() for engine in self._engines))

    @contextmanager
    def _checked_out(self) -> Iterator[Engine]:
        """Yields the least busy engine and counts a call on it until the block ends."""
        chosen = self._least_busy()
        self._num_calls[chosen] += 1
        try:
            yield self._engines[chosen]
        finally:
            self._num_calls[chosen] -= 1

    def _least_busy(self) -> int:
        """Returns the index of the next engine in turn among those with the fewest calls."""
        count = len(self._engines)
        in_turn = [(self._last + 1 + i) % count for i in range(count)]
        self._last = min(in_turn, key=self._num_calls.__getitem__)
        return self._last


class SlowCallReporter:
    """Wraps an engine and shows a wait for slow answers, so that `trinity why` names the model.

    The policy's engine needs no wrapper: its slow calls are part of runs, which are shown.
    """

    def __init__(self, engine: Engine, *, name: str, waits: WaitRegistry) -> None:
        self._engine = engine
        self._name = name
        self._waits = waits
        self._open: dict[object, float] = {}
        """Start times of the calls in progress, in order."""
        self._timer: asyncio.TimerHandle | None = None

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Continues the prompt."""
        with self._track_call():
            return await self._engine.generate(
                prompt_token_ids, sampling, min_tokens=min_tokens, on_delta=on_delta
            )

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        """Scores given tokens."""
        with self._track_call():
            return await self._engine.score(token_ids, num_likeliest=num_likeliest)

    async def rate(self, chat: RatedChat) -> list[list[float]]:
        """Scores a chat."""
        with self._track_call():
            return await rater_of(self._engine).rate(chat)

    async def load_weights(self, directory: Path) -> None:
        """Never called: the weights do not change."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {directory}")

    @property
    def receivers(self) -> Receivers:
        """The engine's receivers, which are never used."""
        return self._engine.receivers

    async def receive_weights(self, slot: ReceiverSlot) -> str:
        """Never called: the weights do not change."""
        raise AssertionError(f"{self._name} takes no new weights, not those of {slot}")

    async def check(self) -> None:
        """Raises EngineDied if the engine has died."""
        await self._engine.check()

    async def close(self) -> None:
        """Releases the engine's resources."""
        await self._engine.close()

    @contextmanager
    def _track_call(self) -> Iterator[None]:
        """Tracks a call until the block ends."""
        token = object()
        self._open[token] = time.monotonic()
        self._schedule_report()
        try:
            yield
        finally:
            del self._open[token]
            self._schedule_report()

    def _schedule_report(self) -> None:
        """Schedules a look at the oldest call; one timer at a time is enough."""
        oldest = next(iter(self._open.values()), None)
        waited = 0.0 if oldest is None else time.monotonic() - oldest
        if oldest is None or waited < SHOWN_AFTER_SECONDS:
            self._waits.clear(self._name)
        if oldest is None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(SHOWN_AFTER_SECONDS - waited, 0.0), self._report)

    def _report(self) -> None:
        self._timer = None
        oldest = next(iter(self._open.values()), None)
        if oldest is None:
            return
        waited = time.monotonic() - oldest
        if waited < SHOWN_AFTER_SECONDS:
            self._schedule_report()
            return
        self._waits.set(
            self._name,
            waits_for="engine",
            reason=f"to answer as {self._name}",
            waited_seconds=waited,
        )
