"""Warm processes of users' code, and the calls that they answer, several at a time."""

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from services.explorer.rollout.user_processes import UserProcess
from trinity.runtime.process.worker import Message, WorkerFailed

GROW_SECONDS = 0.2
"""Least wait of a call for a process, after which a further one may be started."""
CALL_SHARE = 0.1
"""Weight of the newest time in a mean."""
GATHER_SECONDS = 0.02
"""Least time between two sendings of quick calls: those that come meanwhile are sent together."""
QUICK_SECONDS = 0.005
"""Mean time of calls up to which they are gathered."""
NUM_KNOWN_RUNS = 10
"""Calls after which their mean time says something."""
MAX_GATHERED = 64
BEGIN_SECONDS = 0.1
"""Time for a process to begin with gathered calls; those that it has not begun go to others."""
ARRIVAL_SECONDS = 0.05
"""Time for an answer to arrive; both processes read the same clock."""
MIN_FREE_BYTES = 1024**3
"""Memory that has to be free before a second or later process is started: one that has loaded torch
takes 370 MB."""
CGROUP = Path("/sys/fs/cgroup")
_NUMBERS = itertools.count()


@dataclass(slots=True, eq=False)
class UserCall:
    """A request that a process answers with one message; several may be sent to it together."""

    request: Message
    place: str = "waited for a process of users' code"
    """Where the call is, or was when it was given up."""
    number: int = 0
    """Another one each time that it is sent."""
    answer: asyncio.Future[Message] = field(init=False)
    batch: "CallBatch" = field(init=False)
    context: Context = field(default_factory=copy_context)
    """Lines that its code logs are logged in it."""

    @property
    def is_awaited(self) -> bool:
        """False once it is answered or given up."""
        return not self.answer.done()


class CallBatch:
    """Calls that are sent to one process together; answers come in their order.

    Calls carry a deadline by which the process must have started them; later ones are sent again,
    to another process. So each call runs once, and a call that never ends does not block others. A
    call that is given up keeps its place, and its answer is dropped; the process is killed if it is
    still busy with it at the deadline, or at once if no other call is left.
    """

    def __init__(self, pool: "UserProcessPool") -> None:
        self.calls: deque[UserCall] = deque()
        """Those that the process has not answered, in order."""
        self._pool = pool
        self._process: UserProcess | None = None
        self._begin_by = math.inf
        self._task = asyncio.create_task(self._run())

    async def give_up(self, call: UserCall) -> None:
        """Records where a cancelled call was; ends the process if no other call is left."""
        first = next((each for each in self.calls if each is call or each.is_awaited), None)
        try:
            if first is call and self._process is not None:
                call.place = f"ran{await self._process.place()}"
        finally:
            if not self._is_awaited:
                self._pool.close_batch(self)
                self._task.cancel()
                await asyncio.wait([self._task])

    @property
    def _is_awaited(self) -> bool:
        return any(call.is_awaited for call in self.calls)

    async def _run(self) -> None:
        """Sends the calls and passes on the answers; one that fails takes no other with it."""
        try:
            await self._pool.wait_for_more()
            async with self._pool.lease() as self._process:
                self._send(self._process)
                while self.calls:
                    await self._pass_on_answer(self._process)
        except Exception as error:  # the edge of the process: its call raises it
            failed = self.calls.popleft()
            if failed.is_awaited:
                failed.answer.set_exception(error)
        finally:
            self._pool.close_batch(self)
            self._send_again(self.calls)

    def _send(self, process: UserProcess) -> None:
        self._pool.note_sending(self)
        self.calls = deque(call for call in self.calls if call.is_awaited)
        self._begin_by = time.monotonic() + BEGIN_SECONDS
        deadline: Message = {}
        for call in self.calls:
            call.number = next(_NUMBERS)
            process.write({**call.request, "number": call.number, **deadline})
            deadline = {"begin_by": self._begin_by}

    async def _pass_on_answer(self, process: UserProcess) -> None:
        if not self._is_awaited:
            raise WorkerFailed("it runs calls that were given up")
        message = await self._next_message(process)
        if message is None:
            call, *others = self.calls
            self.calls = deque([call])
            process.ignore_answers(other.number for other in others)
            self._send_again(others)
            return
        call = self.calls.popleft()
        self._pool.note_run(message["seconds"])
        if message.get("is_late"):
            self._send_again([call])
        elif call.is_awaited:
            call.answer.set_result(message)

    async def _next_message(self, process: UserProcess) -> Message | None:
        """Returns the next one; None if others wait, and it is not there in time."""
        self.calls[0].place = "ran"
        context = self.calls[0].context
        if len(self.calls) == 1:
            return await process.read(context)
        for _ in range(2):  # what arrives at the very end of the first wait is read in the second
            seconds = self._begin_by + ARRIVAL_SECONDS - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, ARRIVAL_SECONDS / 5)):
                    return await process.read(context)
        return None

    def _send_again(self, calls: Iterable[UserCall]) -> None:
        for call in calls:
            if call.is_awaited:
                self._pool.add(call)


