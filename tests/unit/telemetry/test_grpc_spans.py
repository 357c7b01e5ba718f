"""What is sent over gRPC is, to the last field, what OpenTelemetry's SDK would send."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from trinity.runtime.telemetry import tracing
from trinity.runtime.telemetry.sdk_spans import (
    KINDS,
    OpenTelemetryBackend,
    OpenTelemetrySpan,
    SpanConverter,
    request_of,
)
from trinity.runtime.telemetry.tracing import Value

RESOURCE = Resource({"service.name": "own", "several": ("a", "b")})


def some_spans() -> list[OpenTelemetrySpan]:
    """All that a span can have."""
    ended: list[OpenTelemetrySpan] = []
    tracing.set_backend(OpenTelemetryBackend(ALWAYS_ON, ended.append))
    links = [tracing.task_span("b"), tracing.task_span("c")]
    values: dict[str, Value] = {
        "text": "a \u00fc",
        "empty": "",
        "yes": True,
        "number": -(2**40),
        "share": 0.25,
    }
    with tracing.span("around", own=tracing.task_span("a")):
        for kind in KINDS:
            tracing.begin(kind, kind=kind, attributes=values, links=links).end()
        failed = tracing.begin("failed")
        failed.fail("a reason")
        failed.end()
    tracing.set_backend(None)
    return ended


@pytest.mark.parametrize(
    "limits", [{}, {"VALUE_LENGTH": "2"}, {"COUNT": "1"}, {"COUNT": "2", "VALUE_LENGTH": "1"}]
)
def test_the_message_is_that_of_the_sdk(
    limits: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setenv(f"OTEL_SPAN_ATTRIBUTE_{name}_LIMIT", value)
    monkeypatch.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "1")
    form, spans = SpanConverter(RESOURCE), some_spans()
    assert len(spans) == len(KINDS) + 2
    assert request_of(spans, form) == encode_spans([form.readable(span) for span in spans])
