"""An OTLP receiver over gRPC: keeps the spans and figures that processes send."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

Value = str | int | float | bool
OFTEN = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
"""Milliseconds after which a process sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpan:
    """A span as it arrived."""

    name: str
    service: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Value]
    links: tuple[tuple[str, str], ...]
    """Trace and span of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFigure:
    """A counter or gauge as it was told once."""

    name: str
    value: float
    attributes: dict[str, Value]


@dataclass(slots=True)
class Receiver:
    """What came so far; use it as `with receiver() as seen`."""

    spans: list[SeenSpan] = field(default_factory=list)
    metrics: dict[str, set[str]] = field(default_factory=dict)
    """Names of the services that sent each."""
    figures: list["SeenFigure"] = field(default_factory=list)
    num_bytes: int = 0
    requests: list[bytes] = field(default_factory=list)
    """Everything that came, as it was sent."""
    address: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take_traces(self, request: trace_pb.ExportTraceServiceRequest) -> None:
        """Spans that came, whichever way."""
        spans = [
            _span(_values(part.resource.attributes), span)
            for part in request.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += spans
            self.num_bytes += request.ByteSize()
            self.requests.append(request.SerializeToString())

    def take_metrics(self, request: metrics_pb.ExportMetricsServiceRequest) -> None:
        """Figures that came, whichever way."""
        with self._lock:
            self.requests.append(request.SerializeToString())
            for part in request.resource_metrics:
                service = str(_values(part.resource.attributes)["service.name"])
                for scope in part.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics.setdefault(metric.name, set()).add(service)
                        self.figures += _figures(metric)

    def newest(self, name: str, wanted: Mapping[str, Value]) -> float | None:
        """What a counter or gauge with these attributes came to."""
        for one in reversed(self.figures):
            if one.name == name and wanted.items() <= one.attributes.items():
                return one.value
        return None

    def named(self, name: str) -> list[SeenSpan]:
        """Spans of a name."""
        return [span for span in self.spans if span.name == name]

    def traces(self) -> dict[str, list[SeenSpan]]:
        """Spans by trace, each in order of its beginning."""
        found: dict[str, list[SeenSpan]] = {}
        for span in sorted(self.spans, key=lambda span: span.begun_ns):
            found.setdefault(span.trace_id, []).append(span)
        return found

    def environment(self, **more: str) -> dict[str, str]:
        """Variables with which a process sends to this."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            **OFTEN,
            **more,
        }


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, seen: Receiver) -> None:
        self._seen = seen

    def Export(self, request: trace_pb.ExportTraceServiceRequest, _: Any) -> Any:
        self._seen.take_traces(request)
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, seen: Receiver) -> None:
        self._seen = seen

    def Export(self, request: metrics_pb.ExportMetricsServiceRequest, _: Any) -> Any:
        self._seen.take_metrics(request)
        return metrics_pb.ExportMetricsServiceResponse()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Receive for as long as the block lasts, on a port of its own."""
    seen = Receiver()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(seen), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(seen), server)
    seen.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield seen
    finally:
        server.stop(1).wait()


def _figures(metric: Metric) -> list[SeenFigure]:
    kind = metric.WhichOneof("data")
    points = getattr(metric, str(kind)).data_points if kind in ("sum", "gauge") else []
    return [
        SeenFigure(
            name=metric.name,
            value=getattr(point, point.WhichOneof("value")),
            attributes=_values(point.attributes),
        )
        for point in points
    ]


def _span(resource: dict[str, Value], span: SpanMessage) -> SeenSpan:
    return SeenSpan(
        name=span.name,
        service=str(resource["service.name"]),
        process=str(resource["service.instance.id"]),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begun_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        links=tuple((one.trace_id.hex(), one.span_id.hex()) for one in span.links),
    )


def _values(attributes: Any) -> dict[str, Value]:
    return {one.key: _value(one) for one in attributes}


def _value(attribute: KeyValue) -> Value:
    kind = attribute.value.WhichOneof("value")
    assert kind is not None
    value: Value = getattr(attribute.value, kind)
    return value
