"""Registry of what a process waits for, reported to other processes."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.telemetry.waits import observe_waits

_SHORTEST_DEADLINE_SECONDS = 0.001


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Waiting:
    """An active wait; compared by identity, so equal texts may occur twice."""

    owner: str
    waits_for: str
    reason: str
    since: float
    """By `time.monotonic`."""
    deadline_seconds: float
    """Counted from `since`; 0 when it never times out."""

    def says_the_same(self, other: "Waiting") -> bool:
        """Returns true when the two read the same, apart from the time."""
        return (self.waits_for, self.reason, self.deadline_seconds) == (
            other.waits_for,
            other.reason,
            other.deadline_seconds,
        )

    def to_proto(self, now: float) -> pb.Wait:
        """Describes the wait as of `now`."""
        waited = now - self.since
        left = max(self.deadline_seconds - waited, _SHORTEST_DEADLINE_SECONDS)
        return pb.Wait(
            owner=self.owner,
            waits_for=self.waits_for,
            reason=self.reason,
            waited_seconds=waited,
            deadline_seconds=left if self.deadline_seconds > 0 else 0.0,
        )


class Waits:
    """The active waits of this process; usable from coroutines and threads alike.

    Registering a wait does not limit it: the waiter keeps its own deadline.

        with waits.waiting(for_="synchronizer", reason="version 4 is not published yet"):
            await gate.wait()

        waits.set("lease", waits_for="buffer", reason=str(error))  # repeatedly, until
        waits.clear("lease")
    """

    def __init__(self, *, owner: str, on_change: Callable[[], None]) -> None:
        self._owner = owner
        self._on_change = on_change
        self._lock = threading.Lock()
        self._open: list[Waiting] = []
        self._named: dict[str, Waiting] = {}
        observe_waits(self.to_proto)

    def begin(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> Waiting:
        """Starts a wait where a `with` block does not fit; `end` ends it."""
        wait = Waiting(
            owner=owner or self._owner,
            waits_for=for_,
            reason=reason,
            since=time.monotonic(),
            deadline_seconds=deadline_seconds,
        )
        self._show(wait)
        return wait

    def end(self, wait: Waiting) -> None:
        """Ends a wait; further calls do nothing."""
        with self._lock:
            if wait not in self._open:
                return
            self._open.remove(wait)
        self._on_change()

    @contextlib.contextmanager
    def waiting(
        self, *, for_: str, reason: str, deadline_seconds: float = 0.0, owner: str = ""
    ) -> Iterator[None]:
        """Shows a wait while the block runs."""
        wait = self.begin(for_=for_, reason=reason, deadline_seconds=deadline_seconds, owner=owner)
        try:
            yield
        finally:
            self.end(wait)

    @contextlib.contextmanager
    def if_longer(
        self, seconds: float, *, for_: str, reason: str, deadline_seconds: float = 0.0
    ) -> Iterator[None]:
        """Shows a wait, from its start, once the block exceeds `seconds`; on an event loop."""
        wait = Waiting(
            owner=self._owner,
            waits_for=for_,
            reason=reason,
            since=time.monotonic(),
            deadline_seconds=deadline_seconds,
        )
        timer = asyncio.get_running_loop().call_later(seconds, self._show, wait)
        try:
            yield
        finally:
            timer.cancel()
            self.end(wait)

    def set(
        self,
        name: str,
        *,
        waits_for: str,
        reason: str,
        deadline_seconds: float = 0.0,
        waited_seconds: float = 0.0,
    ) -> None:
        """Starts or updates the wait of this name.

        It began when the name was first set, or `waited_seconds` before that.
        """
        with self._lock:
            before = self._named.get(name)
            wait = Waiting(
                owner=self._owner,
                waits_for=waits_for,
                reason=reason,
                since=before.since if before else time.monotonic() - waited_seconds,
                deadline_seconds=deadline_seconds,
            )
            if before is not None and before.says_the_same(wait):
                return
            self._named[name] = wait
        self._on_change()

    def clear(self, name: str) -> None:
        """Ends the wait of this name, if it is active."""
        with self._lock:
            ended = self._named.pop(name, None)
        if ended is not None:
            self._on_change()

    def to_proto(self) -> list[pb.Wait]:
        """Describes every wait, the longest first."""
        now = time.monotonic()
        with self._lock:
            waits = [*self._open, *self._named.values()]
        return [wait.to_proto(now) for wait in sorted(waits, key=lambda wait: wait.since)]

    def _show(self, wait: Waiting) -> None:
        with self._lock:
            self._open.append(wait)
        self._on_change()
