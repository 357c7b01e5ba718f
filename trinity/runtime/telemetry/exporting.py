"""Sets up OpenTelemetry: exporters of spans and metrics, and instruments while they are on."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, ExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExporter,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.telemetry.environment import ExportConfig, TelemetryConfig
from trinity.runtime.telemetry.metrics import Instrument, Observe, Sink
from trinity.runtime.telemetry.sdk_spans import (
    OpenTelemetryBackend,
    OpenTelemetrySpan,
    ReadableExporter,
    Record,
    shut_down_spans,
)

logger = logging.getLogger(__name__)
NAMESPACE = "trinity"
BATCH_OPTIONS = {
    "schedule_delay_millis": 1_000,
    "max_export_batch_size": 2_048,
    "max_queue_size": 16_384,
}
BATCH_VARIABLES = (
    "OTEL_BSP_SCHEDULE_DELAY",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    "OTEL_BSP_MAX_QUEUE_SIZE",
)
STOP_MILLIS = 2_000
"""Time limit for each signal to flush."""


class OpenTelemetryMetrics:
    """A `MetricsBackend` of OpenTelemetry."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def sink(self, instrument: Instrument) -> Sink:
        """Returns the function that records an instrument's values."""
        name, unit, about = instrument.name, instrument.unit, instrument.description
        match instrument.kind:
            case "counter":
                return self._meter.create_counter(name, unit, about).add
            case "gauge":
                return self._meter.create_gauge(name, unit, about).set
            case _:
                bounds = list(instrument.bounds) or None
                return self._meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=bounds
                ).record

    def observe(self, instrument: Instrument, observers: Sequence[Observe]) -> None:
        """Calls the functions that are in `observers` at each export."""

        def ask(_: CallbackOptions) -> Iterable[Observation]:
            for observe in list(observers):
                try:
                    yield from [Observation(value, about) for value, about in observe()]
                except Exception:  # a failing observer must not silence the others
                    logger.exception(
                        "a metric could not be observed", extra={"name_": instrument.name}
                    )

        self._meter.create_observable_gauge(
            instrument.name, [ask], instrument.unit, instrument.description
        )


@dataclass(slots=True)
class TelemetryHandle:
    """The telemetry that was set up, and its shutdown."""

    stops: list[Callable[[], None]] = field(default_factory=list)

    def stop(self) -> None:
        """Flushes and shuts down, for a limited time."""
        for stop in self.stops:
            stop()


def set_up(wanted: TelemetryConfig, service: str, attributes: Mapping[str, str]) -> TelemetryHandle:
    """Creates providers and switches spans and metrics on."""
    running = TelemetryHandle()
    resource = _resource(service, attributes)
    meters = MeterProvider(
        metric_readers=[
            PeriodicExportingMetricReader(_metric_exporter(exporter, wanted.metrics))
            for exporter in wanted.metrics.exporters
        ],
        resource=resource,
        shutdown_on_exit=False,
        exemplar_filter=_exemplar_filter(),
    )
    if wanted.traces.exporters:
        # Of the SDK's own metrics only the queue's are needed: its length, and what was dropped.
        os.environ.setdefault("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
        processors = [
            BatchSpanProcessor(
                _span_exporter(exporter, wanted.traces, resource),
                meter_provider=meters,
                **_batch_options(os.environ),
            )
            for exporter in wanted.traces.exporters
        ]
        running.stops += [
            partial(shut_down_spans, processor, STOP_MILLIS) for processor in processors
        ]
        sampler = TracerProvider(shutdown_on_exit=False).sampler  # as the variables say
        tracing.set_backend(OpenTelemetryBackend(sampler, span_recorder(processors)))
    if wanted.metrics.exporters:
        metrics.set_backend(OpenTelemetryMetrics(meters.get_meter("trinity")))
        running.stops.append(lambda: meters.shutdown(timeout_millis=STOP_MILLIS))
    return running


def _batch_options(environment: Mapping[str, str]) -> dict[str, int]:
    """Returns the batch settings: every second, unless the variables set any of them.

    The SDK's default, whenever 512 spans are queued, coincides with the end of a step's runs, when
    everything else is busy.
    """
    return {} if any(name in environment for name in BATCH_VARIABLES) else dict(BATCH_OPTIONS)


def span_recorder(processors: Sequence[SpanProcessor]) -> Record:
    """Returns a function that passes a span to each processor, unconverted until its export."""

    def record(span: OpenTelemetrySpan) -> None:
        for processor in processors:
            processor.on_end(cast(ReadableSpan, span))

    return record


def _exemplar_filter() -> ExemplarFilter | None:
    """Disables exemplars, a third of a measurement's cost, unless the standard variable is set."""
    asked = os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER")
    return None if asked else AlwaysOffExemplarFilter()


def _resource(service: str, attributes: Mapping[str, str]) -> Resource:
    """Builds the resource; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    own = {
        "service.name": service,
        "service.namespace": NAMESPACE,
        "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
        names.RL_SYSTEM: NAMESPACE,
        **attributes,
    }
    given = Resource.create()
    chosen = {k: v for k, v in given.attributes.items() if k not in own or _is_given(k)}
    return Resource(own).merge(Resource(chosen))


def _is_given(name: str) -> bool:
    if name == "service.name" and os.environ.get("OTEL_SERVICE_NAME"):
        return True
    listed = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return name in {pair.partition("=")[0].strip() for pair in listed.split(",")}


def _span_exporter(name: str, signal: ExportConfig, resource: Resource) -> SpanExporter:
    if name == "console":
        return ReadableExporter(ConsoleSpanExporter(out=sys.stderr), resource)
    with _RequirePackage(signal.protocol):
        if signal.protocol == "grpc":
            from trinity.runtime.telemetry.sdk_spans import GrpcSpanExporter

            return GrpcSpanExporter(resource)
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_traces

        return ReadableExporter(http_traces.OTLPSpanExporter(), resource)


def _metric_exporter(name: str, signal: ExportConfig) -> MetricExporter:
    if name == "console":
        return ConsoleMetricExporter(out=sys.stderr)
    with _RequirePackage(signal.protocol):
        if signal.protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc import metric_exporter as grpc_metrics

            return grpc_metrics.OTLPMetricExporter()
        from opentelemetry.exporter.otlp.proto.http import metric_exporter as http_metrics

        return http_metrics.OTLPMetricExporter()


class _RequirePackage:
    """Raises a UserError that names the missing package."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, ImportError):
            kind = "grpc" if self._protocol == "grpc" else "http"
            raise UserError(
                f"OTLP over {self._protocol} needs the package opentelemetry-exporter-otlp-proto-"
                f"{kind}: install the extra `telemetry`, or choose another "
                "OTEL_EXPORTER_OTLP_PROTOCOL"
            ) from error
