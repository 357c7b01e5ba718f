"""Warm processes of users' code, and the calls that they answer, several at a time."""

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.explorer.rollout.user_processes import UserProcess
from trinity.runtime.process.memory import available_bytes
from trinity.runtime.process.worker import Message

GROW_SECONDS = 0.2
"""Least wait of a call for a process, after which a further one may be started."""
CALL_SHARE = 0.1
"""Weight of the newest call in the mean of their times."""
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
_NUMBERS = itertools.count()


@dataclass(slots=True, eq=False)
class UserCall:
    """A request that a process answers with one message; several may be sent to it together."""

    request: Message
    place: str = "waited for a process of users' code"
    """Where the call is, or was when it was given up."""
    number: int = field(init=False)
    """Another one each time that it is sent."""
    turn: "asyncio.Future[CallBatch | None]" = field(init=False)
    """The batch whose next answer is this call's; None if it was not begun and is sent again."""

    def wait_for_turn(self) -> None:
        """Begins to wait, for the first time or again."""
        self.number = next(_NUMBERS)
        self.turn = asyncio.get_running_loop().create_future()

    def send_again(self) -> None:
        """Lets the call be sent to another process."""
        if not self.turn.done():
            self.turn.set_result(None)


class CallBatch:
    """Calls that were sent to one process together; answers come in their order.

    The call whose turn it is reads answers up to its own, then passes the turn on. A cancelled call
    keeps its place, and its answer is dropped. Calls carry a deadline by which the process must
    have started them; later ones are sent again. So each call runs once, and a call that never ends
    does not block others. A process that is still busy with a cancelled call is killed once the
    next call has waited for it, or at once if no call is left.
    """

    def __init__(
        self, *, pool: "UserProcessPool", process: UserProcess, calls: Sequence[UserCall]
    ) -> None:
        self._pool = pool
        self._process = process
        self._left = deque(calls)
        """Calls that are awaited; the first one has its turn."""
        self._unanswered = deque(call.number for call in calls)
        self._num_calls = len(calls)
        self._begun = time.monotonic()
        self._begin_by = self._begun + BEGIN_SECONDS

    def send(self) -> None:
        """Writes all requests; it is the first call's turn."""
        first, *others = (call.request | {"number": call.number} for call in self._left)
        later = ({**request, "begin_by": self._begin_by} for request in others)
        self._process.write(first, *later)
        self._left[0].turn.set_result(self)

    async def answer(self, call: UserCall) -> Message | None:
        """Returns the answer to the call whose turn it is; None if it is to be sent again.

        Raises: WorkerFailed.
        """
        call.place = "ran"
        try:
            message = await self._answer_to(call)
        except asyncio.CancelledError:
            try:
                call.place += await self._process.place()
            finally:
                await self.end_turn()
            raise
        except BaseException:
            await self._end()
            raise
        if message is None:
            await self._end()
            return None
        await self.end_turn()
        return None if message.get("is_late") else message

    async def end_turn(self) -> None:
        """Ends the turn of a call that has its answer or is given up."""
        self._left.popleft()
        while self._left and self._left[0].turn.cancelled():
            self._left.popleft()
        if self._left:
            self._left[0].turn.set_result(self)
        elif self._unanswered:
            await self._pool.discard(self._process)
        else:
            seconds = time.monotonic() - self._begun
            self._pool.give_back(self._process, seconds=seconds, num_calls=self._num_calls)

    async def _end(self) -> None:
        """Kills the process; all calls but the one whose turn it is are sent again."""
        _, *others = self._left
        self._left.clear()
        for call in others:
            call.send_again()
        await self._pool.discard(self._process)

    async def _answer_to(self, call: UserCall) -> Message | None:
        """Returns its answer; None if a call before it, which was given up, still runs."""
        while True:
            message = await self._next_message()
            if message is None and self._unanswered[0] != call.number:
                return None
            if message is None:
                self._take_back()
                message = await self._process.read()
            while self._unanswered.popleft() != message["number"]:
                pass
            self._pool.note_run(message["seconds"])
            if message["number"] == call.number:
                return message

    async def _next_message(self) -> Message | None:
        """Returns the next one; None if others wait, and it is not there in time."""
        if len(self._unanswered) == 1:
            return await self._process.read()
        for _ in range(2):  # what arrives at the very end of the first wait is read in the second
            seconds = self._begin_by + ARRIVAL_SECONDS - time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, ARRIVAL_SECONDS / 5)):
                    return await self._process.read()
        return None

    def _take_back(self) -> None:
        """Sends all but the call that runs again."""
        first, *others = self._left
        self._left = deque([first])
        self._process.ignore_answers(list(self._unanswered)[1:])
        self._unanswered = deque([first.number])
        for call in others:
            call.send_again()


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
        self._call_seconds = 0.0
        """Mean over the last calls."""
        self._run_seconds = 0.0
        """The same without the way there and back, which takes long on a busy machine."""
        self._num_runs = 0
        self._last_end = -math.inf
        self._gathered: list[UserCall] = []
        """Calls that the first of them is about to send."""
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
            await self.discard(process)
            raise
        self.give_back(process, seconds=time.monotonic() - begun)

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
        while True:
            batch = await self._turn(call)
            if batch is not None and (message := await batch.answer(call)) is not None:
                return message

    def give_back(self, process: UserProcess, *, seconds: float, num_calls: int = 1) -> None:
        """Takes a process back that has answered all calls, in so many seconds."""
        self._last_end = time.monotonic()
        share = 1 - (1 - CALL_SHARE) ** num_calls
        self._call_seconds += share * (seconds / num_calls - self._call_seconds)
        self._give_back(process)

    def note_run(self, seconds: float) -> None:
        """Takes note of the time that a call took in its process."""
        self._num_runs += 1
        self._run_seconds += CALL_SHARE * (seconds - self._run_seconds)

    async def discard(self, process: UserProcess) -> None:
        """Kills a process that was taken."""
        self._all.discard(process)
        await process.kill()

    async def close(self) -> None:
        """Kills all processes."""
        for process in tuple(self._all):
            self._all.discard(process)
            await process.kill()
        self._idle.clear()

    async def _turn(self, call: UserCall) -> CallBatch | None:
        """Waits until the next answer of a process is this call's; None if it is to be sent again.

        The first of the calls that are gathered sends all.
        """
        call.wait_for_turn()
        calls = self._gathered
        calls.append(call)
        try:
            if calls[0] is call:
                await self._send(calls)
            elif len(calls) >= self._most_gathered:
                self._gathered = []
            return await call.turn
        except BaseException:
            has_turn = call.turn.done() and not call.turn.cancelled()
            if has_turn and (batch := call.turn.result()) is not None:
                await batch.end_turn()
            raise

    async def _send(self, calls: list[UserCall]) -> None:
        """Sends all calls that come until it is time and a process is free."""
        try:
            if self._most_gathered > 1:
                await asyncio.sleep(self._last_sending + GATHER_SECONDS - time.monotonic())
            else:
                self._gathered = []
            process = await self._take()
        except BaseException:
            for other in calls[1:]:
                other.send_again()
            raise
        finally:
            if self._gathered is calls:
                self._gathered = []
        self._last_sending = time.monotonic()
        awaited = [call for call in calls if not call.turn.cancelled()]
        CallBatch(pool=self, process=process, calls=awaited).send()

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
            return await self._wait_or_start(free)
        except BaseException:
            if free.done():
                self._give_back(free.result())
            raise
        finally:
            if free in self._waiting:
                self._waiting.remove(free)

    async def _wait_or_start(self, free: asyncio.Future[UserProcess]) -> UserProcess:
        if self._all or self._num_starting:
            await asyncio.wait({free}, timeout=GROW_SECONDS)
        while not free.done():
            if self._may_grow:
                started = await self._start()
                if not free.done():
                    return started
                self._give_back(started)
            else:
                await asyncio.wait({free}, timeout=GROW_SECONDS)
        return free.result()

    @property
    def _may_grow(self) -> bool:
        has_room = not self._num_starting and len(self._all) < self._max_processes
        is_needed = self._is_stuck or self._queue_seconds > self._start_seconds
        return has_room and is_needed and (not self._all or available_bytes() >= MIN_FREE_BYTES)

    @property
    def _is_stuck(self) -> bool:
        seconds = max(GROW_SECONDS, self._start_seconds)
        return time.monotonic() - self._last_end > seconds

    @property
    def _queue_seconds(self) -> float:
        """Time that the processes will take for the calls that wait, if they are as the last."""
        return len(self._waiting) * self._call_seconds / max(len(self._all), 1)

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
        """Hands a process to the call that has waited longest, or keeps it for the next one."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(process)
                return
        self._idle.append(process)
