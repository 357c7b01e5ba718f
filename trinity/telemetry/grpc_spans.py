"""Encodes spans as OTLP messages directly; OpenTelemetry's own form would take four times as long.

The exporter's thread does this, but it holds the GIL.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as pb
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from trinity.telemetry.backend import OpenTelemetrySpan
from trinity.telemetry.places import Place
from trinity.telemetry.span_form import SpanForm
from trinity.telemetry.spans import Kind, Value

IS_KNOWN = pb.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
IS_REMOTE = IS_KNOWN | pb.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
KINDS: dict[Kind, pb.Span.SpanKind.ValueType] = {
    "internal": pb.Span.SPAN_KIND_INTERNAL,
    "producer": pb.Span.SPAN_KIND_PRODUCER,
    "consumer": pb.Span.SPAN_KIND_CONSUMER,
    "client": pb.Span.SPAN_KIND_CLIENT,
    "server": pb.Span.SPAN_KIND_SERVER,
}
UNSET = pb.Status()


class GrpcSpanExporter(OTLPSpanExporter):
    """Exports this package's spans."""

    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self._form = SpanForm(resource)

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return request_of(cast(Sequence[OpenTelemetrySpan], data), self._form)


def request_of(spans: Sequence[OpenTelemetrySpan], form: SpanForm) -> ExportTraceServiceRequest:
    """Returns the message that the SDK would make of these spans of one process; at least one."""
    request = encode_spans([form.readable(spans[0])])
    [scope] = request.resource_spans[0].scope_spans
    del scope.spans[:]
    for span in spans:
        _write(scope.spans.add(), span, form)
    return request


def _write(message: pb.Span, span: OpenTelemetrySpan, form: SpanForm) -> None:
    message.name = span.name
    message.trace_id, message.span_id = _ids(span.place)
    message.kind = KINDS[span.kind]
    message.start_time_unix_nano = span.begun_ns
    message.end_time_unix_nano = span.ended_ns
    message.flags = IS_KNOWN
    if span.parent is not None:
        _, message.parent_span_id = _ids(span.parent)
        message.flags = IS_REMOTE
    attributes = form.attributes(span)
    message.dropped_attributes_count = getattr(attributes, "dropped", 0)
    _write_attributes(message, attributes)
    for link in form.links(span):
        trace_id, span_id = _ids(link)
        message.links.add(trace_id=trace_id, span_id=span_id, flags=IS_REMOTE)
    if span.failure is None:
        message.status.CopyFrom(UNSET)
    else:
        message.status.code = pb.Status.STATUS_CODE_ERROR
        message.status.message = span.failure


def _ids(place: Place) -> tuple[bytes, bytes]:
    return place.trace_id.to_bytes(16, "big"), place.span_id.to_bytes(8, "big")


def _write_attributes(message: pb.Span, attributes: Mapping[str, Value]) -> None:
    for name, value in attributes.items():
        attribute = message.attributes.add()
        attribute.key = name
        _write_value(attribute.value, value)


def _write_value(message: AnyValue, value: Value) -> None:
    match value:
        case str():
            message.string_value = value
        case bool():
            message.bool_value = value
        case int():
            message.int_value = value
        case float():
            message.double_value = value
