"""What a process tells arrives over HTTP as it does over gRPC, with the headers it was given."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.integration.telemetry.http_receiver import PROTOBUF, HttpReceiver, http_receiver
from tests.integration.telemetry.receiver import Receiver, SeenSpan, receiver
from trinity.runtime.telemetry import metrics, names, tracing

PROGRAM = """
from trinity.runtime.telemetry import lifecycle
from trinity.runtime.telemetry import metrics, names, tracing

lifecycle.start("trinity-test")
about = {"text": "a", "count": 3, "share": 0.5, "is": True}
with tracing.span("around", own=tracing.task_span("a")):
    span = tracing.span("inside", attributes=about, links=[tracing.task_span("b")])
    span.fail("a reason")
    span.end()
metrics.STORED.add(2, {names.FATE: "committed"})
metrics.STORED.add(3, {names.FATE: "committed"})
lifecycle.stop()
"""
HEADERS = {"authorization": "Basic c3Vtcw==", "x-scope-orgid": "sums"}
GIVEN = "authorization=Basic%20c3Vtcw%3D%3D,X-Scope-OrgID=sums"
"""The same, as the variable has it."""


@pytest.fixture
def over_http() -> Iterator[HttpReceiver]:
    with receiver() as seen, http_receiver(seen) as over_http:
        yield over_http


def tell(environment: Mapping[str, str]) -> None:
    """Have a process of its own tell of itself, to its end."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_spans_and_figures_arrive_with_the_headers(
    over_http: HttpReceiver, compression: str
) -> None:
    tell(
        over_http.environment(
            OTEL_EXPORTER_OTLP_HEADERS=GIVEN, OTEL_EXPORTER_OTLP_COMPRESSION=compression
        )
    )
    check_spans(over_http.seen)
    check_figures(over_http.seen)
    assert {one.path for one in over_http.posted} == {"/v1/traces", "/v1/metrics"}
    for one in over_http.posted:
        assert HEADERS.items() <= one.headers.items()
        assert one.headers["content-type"] == PROTOBUF
        assert one.headers.get("content-encoding", "none") == compression


def test_traces_may_go_over_http_and_figures_over_grpc(over_http: HttpReceiver) -> None:
    tell(
        over_http.seen.environment(
            OTEL_EXPORTER_OTLP_TRACES_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://{over_http.address}/of/sums/traces",
            OTEL_EXPORTER_OTLP_TRACES_HEADERS=GIVEN,
        )
    )
    check_spans(over_http.seen)
    check_figures(over_http.seen)
    assert {one.path for one in over_http.posted} == {"/of/sums/traces"}
    assert all(HEADERS.items() <= one.headers.items() for one in over_http.posted)


@pytest.mark.thorough
def test_a_receiver_that_never_answers_keeps_no_process_from_its_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        told = HttpReceiver(seen=Receiver(), address=address)
        tell(told.environment(OTEL_EXPORTER_OTLP_TIMEOUT="3600"))


def check_spans(seen: Receiver) -> None:
    """What was said of them, and nothing else."""
    task, other = tracing.task_span("a"), tracing.task_span("b")
    inside, around = sorted(seen.spans, key=lambda span: span.name, reverse=True)
    assert ids(around) == (task.trace_hex, task.span_hex, "")
    assert ids(inside) == (task.trace_hex, inside.span_id, task.span_hex)
    assert inside.attributes == {"text": "a", "count": 3, "share": 0.5, "is": True}
    assert inside.links == ((other.trace_hex, other.span_hex),)
    assert (inside.failed, around.failed) == (True, False)
    assert around.begun_ns <= inside.begun_ns <= inside.ended_ns <= around.ended_ns
    assert {span.service for span in seen.spans} == {"trinity-test"}


def check_figures(seen: Receiver) -> None:
    """A counter came to what was added."""
    assert seen.newest(metrics.STORED.name, {names.FATE: "committed"}) == 5
    assert seen.metrics[metrics.STORED.name] == {"trinity-test"}


def ids(span: SeenSpan) -> tuple[str, str, str]:
    """Of its trace, its own and its parent's."""
    return span.trace_id, span.span_id, span.parent_id
