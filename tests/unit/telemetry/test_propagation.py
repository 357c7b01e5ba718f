"""The context goes with calls, and calls are otherwise what they were."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import (
    BufferServiceServicer,
    BufferServiceStub,
    add_BufferServiceServicer_to_server,
)
from trinity.errors import NotFound
from trinity.runtime.logs import JsonFormatter, TextFormatter
from trinity.runtime.rpc.channel import open_channel, open_sync_channel
from trinity.runtime.rpc.server import Servicer, serve
from trinity.runtime.settings import ServiceSettings
from trinity.runtime.telemetry import tracing

NAME = pb.DESCRIPTOR.services_by_name["BufferService"].full_name
UNARY, STREAM, UPLOAD = (f"{NAME}/{name}" for name in ("CancelStage", "GetBatch", "UploadBlob"))


class Buffer(BufferServiceServicer):
    """Answers a call of each kind from within a span of its own."""

    async def CancelStage(
        self, request: pb.CancelStageRequest, context: grpc.aio.ServicerContext
    ) -> pb.CancelStageResponse:
        tracing.span("inside").end()
        if request.reason == "fail":
            raise NotFound("there is none")
        return pb.CancelStageResponse(num_revoked=3)

    async def GetBatch(
        self, request: pb.GetBatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GetBatchResponse]:
        for _ in range(3):
            tracing.span("inside").end()
            yield pb.GetBatchResponse()

    async def UploadBlob(
        self, request: AsyncIterator[pb.UploadBlobRequest], context: grpc.aio.ServicerContext
    ) -> pb.UploadBlobResponse:
        return pb.UploadBlobResponse(size=sum([len(part.chunk) async for part in request]))


@pytest.fixture
async def address(spans: InMemorySpanExporter) -> AsyncIterator[str]:  # noqa: ARG001  # first
    servicer = Servicer(name=NAME, add=add_BufferServiceServicer_to_server, implementation=Buffer())
    async with serve(ServiceSettings(), [servicer]) as server:
        yield server.address


async def found(spans: InMemorySpanExporter, number: int) -> list[tuple[str, str, str]]:
    """Name, kind and name of the parent of all spans, once there are so many, in one trace."""
    async with asyncio.timeout(10):
        while len(spans.get_finished_spans()) < number:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
    seen = spans.get_finished_spans()
    assert len({span.context.trace_id for span in seen}) == 1
    names = {span.context.span_id: span.name for span in seen}
    return sorted(
        (span.name, span.kind.name, names[span.parent.span_id] if span.parent else "")
        for span in seen
    )


async def test_a_call_is_followed_into_its_handler(
    address: str, spans: InMemorySpanExporter
) -> None:
    async with open_channel(address) as channel:
        with tracing.span("work"):
            answer = await BufferServiceStub(channel).CancelStage(pb.CancelStageRequest())
    assert answer.num_revoked == 3
    assert await found(spans, 4) == [
        ("inside", "INTERNAL", UNARY),
        (UNARY, "CLIENT", "work"),
        (UNARY, "SERVER", UNARY),
        ("work", "INTERNAL", ""),
    ]


async def test_a_stream_is_followed_and_stays_a_stream(
    address: str, spans: InMemorySpanExporter
) -> None:
    async with open_channel(address) as channel:
        with tracing.span("work"):
            call = BufferServiceStub(channel).GetBatch(pb.GetBatchRequest(), timeout=5)
            assert [answer async for answer in call] == [pb.GetBatchResponse()] * 3
        assert await call.code() is grpc.StatusCode.OK
    assert len(await found(spans, 6)) == 6


async def test_a_request_stream_arrives_whole(address: str) -> None:
    parts = [pb.UploadBlobRequest(chunk=b"abc")] * 5
    async with open_channel(address) as channel:
        with tracing.span("work"):
            answer = await BufferServiceStub(channel).UploadBlob(iter(parts), timeout=5)
    assert answer.size == 15


async def test_threads_are_followed_as_well(address: str, spans: InMemorySpanExporter) -> None:
    def call() -> None:
        with open_sync_channel(address) as channel, tracing.span("work"):
            stub = BufferServiceStub(channel)
            stub.CancelStage(pb.CancelStageRequest(), timeout=5)
            assert len(list(stub.GetBatch(pb.GetBatchRequest(), timeout=5))) == 3

    await asyncio.to_thread(call)
    names = [name for name, _, _ in await found(spans, 9)]
    assert names.count(UNARY) == names.count(STREAM) == 2
    assert names.count("inside") == 4


async def test_an_error_is_the_callers_as_it_was(address: str, spans: InMemorySpanExporter) -> None:
    async with open_channel(address) as channel:
        with tracing.span("work"), pytest.raises(grpc.aio.AioRpcError) as caught:
            await BufferServiceStub(channel).CancelStage(pb.CancelStageRequest(reason="fail"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "there is none"
    await found(spans, 4)
    codes = {
        (span.kind.name, (span.attributes or {})["rpc.response.status_code"])
        for span in spans.get_finished_spans()
        if span.name == UNARY
    }
    assert codes == {("CLIENT", "NOT_FOUND"), ("SERVER", "NOT_FOUND")}
    # What is said to the caller may name what exists: it stays out of traces.
    assert all("there is" not in str(span.to_json()) for span in spans.get_finished_spans())


async def test_a_call_outside_of_a_trace_begins_none(
    address: str, spans: InMemorySpanExporter
) -> None:
    async with open_channel(address) as channel:
        call = BufferServiceStub(channel).GetBatch(pb.GetBatchRequest(), timeout=5)
        assert len([answer async for answer in call]) == 3
    assert {span.name for span in spans.get_finished_spans()} == {"inside"}


async def test_a_callers_nonsense_in_the_header_is_ignored(
    address: str, spans: InMemorySpanExporter
) -> None:
    async with open_channel(address) as channel:
        call = BufferServiceStub(channel).CancelStage(
            pb.CancelStageRequest(), timeout=5, metadata=(("traceparent", "00-x"),)
        )
        assert (await call).num_revoked == 3
    assert {span.name for span in spans.get_finished_spans()} == {"inside"}


@pytest.mark.usefixtures("spans")
def test_lines_of_the_log_name_the_span_they_were_said_in() -> None:
    record = logging.makeLogRecord({"msg": "a run failed", "run": 3})
    with tracing.span("run") as span:
        entry = json.loads(JsonFormatter("explorer").format(record))
        line = TextFormatter().format(record)
    assert span.place is not None
    assert (entry["trace_id"], entry["span_id"]) == (span.place.trace_hex, span.place.span_hex)
    assert f"run=3 trace_id={span.place.trace_hex}" in line
    assert "trace_id" not in TextFormatter().format(record)
