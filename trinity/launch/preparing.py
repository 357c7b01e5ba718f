"""Progress of the services while there are no steps to show yet: models take long to load."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import grpc

from trinity.api.v1 import synchronizer_pb2, synchronizer_pb2_grpc
from trinity.diagnosis.words import duration
from trinity.rpc.limits import CALL_SECONDS

POLL_SECONDS = 0.5
PREPARING = ("starting the engine", "starting the ranks", "opening the stage", "loading the model")
SERVING = "serving at "
"""Prefix of the activity that gives a served model's address."""
ROLES = {synchronizer_pb2.ROLE_EXPLORER: "explorer", synchronizer_pb2.ROLE_TRAINER: "trainer"}
SAID_AGAIN_SECONDS = 5.0
"""Time until the first repeated report; each later one takes twice as long."""


class Says(Protocol):
    """A receiver of lines for the user."""

    def say(self, text: str) -> None:
        """Shows one line."""


@dataclass(slots=True)
class Preparation:
    """A member's work before it is ready."""

    activity: str
    since: float
    next_said: float


@dataclass(slots=True)
class Preparations:
    """The members that are starting up, since when, and what was reported of them."""

    reporter: Says
    _by_member: dict[str, Preparation] = field(default_factory=dict)
    _served: dict[str, str] = field(default_factory=dict)

    def take(self, member: synchronizer_pb2.Member, now: float) -> None:
        """Reports that a member starts something, still does it, or is ready."""
        role = ROLES.get(member.role)
        if role is None:
            return
        if member.activity not in PREPARING:
            if (over := self._by_member.pop(member.id, None)) is not None:
                self.reporter.say(f"{role}: ready after {duration(now - over.since)}")
            self._say_served(role, member)
            return
        preparation = self._by_member.setdefault(
            member.id, Preparation(activity="", since=now, next_said=now + SAID_AGAIN_SECONDS)
        )
        if preparation.activity != member.activity:
            preparation.activity = member.activity
            self.reporter.say(f"{role}: {member.activity}")
        elif now >= preparation.next_said:
            lasted = now - preparation.since
            preparation.next_said = now + lasted
            self.reporter.say(f"{role}: still {member.activity}, after {duration(lasted)}")

    def _say_served(self, role: str, member: synchronizer_pb2.Member) -> None:
        """Reports the address of a served model whenever it changes."""
        if not member.activity.startswith(SERVING):
            return
        if self._served.get(member.id) != member.activity:
            self._served[member.id] = member.activity
            self.reporter.say(f"{role}: {member.activity}")


async def say_preparations(
    synchronizer: synchronizer_pb2_grpc.SynchronizerServiceStub, reporter: Says
) -> NoReturn:
    """Reports what members prepare while they do; never returns."""
    preparations = Preparations(reporter)
    while True:
        try:
            answer: synchronizer_pb2.GetStatusResponse = await synchronizer.GetStatus(
                synchronizer_pb2.GetStatusRequest(), timeout=CALL_SECONDS
            )
        except grpc.aio.AioRpcError:
            pass  # a restart of the synchronizer, which others report
        else:
            for member in answer.members:
                preparations.take(member, time.monotonic())
        await asyncio.sleep(POLL_SECONDS)
