"""Says when something holds the run for long, and when that is over."""

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
"""Services that wait in vain end the run themselves, as far as they can."""
WORKING = Verdict(state=State.WORKING, cause="", text="")


@dataclass(slots=True)
class Holdups:
    """What holds the run now, since when, and whether that was said."""

    reporter: Says
    patience_seconds: float
    """How long a part may be broken: what is told to nobody ends nothing."""
    _cause: str = ""
    _since: float = 0.0
    _is_said: bool = False

    def take(self, verdict: Verdict, now: float) -> None:
        """Say what there is to say.

        Raises: RunFailed when a part is broken for longer than anybody waits.
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
            raise RunFailed(f"nothing went on for {duration(lasted)}: {verdict.text}")

    def _over(self, now: float) -> None:
        if self._is_said:
            self.reporter.say(f"no longer held up: that lasted {duration(now - self._since)}")
        self._is_said = False


def untold(verdict: Verdict, snapshot: Snapshot) -> Verdict:
    """Leaves out what `say_preparations` tells by itself: that a model takes its time to load."""
    preparing = (one.role for one in snapshot.members or () if one.activity in PREPARING)
    if verdict.state is State.HELD and verdict.owner in preparing:
        return WORKING
    return verdict


async def say_holdups(
    job_dir: Path, view: RunView, reporter: Says, sync_timeout: float
) -> NoReturn:
    """Look at the run whenever it tells nothing new; never returns.

    Raises: RunFailed when it can go on by nobody's doing.
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
