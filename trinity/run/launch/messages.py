"""Messages to the user while no step ends: how services start, and what stalls the run."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import grpc

from trinity.api.v1 import synchronizer_pb2_grpc
from trinity.errors import RunFailed
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.rules import Diagnosis, DiagnosisState
from trinity.run.diagnosis.snapshot import SystemSnapshot
from trinity.run.local.run_file import read_running
from trinity.run.output import format_duration
from trinity.run.progress.lines import LineSink
from trinity.run.progress.view import RunView
from trinity.run.state import MemberReport, ask_status, state_of
from trinity.runtime.members import MemberPhase

POLL_SECONDS = 0.5
ROLES = ("explorer", "trainer")
REPEAT_SECONDS = 5.0
"""Time until the first repeated report; each later one takes twice as long."""
DIAGNOSE_SECONDS = 2.0
STALL_SECONDS = 10.0
GRACE_SECONDS = 30.0
"""Services whose waits time out end the run themselves, as far as they can."""
WORKING = Diagnosis(state=DiagnosisState.WORKING, cause="", text="")


@dataclass(slots=True)
class MemberStartup:
    """A member's work before it is ready."""

    activity: str
    since: float
    next_report: float


@dataclass(slots=True)
class StartupReporter:
    """Reports the startup of members, and remembers earlier reports."""

    reporter: LineSink
    _by_member: dict[str, MemberStartup] = field(default_factory=dict)
    _served: dict[str, str] = field(default_factory=dict)

    def observe_member(self, member: MemberReport, now: float) -> None:
        """Reports that a member starts something, still does it, or is ready."""
        role = member.role
        if role not in ROLES:
            return
        if member.phase != MemberPhase.PREPARING:
            if (over := self._by_member.pop(member.id, None)) is not None:
                self.reporter.print_line(f"{role}: ready after {format_duration(now - over.since)}")
            self._report_served(member)
            return
        startup = self._by_member.setdefault(
            member.id, MemberStartup(activity="", since=now, next_report=now + REPEAT_SECONDS)
        )
        if startup.activity != member.activity:
            startup.activity = member.activity
            self.reporter.print_line(f"{role}: {member.activity}")
        elif now >= startup.next_report:
            lasted = now - startup.since
            startup.next_report = now + lasted
            waits = "".join(f", waiting for {w.waits_for}: {w.reason}" for w in member.waits)
            self.reporter.print_line(
                f"{role}: still {member.activity}, after {format_duration(lasted)}{waits}"
            )

    def _report_served(self, member: MemberReport) -> None:
        """Reports the address of a served model whenever it changes."""
        is_new = self._served.get(member.id) != member.activity
        if member.phase == MemberPhase.SERVING and is_new:
            self._served[member.id] = member.activity
            self.reporter.print_line(f"{member.role}: {member.activity}")


async def report_startup(
    synchronizer: synchronizer_pb2_grpc.SynchronizerServiceStub, reporter: LineSink
) -> NoReturn:
    """Reports what members prepare while they do; never returns."""
    startup = StartupReporter(reporter)
    while True:
        try:
            state = state_of(await ask_status(synchronizer))
        except grpc.aio.AioRpcError:
            pass  # a restart of the synchronizer, which others report
        else:
            for member in state.members or ():
                startup.observe_member(member, time.monotonic())
        await asyncio.sleep(POLL_SECONDS)


@dataclass(slots=True)
class StallNotifier:
    """The current cause of a stall, its start, and whether it was reported."""

    reporter: LineSink
    max_broken_seconds: float
    """Time that a part may stay broken before the run fails: the services may not notice."""
    _cause: str = ""
    _since: float = 0.0
    _is_reported: bool = False

    def observe_diagnosis(self, verdict: Diagnosis, now: float) -> None:
        """Reports a stall that begins or ends.

        Raises: RunFailed when a part is broken for longer than the limit.
        """
        if verdict.cause != self._cause or verdict.is_healthy:
            self._report_end(now)
            self._cause, self._since = verdict.cause, now
        if verdict.is_healthy:
            return
        lasted = now - self._since
        if lasted >= STALL_SECONDS and not self._is_reported:
            self._is_reported = True
            self.reporter.print_line(f"held up: {verdict.text}")
        if verdict.state is DiagnosisState.BROKEN and lasted >= self.max_broken_seconds:
            raise RunFailed(f"no progress for {format_duration(lasted)}: {verdict.text}")

    def _report_end(self, now: float) -> None:
        if self._is_reported:
            self.reporter.print_line(
                f"no longer held up: that lasted {format_duration(now - self._since)}"
            )
        self._is_reported = False


def without_startup(verdict: Diagnosis, snapshot: SystemSnapshot) -> Diagnosis:
    """Leaves out what `report_startup` reports itself: a model that takes long to load."""
    members = snapshot.members or ()
    preparing = (member.role for member in members if member.phase == MemberPhase.PREPARING)
    if verdict.state is DiagnosisState.HELD and verdict.owner in preparing:
        return WORKING
    return verdict


async def report_stalls(
    job_dir: Path, view: RunView, reporter: LineSink, sync_timeout: float
) -> NoReturn:
    """Checks the run whenever no new event arrives; never returns.

    Raises: RunFailed when the run cannot continue.
    """
    stalls = StallNotifier(reporter, sync_timeout + GRACE_SECONDS)
    seen = -1
    while True:
        if seen != view.last_event:
            seen, verdict = view.last_event, WORKING
        elif (running := read_running(job_dir)) is not None:
            snapshot = await gather(running, job_dir)
            verdict = without_startup(diagnose(snapshot), snapshot)
        stalls.observe_diagnosis(verdict, time.monotonic())
        await asyncio.sleep(DIAGNOSE_SECONDS)
