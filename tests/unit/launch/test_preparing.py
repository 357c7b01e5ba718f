"""A person hears that a model is being loaded, and when it is there."""

import asyncio
from typing import cast

import pytest

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.launch import messages
from trinity.run.state import MemberReport, WaitReport
from trinity.runtime.members import MemberPhase


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def print_line(self, text: str) -> None:
        self.said.append(text)


PREPARING = MemberPhase.PREPARING


class Synchronizer:
    """Answers with one activity of the trainer after the other."""

    def __init__(self, *activities: str) -> None:
        self.left = list(activities)
        self.told_all = asyncio.Event()

    async def GetStatus(self, _: object, **__: object) -> pb.GetStatusResponse:
        if not self.left:
            self.told_all.set()
            await asyncio.Event().wait()
        activity = self.left.pop(0)
        is_loading = activity == "loading the model"
        phase = pb.MEMBER_PHASE_PREPARING if is_loading else pb.MEMBER_PHASE_WORKING
        member = pb.Member(id="t", role=pb.ROLE_TRAINER, activity=activity, phase=phase)
        return pb.GetStatusResponse(members=[member])


async def test_loading_is_said_once_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "POLL_SECONDS", 0.0)
    lines = Lines()
    loading = "loading the model"
    stub = Synchronizer("waiting for a stage", loading, loading, "training")
    watch = asyncio.create_task(messages.report_startup(cast(SynchronizerServiceStub, stub), lines))
    async with asyncio.timeout(5):
        await stub.told_all.wait()
    watch.cancel()
    assert lines.said == ["trainer: loading the model", "trainer: ready after 0 s"]


def test_what_takes_long_is_said_again_ever_more_rarely() -> None:
    lines = Lines()
    preparations = messages.StartupReporter(lines)
    engine = MemberReport(id="e", role="explorer", activity="starting the engine", phase=PREPARING)
    for second in range(41):
        preparations.observe_member(engine, second)
    preparations.observe_member(MemberReport(id="e", role="explorer", activity="exploring"), 45)
    assert lines.said == [
        "explorer: starting the engine",
        "explorer: still starting the engine, after 5 s",
        "explorer: still starting the engine, after 10 s",
        "explorer: still starting the engine, after 20 s",
        "explorer: still starting the engine, after 40 s",
        "explorer: ready after 45 s",
    ]


def test_what_takes_long_is_said_with_what_it_waits_for() -> None:
    lines = Lines()
    preparations = messages.StartupReporter(lines)
    wait = WaitReport(
        owner="explorer",
        waits_for="explorer host",
        reason="host 1 of the engine's 2 to join",
        waited_seconds=0.0,
    )
    for second in (0, 5):
        engine = MemberReport(
            id="e",
            role="explorer",
            activity="starting the engine",
            phase=PREPARING,
            waits=(wait,),
        )
        preparations.observe_member(engine, second)
    assert lines.said[1:] == [
        "explorer: still starting the engine, after 5 s, waiting for explorer host: host 1 of the "
        "engine's 2 to join"
    ]


def test_a_trainer_is_ready_when_all_of_its_preparations_are_over() -> None:
    lines = Lines()
    preparations = messages.StartupReporter(lines)
    prepares = ("starting the ranks", "loading the model")
    for second, activity in enumerate(("waiting for a stage", *prepares, "training")):
        phase = PREPARING if activity in prepares else MemberPhase.WORKING
        member = MemberReport(id="t", role="trainer", activity=activity, phase=phase)
        preparations.observe_member(member, second)
    assert lines.said == [
        "trainer: starting the ranks",
        "trainer: loading the model",
        "trainer: ready after 2 s",
    ]
