"""Traces and metrics while they are on: the only module that imports OpenTelemetry.

It uses an inside of the SDK, `_batch_processor`, known for opentelemetry-sdk 1.40 to 1.45;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import os
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.lifecycle import PROMETHEUS
from trinity.runtime.telemetry.tracing import Span, SpanContextRef, SpanOptions, Value

if TYPE_CHECKING:
    from trinity.runtime.telemetry.lifecycle import ExportConfig

NAMESPACE = "trinity"
BATCH_OPTIONS = {
    "schedule_delay_millis": 1_000,
    "max_export_batch_size": 2_048,
    "max_queue_size": 16_384,
}
"""Sends every second. The SDK's default, at 512 spans, coincides with the end of a step's runs."""
KINDS: Mapping[tracing.Kind, trace.SpanKind] = {
    "internal": trace.SpanKind.INTERNAL,
    "producer": trace.SpanKind.PRODUCER,
    "consumer": trace.SpanKind.CONSUMER,
    "client": trace.SpanKind.CLIENT,
    "server": trace.SpanKind.SERVER,
}
STOP_MILLIS = 2_000
"""Time limit for each signal to flush."""
_own: ContextVar[SpanContextRef | None] = ContextVar("own", default=None)
"""The ids of the span that is being started, if they derive from the work."""


class DerivedIds(IdGenerator):
    """Generates the ids in `_own` while it is set, random ones otherwise."""

    def generate_trace_id(self) -> int:
        """Returns the id of a new trace."""
        own = _own.get()
        return (random.getrandbits(128) or 1) if own is None else own.trace_id

    def generate_span_id(self) -> int:
        """Returns the id of a new span."""
        own = _own.get()
        return (random.getrandbits(64) or 1) if own is None else own.span_id


class SdkSpan(Span):
    """A span of the SDK; the SDK ignores changes after its end."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def place(self) -> SpanContextRef:
        return _place_of(self._span)

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def fail(self, reason: str) -> None:
        self._span.set_status(trace.StatusCode.ERROR, reason)

    def end(self) -> None:
        self._span.end()

    def attach(self) -> None:
        attach(trace.set_span_in_context(self._span))

    def attached(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> Span:
        self._token = attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        detach(self._token)
        if error is not None:
            self.fail(type(error).__name__)
        self.end()


class SdkTracer:
    """Starts spans of a provider that samples each trace by its id, alike in every process."""

    def __init__(self, resource: Resource, processors: Sequence[SpanProcessor]) -> None:
        ids = DerivedIds()
        provider = TracerProvider(resource=resource, shutdown_on_exit=False, id_generator=ids)
        for processor in processors:
            provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(NAMESPACE)
        self._sampler = provider.sampler
        # The runs of a task have one parent.
        self._context_under = lru_cache(tracing.CACHE_SIZE)(self._new_context)

    def span(self, name: str, options: SpanOptions) -> SdkSpan:
        """Starts a span."""
        own, parent = options.get("own"), options.get("parent")
        context = None if own is None else Context()
        if own is None and parent is not None:
            context = self._context_under(parent)
        links = [_link_to(place) for place in options.get("links", ())[: tracing.MAX_LINKS]]
        kind = KINDS[options.get("kind", "internal")]
        about, begun_ns = options.get("attributes"), options.get("begun_ns")
        token = _own.set(own)
        try:
            return SdkSpan(self._tracer.start_span(name, context, kind, about, links, begun_ns))
        finally:
            _own.reset(token)

    def current(self) -> SpanContextRef | None:
        """Returns the current span, if it is sampled."""
        place = _place_of(trace.get_current_span())
        return place if place.is_sampled else None

    def _new_context(self, place: SpanContextRef) -> Context:
        """Returns the context under a parent; unknown sampling follows from the trace's id."""
        sampled = place.is_sampled
        if sampled is None:
            asked = self._sampler.should_sample(Context(), place.trace_id, "")
            sampled = asked.decision.is_sampled()
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else trace.TraceFlags.DEFAULT)
        parent = trace.SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=flags)
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