class UserProcessPool:
    """Warm processes for users' code; the most recently used free one is taken first.

    Another process is started if calls wait and no call has ended for as long as a start takes, or
    if the waiting calls would take longer than that. Quick rewards thus need few processes, even in
    bursts and on a busy machine; slow ones get up to `max_processes` while there is memory for
    them. A process with a cancelled call is killed.

        answer = await pool.answer(UserCall(request))
        async with pool.lease() as process:  # for more than one message
            process.write(request)
            answer = await process.read()

    While calls are quick, those that arrive within a moment are sent to one process together:
    otherwise each would wake two processes, at a higher cost than a quick reward.
    """

    def __init__(self, *, max_processes: int) -> None:
        self._max_processes = max_processes
        self._idle: list[UserProcess] = []
        self._all: set[UserProcess] = set()
        self._parts: list[Message] = []
        self._waiting: deque[asyncio.Future[UserProcess]] = deque()
        self._num_starting = 0
        self._start_seconds = 0.0
        self._lease_seconds = 0.0
        """Mean over the last leases."""
        self._run_seconds = 0.0
        """Mean over the last calls in their process, without the way there and back."""
        self._num_runs = 0
        self._last_end = -math.inf
        self._open_batch: CallBatch | None = None
        """Takes further calls, until it is sent or full."""
        self._last_sending = -math.inf

    @property
    def num_processes(self) -> int:
        """The number of processes that run."""
        return len(self._all)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[UserProcess]:
        """Yields a process; it is killed if the block ends with an error.

        Raises: WorkerFailed when it cannot be started.
        """
        process = await self._take()
        begun = time.monotonic()
        try:
            yield process
        except BaseException:
            self._all.discard(process)
            await process.kill()
            raise
        self._last_end = time.monotonic()
        self._lease_seconds += CALL_SHARE * (self._last_end - begun - self._lease_seconds)
        self._give_back(process)

    async def load(self, part: Message) -> Message:
        """Has a process load a reward or a workflow, and each later process when it starts.

        Returns the first process's answer. Raises: WorkerFailed.
        """
        async with self.lease() as process:
            return await self.load_into(process, part)

    async def load_into(self, process: UserProcess, part: Message) -> Message:
        """Has a leased process load a part unless it has it; the same as `load` otherwise.

        An import is then part of a start: as part of a call it would seem that calls are slow.
        """
        answer = await process.load(part)
        if part not in self._parts:
            self._parts.append(part)
        return answer

    async def answer(self, call: UserCall) -> Message:
        """Returns the answer to a call; if it is given up, its process ends and no other call does.

        Raises: WorkerFailed.
        """
        call.answer = asyncio.get_running_loop().create_future()
        self.add(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            await call.batch.give_up(call)
            raise

    def add(self, call: UserCall) -> None:
        """Adds a call to the batch that takes calls, or to a new one."""
        call.batch = batch = self._open_batch or CallBatch(self)
        batch.calls.append(call)
        self._open_batch = batch if len(batch.calls) < self._most_gathered else None

    def close_batch(self, batch: CallBatch) -> None:
        """Adds no further calls to a batch."""
        if self._open_batch is batch:
            self._open_batch = None

    def note_sending(self, batch: CallBatch) -> None:
        """Adds no further calls to a batch, which is sent now."""
        self.close_batch(batch)
        self._last_sending = time.monotonic()

    async def wait_for_more(self) -> None:
        """Waits for calls that are sent together with those that are there."""
        seconds = self._last_sending + GATHER_SECONDS - time.monotonic()
        if self._most_gathered > 1 and seconds > 0:
            await asyncio.sleep(seconds)

    def note_run(self, seconds: float) -> None:
        """Takes note of the time that a call took in its process."""
        self._num_runs += 1
        self._run_seconds += CALL_SHARE * (seconds - self._run_seconds)

    async def close(self) -> None:
        """Kills all processes."""
        for process in tuple(self._all):
            self._all.discard(process)
            await process.kill()
        self._idle.clear()

    @property
    def _most_gathered(self) -> int:
        """The number of calls that a process begins with in time, if they are as the last."""
        if self._num_runs < NUM_KNOWN_RUNS or self._run_seconds > QUICK_SECONDS:
            return 1
        return min(MAX_GATHERED, int(BEGIN_SECONDS / 2 / max(self._run_seconds, 1e-6)))

    async def _take(self) -> UserProcess:
        if self._idle:
            return self._idle.pop()
        free: asyncio.Future[UserProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            if self._all or self._num_starting:
                await asyncio.wait({free}, timeout=GROW_SECONDS)
            while not free.done():
                if self._may_grow:
                    self._give_back(await self._start())
                else:
                    await asyncio.wait({free}, timeout=GROW_SECONDS)
            return free.result()
        except BaseException:
            if free.done():
                self._give_back(free.result())
            raise
        finally:
            if free in self._waiting:
                self._waiting.remove(free)

    @property
    def _may_grow(self) -> bool:
        start_seconds, num_running = self._start_seconds, len(self._all)
        idle_seconds = time.monotonic() - self._last_end
        queue_seconds = len(self._waiting) * self._lease_seconds / max(num_running, 1)
        is_stuck = idle_seconds > max(GROW_SECONDS, start_seconds)
        has_room = not self._num_starting and num_running < self._max_processes
        is_needed = is_stuck or queue_seconds > start_seconds
        return has_room and is_needed and (not num_running or available_bytes() >= MIN_FREE_BYTES)

    async def _start(self) -> UserProcess:
        self._num_starting += 1
        begun = time.monotonic()
        try:
            process = await UserProcess.start(self._parts)
        finally:
            self._num_starting -= 1
        self._start_seconds = time.monotonic() - begun
        self._all.add(process)
        return process

    def _give_back(self, process: UserProcess) -> None:
        """Hands a process to the lease that has waited longest, or keeps it for the next one."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(process)
                return
        self._idle.append(process)


def available_bytes() -> int:
    """Returns the free memory of the machine, or that of its container where it is less."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, KeyError, ValueError):  # no container, or without a limit
        limit = int((CGROUP / "memory.max").read_text())
        figures = dict(map(str.split, (CGROUP / "memory.stat").read_text().splitlines()))
        used = int((CGROUP / "memory.current").read_text()) - int(figures["inactive_file"])
        free = min(free, limit - used)
    return free
