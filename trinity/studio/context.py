"""The shared state of one Studio process: its places, services, runs, visitors and the background.

Data of a visitor are cached under the key of the visit, so that visitors do not see data that were
fetched with another visitor's token.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Self, TypeVar

import grpc

from trinity.api.v1 import buffer_pb2
from trinity.client.background_loop import BackgroundLoop
from trinity.errors import TrinityError, UserError
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.launch.follow import StreamRetry
from trinity.run.runs import default_root
from trinity.run.state import (
    EndedWaitReport,
    MemberReport,
    WorkReport,
    ask_status,
    state_of,
)
from trinity.runtime.rpc.errors import answer_of
from trinity.studio.connection import OpenRun, RunConnection, ServiceConnection, System
from trinity.studio.generator.sources import Drafts
from trinity.studio.history import RunHistory
from trinity.studio.lanes import MAX_STORED, LaneHistory
from trinity.studio.system import SystemConnection
from trinity.studio.visitors import OWNER, Shares, Visitor

ValueT = TypeVar("ValueT")
ANSWER_SECONDS = 15.0
"""A page gives up on an answer after this time."""
RETRY_SECONDS = 0.5
WORK_SECONDS = 10.0
"""Age of an answer about open work; of the page's questions it costs a run most."""
NEWS_SECONDS = 4.0
"""Age after which an event of the run makes an answer stale."""
VERDICT_SECONDS = 15.0
"""Age of an answer why a run stands still; a new one asks all its parts."""
MAX_VIEWED = 8
"""Runs that are open for a visitor: of more, the one looked at longest ago is closed."""
MEMBER_SECONDS = 2.0
"""Pause between two looks at the members: as often as they tell of themselves."""
NEW_CLOSED_WAITS = 20
"""Ended waits that a look asks for; all, where every one of these is new."""
CLOSED_SECONDS = 10.0
"""Age after which they are fetched even if no wait was seen to end: short ones are missed."""


@dataclass(slots=True)
class KeptAnswer(Generic[ValueT]):
    """The last answer of services about a run, shared by all pages of a visitor for some seconds.

    Pages are drawn again every two seconds, and each answer costs the run some processor time.
    """

    seconds: float
    news_seconds: float = float("inf")
    """Age from which news make the answer stale."""
    _news: object = None
    _answer: ValueT | None = None
    _opened: OpenRun | None = None
    _asked_at: float = 0.0

    def get(self, opened: OpenRun, ask: Callable[[], ValueT], *, news: object = None) -> ValueT:
        """Returns the kept answer, or a new one where it is old or other services gave it.

        `news` names the newest thing that is known of the run: another one makes it old sooner.
        """
        age = time.monotonic() - self._asked_at
        has_news = news != self._news and age >= self.news_seconds
        if self._answer is None or self._opened is not opened or has_news or age >= self.seconds:
            self._answer = ask()
            self._opened, self._news, self._asked_at = opened, news, time.monotonic()
        return self._answer


@dataclass(slots=True)
class DueWaits:
    """Decides when to fetch ended waits: not at each look, as that costs the run time."""

    _asks_all: bool = True
    _is_due: bool = True
    _asked_at: float = 0.0
    _open: frozenset[tuple[str, str]] = frozenset()

    def number(self) -> int:
        """Returns the number to fetch now; 0 if no observed wait has ended."""
        if self._asks_all:
            return MAX_STORED
        is_old = time.monotonic() - self._asked_at >= CLOSED_SECONDS
        return NEW_CLOSED_WAITS if self._is_due or is_old else 0

    def observe(self, members: Iterable[MemberReport], num_asked: int, *, is_whole: bool) -> None:
        """Takes an answer; `is_whole` is false if waits may have ended that it did not have."""
        if num_asked:
            self._asks_all, self._asked_at = not is_whole, time.monotonic()
        now = frozenset((member.id, wait.waits_for) for member in members for wait in member.waits)
        self._is_due, self._open = not self._open <= now, now


async def members_of(
    opened: OpenRun, num_closed_waits: int = 0
) -> tuple[tuple[MemberReport, ...], tuple[EndedWaitReport, ...]]:
    """Returns the members that are idle or on the experiment, and their newest ended waits.

    Raises: TrinityError.
    """
    call = ask_status(opened.synchronizer, opened.experiment_id, num_closed_waits)
    state = state_of(await answer_of(call)).of_experiment(opened.experiment_id)
    return state.members or (), state.ended_waits


