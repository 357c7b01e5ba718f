"""A person hears that a model is being loaded, and when it is there."""

import asyncio
from typing import cast

import pytest

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.launch import preparing


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


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
        member = pb.Member(id="t", role=pb.ROLE_TRAINER, activity=activity)
        return pb.GetStatusResponse(members=[member])


async def test_loading_is_said_once_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "POLL_SECONDS", 0.0)
    lines = Lines()
    loading = "loading the model"
    stub = Synchronizer("waiting for a stage", loading, loading, "training")
    watch = asyncio.create_task(
        preparing.say_preparations(cast(SynchronizerServiceStub, stub), lines)
    )
    async with asyncio.timeout(5):
        await stub.told_all.wait()
    watch.cancel()
    assert lines.said == ["trainer: loading the model", "trainer: ready"]
