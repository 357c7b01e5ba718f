"""A run that has stopped is opened although its buffer takes a moment to serve."""

from typing import cast

import grpc
import pytest

from trinity.api.v1 import query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.errors import NotFound, Unavailable
from trinity.run import stored as opening
from trinity.runtime.retry import Retry


class StartingBuffer:
    """Answers with these codes first, and then."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self._codes = list(codes)

    async def ListStages(self, *_: object, **__: object) -> query_pb2.ListStagesResponse:
        if self._codes:
            raise grpc.aio.AioRpcError(
                self._codes.pop(0), grpc.aio.Metadata(), grpc.aio.Metadata(), "not ready yet"
            )
        return query_pb2.ListStagesResponse(stages=[query_pb2.StoredStage(state="open")])


async def asked(*codes: grpc.StatusCode) -> opening.StoredExperiment:
    return await opening._stored(cast(QueryServiceStub, StartingBuffer(*codes)), "a/b", "e")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retry, "next_pause", lambda _: 0.0)


async def test_a_buffer_that_starts_is_waited_for() -> None:
    unavailable = grpc.StatusCode.UNAVAILABLE
    stored = await asked(unavailable, unavailable)
    assert [stage.state for stage in stored.stages] == ["open"]


async def test_what_is_no_matter_of_time_is_told_at_once() -> None:
    with pytest.raises(NotFound, match="not ready yet"):
        await asked(grpc.StatusCode.NOT_FOUND)


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "START_SECONDS", -1.0)
    with pytest.raises(Unavailable, match="not ready yet"):
        await asked(grpc.StatusCode.UNAVAILABLE)