@dataclass(slots=True, kw_only=True)
class ViewedRun:
    """A run that pages look at, with its curves."""

    connection: ServiceConnection
    history: RunHistory = field(default_factory=RunHistory)
    lanes: LaneHistory = field(default_factory=LaneHistory)
    work: KeptAnswer[tuple[WorkReport, ...]] = field(
        default_factory=lambda: KeptAnswer(WORK_SECONDS, NEWS_SECONDS)
    )
    verdict: KeptAnswer[Diagnosis] = field(default_factory=lambda: KeptAnswer(VERDICT_SECONDS))
    members: tuple[MemberReport, ...] = ()
    """Those of the last look; empty before it."""

    async def follow(self, opened: OpenRun) -> None:
        """Applies the run's events, from the last one seen on, until cancelled."""
        retry = StreamRetry()
        while True:
            retry.record_open()
            request = buffer_pb2.WatchProgressRequest(
                tenant=opened.tenant,
                experiment_id=opened.experiment_id,
                after_event=self.history.last_event,
            )
            try:
                async for answer in opened.buffer.WatchProgress(request):
                    retry.record_answer()
                    for event in answer.events:
                        self.history.apply(event)
                    self.history.is_read |= not answer.events
            except grpc.aio.AioRpcError as error:
                self.history.is_read = True  # there is no more for now
                retry.raise_if_permanent(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def watch_members(self, opened: OpenRun) -> None:
        """Observes the activities and waits of a running run's members, until cancelled.

        Of a stopped run it reads the waits that are stored.
        """
        due = DueWaits()
        try:
            while True:
                num_closed = due.number()
                try:
                    members, closed = await members_of(opened, num_closed)
                except TrinityError:
                    self.members = ()  # so that pages ask themselves, and show the error
                else:
                    self.members = members
                    joins = self.lanes.add_stored(time.time(), closed)
                    due.observe(members, num_closed, is_whole=joins or len(closed) < num_closed)
                    if not opened.is_live:
                        return
                    self.lanes.observe(time.time(), members)
                await asyncio.sleep(MEMBER_SECONDS)
        finally:
            self.members = ()
            self.lanes.end()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudioOptions:
    """The choices of the person who starts Studio."""

    places: tuple[Path, ...]
    system: System | None = None
    """Services by address; None where runs are found by their directories alone."""
    allows_changes: bool = False


class StudioContext:
    """The shared state of Studio; pages run in several threads at once."""

    def __init__(
        self,
        options: StudioOptions,
        *,
        visitor_now: Callable[[], Visitor | None] = lambda: OWNER,
    ) -> None:
        self.options = options
        self.background = BackgroundLoop(ANSWER_SECONDS)
        self.visitor_now = visitor_now
        self.drafts = Drafts()
        self.shares = Shares()
        self._viewed: dict[tuple[str, str], ViewedRun] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_places(cls, places: Iterable[Path]) -> Self:
        """Looks into these places, by default into the default root."""
        return cls(StudioOptions(places=tuple(places) or (default_root(),)))

    @property
    def places(self) -> tuple[Path, ...]:
        """The places whose runs the visitor may see: tokens are for services, not for files."""
        return self.options.places if self.visitor().is_owner else ()

    def visitor(self) -> Visitor:
        """Returns the visitor whose page is made now.

        Raises: UserError if its token has expired.
        """
        if (visitor := self.visitor_now()) is None:
            raise UserError(
                "Your token has expired: load the page again, and sign in with a new one."
            )
        return visitor

    def turn(self) -> AbstractContextManager[bool]:
        """Waits until the visitor's page may be made, for the block; False if it may not.

        Raises: UserError if its token has expired.
        """
        return self.shares.of(self.visitor()).script()

    def system(self) -> System | None:
        """Returns the services by address, called with the visitor's token."""
        system = self.options.system
        return system.for_visitor(self.visitor()) if system is not None else None

    def view(self, job_dir: Path) -> ViewedRun:
        """Returns the run in a directory, and begins to open it if it is not open."""
        return self._view(("", str(job_dir)), lambda: RunConnection(job_dir))

    def view_experiment(self, experiment_id: str) -> ViewedRun:
        """Returns an experiment of the services by address, as the visitor may see it."""
        system = self.system()
        assert system is not None, "there are no services by address"
        places = self.options.places
        return self._view(
            (self.visitor().key, experiment_id),
            lambda: SystemConnection(system, experiment_id, places=places),
        )

    def wait_for(
        self, work: Coroutine[object, object, ValueT], seconds: float = ANSWER_SECONDS
    ) -> ValueT:
        """Runs a coroutine in the background loop and returns its result.

        Raises: TimeoutError.
        """
        return self.background.wait_for(work, seconds)

    def close(self) -> None:
        """Closes every open run and ends the background loop."""
        self.background.close()

    def _view(self, key: tuple[str, str], connect: Callable[[], ServiceConnection]) -> ViewedRun:
        with self._lock:
            viewed = self._viewed.get(key)
            if viewed is None:
                same = [known.connection for at, known in self._viewed.items() if at[0] == key[0]]
                if len(same) >= MAX_VIEWED:
                    min(same, key=lambda connection: connection.touched).expire()
                viewed = self._viewed[key] = ViewedRun(connection=connect())
                viewed.connection.add_follower(viewed.follow)
                viewed.connection.add_follower(viewed.watch_members)
                self.background.start(self._keep(key, viewed))
            viewed.connection.touch()
            return viewed

    async def _keep(self, key: tuple[str, str], viewed: ViewedRun) -> None:
        try:
            await viewed.connection.keep()
        finally:
            with self._lock:
                if self._viewed.get(key) is viewed:
                    del self._viewed[key]


_context: StudioContext | None = None


def set_context(context: StudioContext) -> None:
    """Makes the context known to the pages, which Streamlit calls without arguments."""
    global _context
    _context = context


def studio_context() -> StudioContext:
    """Returns the context of this process."""
    assert _context is not None, "Studio's server has not set its context"
    return _context
