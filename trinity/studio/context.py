"""The shared state of one Studio process: its places, its runs and the background loop."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

import grpc

from trinity.api.v1 import buffer_pb2
from trinity.cli.runs import default_root
from trinity.launch.follow import StreamRetry
from trinity.studio.background import ANSWER_SECONDS, BackgroundLoop
from trinity.studio.connection import OpenRun, RunConnection
from trinity.studio.history import RunHistory

T = TypeVar("T")
RETRY_SECONDS = 0.5


@dataclass(slots=True, kw_only=True)
class ViewedRun:
    """A run that pages look at, with its curves."""

    connection: RunConnection
    history: RunHistory = field(default_factory=RunHistory)

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
            except grpc.aio.AioRpcError as error:
                retry.raise_if_permanent(error)
            await asyncio.sleep(RETRY_SECONDS)


class StudioContext:
    """The shared state of Studio; pages run in several threads at once."""

    def __init__(self, *, places: Iterable[Path]) -> None:
        self.places = tuple(places)
        self.background = BackgroundLoop()
        self._viewed: dict[Path, ViewedRun] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_places(cls, places: Iterable[Path]) -> Self:
        """Looks into these places, or into the default root if there are none."""
        return cls(places=tuple(places) or (default_root(),))

    def view(self, job_dir: Path) -> ViewedRun:
        """Returns the run in a directory, and begins to open it if it is not open."""
        with self._lock:
            viewed = self._viewed.get(job_dir)
            if viewed is None:
                viewed = self._begin(job_dir)
            viewed.connection.touch()
            return viewed

    def wait_for(self, work: Coroutine[object, object, T], seconds: float = ANSWER_SECONDS) -> T:
        """Runs something in the background loop and returns what it returns.

        Raises: TimeoutError.
        """
        return self.background.wait_for(work, seconds)

    def close(self) -> None:
        """Closes every open run and ends the background loop."""
        self.background.close()

    def _begin(self, job_dir: Path) -> ViewedRun:
        viewed = ViewedRun(connection=RunConnection(job_dir))
        viewed.connection.add_follower(viewed.follow)
        self._viewed[job_dir] = viewed
        self.background.start(self._keep(job_dir, viewed))
        return viewed

    async def _keep(self, job_dir: Path, viewed: ViewedRun) -> None:
        try:
            await viewed.connection.keep()
        finally:
            with self._lock:
                if self._viewed.get(job_dir) is viewed:
                    del self._viewed[job_dir]


_context: StudioContext | None = None


def set_context(context: StudioContext) -> None:
    """Makes the context known to the pages, which Streamlit calls without arguments."""
    global _context
    _context = context


def studio_context() -> StudioContext:
    """Returns the context of this process."""
    assert _context is not None, "Studio's server has not set its context"
    return _context