@lru_cache(tracing.CACHE_SIZE)
def _link_to(place: SpanContextRef) -> trace.Link:
    return trace.Link(trace.SpanContext(place.trace_id, place.span_id, is_remote=True))


def _place_of(span: trace.Span) -> SpanContextRef:
    context = span.get_span_context()
    return SpanContextRef(context.trace_id, context.span_id, context.trace_flags.sampled)


def set_up(
    spans: "ExportConfig",
    values: "ExportConfig",
    service: str,
    attributes: Mapping[str, str],
    port: int = 0,
) -> Callable[[], None]:
    """Switches spans and metrics on; returns the function that flushes them for a limited time."""
    host = socket.gethostname()
    own = {"service.instance.id": f"{host}/{os.getpid()}", **attributes}
    resource = _resource(service, own)
    # Prometheus makes a label of it, so a process that is started again keeps its own.
    place = {"service.instance.id": f"{host}:{port}"} if port else {}
    keeps_exemplars = bool(os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER"))
    meters = MeterProvider(
        metric_readers=_readers(values),
        resource=_resource(service, own | place),
        shutdown_on_exit=False,
        # They cost a third of a measurement.
        exemplar_filter=None if keeps_exemplars else AlwaysOffExemplarFilter(),
    )
    options = {} if any(name.startswith("OTEL_BSP_") for name in os.environ) else BATCH_OPTIONS
    if spans.exporters:
        # Of the SDK's own metrics only the queue's are needed: its length, and the dropped spans.
        os.environ.setdefault("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    processors = [
        BatchSpanProcessor(exporter, meter_provider=meters, **options)
        for exporter in _exporters("traces", spans)
    ]
    if processors:
        tracing.set_tracer(SdkTracer(resource, processors))
    if values.exporters:
        metrics.set_meter(meters.get_meter(NAMESPACE))

    def stop() -> None:
        for processor in processors:  # its own `shutdown` waits for 30 seconds
            processor._batch_processor.shutdown(timeout_millis=STOP_MILLIS)
        meters.shutdown(timeout_millis=STOP_MILLIS)

    return stop


def _readers(values: "ExportConfig") -> list[MetricReader]:
    pushed = replace(
        values, exporters=tuple(name for name in values.exporters if name != PROMETHEUS)
    )
    readers: list[MetricReader] = [
        PeriodicExportingMetricReader(exporter) for exporter in _exporters("metrics", pushed)
    ]
    if pushed != values:
        from trinity.runtime.telemetry.prometheus import new_reader

        readers.append(new_reader())
    return readers


def _exporters(signal: str, wanted: "ExportConfig") -> list[Any]:
    """Returns the exporters of a signal, from the entry points of the installed packages."""
    known = entry_points(group=f"opentelemetry_{signal}_exporter")
    kind = "grpc" if wanted.protocol == "grpc" else "http"
    made = []
    for name in wanted.exporters:
        if name == "console":
            made.append(known[name].load()(out=sys.stderr))
        elif f"otlp_proto_{kind}" in known.names:
            made.append(known[f"otlp_proto_{kind}"].load()())
        else:
            raise UserError(
                f"OTLP over {wanted.protocol} needs the package opentelemetry-exporter-otlp-proto-"
                f"{kind}: install the extra `telemetry`, or choose another "
                "OTEL_EXPORTER_OTLP_PROTOCOL"
            )
    return made


def _resource(service: str, attributes: Mapping[str, str]) -> Resource:
    """Builds the resource; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    own = {
        "service.name": service,
        "service.namespace": NAMESPACE,
        names.RL_SYSTEM: NAMESPACE,
        **attributes,
    }
    listed = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    given = {pair.partition("=")[0].strip() for pair in listed}
    if os.environ.get("OTEL_SERVICE_NAME"):
        given.add("service.name")
    return Resource.create().merge(Resource({k: v for k, v in own.items() if k not in given}))
