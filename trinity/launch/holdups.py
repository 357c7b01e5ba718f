"""Reports when something stalls the run for long, and when that is over."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trinity.diagnosis.diagnose import diagnose
from trinity.diagnosis.gather import gather
from trinity.diagnosis.snapshot import Snapshot
from trinity.diagnosis.verdict import State, Verdict
from trinity.diagnosis.words import duration
from trinity.errors import RunFailed
from trinity.launch.preparing import PREPARING, Says
from trinity.local.run_file import read_running
from trinity.progress.view import RunView

LOOK_SECONDS = 2.0
SAID_AFTER_SECONDS = 10.0
GRACE_SECONDS = 30.0
"""Services whose waits time out end the run themselves, as far as they can."""
WORKING = Verdict(state=State.WORKING, cause="", text="")


@dataclass(slots=True)
class Holdups:
    """The current cause of a stall, its start, and whether it was reported."""

    reporter: Says
    patience_seconds: float
    """Time that a part may stay broken before the run fails: the services may not notice."""
    _cause: str = ""
    _since: float = 0.0
    _is_said: bool = False

    def take(self, verdict: Verdict, now: float) -> None:
        """Reports a stall that begins or ends.

        Raises: RunFailed when a part is broken for longer than the limit.
        """
        if verdict.cause != self._cause or verdict.is_healthy:
            self._over(now)
            self._cause, self._since = verdict.cause, now
        if verdict.is_healthy:
            return
        lasted = now - self._since
        if lasted >= SAID_AFTER_SECONDS and not self._is_said:
            self._is_said = True
            self.reporter.say(f"held up: {verdict.text}")
        if verdict.state is State.BROKEN and lasted >= self.patience_seconds:
            raise RunFailed(f"no progress for {duration(lasted)}: {verdict.text}")

    def _over(self, now: float) -> None:
        if self._is_said:
            self.reporter.say(f"no longer held up: that lasted {duration(now - self._since)}")
        self._is_said = False


def untold(verdict: Verdict, snapshot: Snapshot) -> Verdict:
    """Leaves out what `say_preparations` reports itself: a model that takes long to load."""
    preparing = (member.role for member in snapshot.members or () if member.activity in PREPARING)
    if verdict.state is State.HELD and verdict.owner in preparing:
        return WORKING
    return verdict


async def say_holdups(
    job_dir: Path, view: RunView, reporter: Says, sync_timeout: float
) -> NoReturn:
    """Checks the run whenever it reports nothing new; never returns.

    Raises: RunFailed when nothing can make it continue.
    """
    holdups = Holdups(reporter, sync_timeout + GRACE_SECONDS)
    seen = -1
    while True:
        if seen != view.last_event:
            seen, verdict = view.last_event, WORKING
        elif (running := read_running(job_dir)) is not None:
            snapshot = await gather(running, job_dir)
            verdict = untold(diagnose(snapshot), snapshot)
        holdups.take(verdict, time.monotonic())
        await asyncio.sleep(LOOK_SECONDS)
