"""Reads the standard `OTEL_*` variables, without OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.errors import UserError

EXPORTERS = ("otlp", "console")

PROTOCOLS = ("grpc", "http/protobuf")

DEFAULT_PROTOCOL = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """The destinations of spans or of metrics."""

    exporters: tuple[str, ...] = ()
    protocol: str = DEFAULT_PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """The telemetry that a process is to export."""

    traces: ExportConfig
    metrics: ExportConfig

    @property
    def anything(self) -> bool:
        """True if there is something to set up."""
        return bool(self.traces.exporters or self.metrics.exporters)


def telemetry_config(environment: Mapping[str, str]) -> TelemetryConfig:
    """Returns the requested telemetry: none unless an exporter or an endpoint is named.

    Raises: UserError naming the variable whose value is not known here.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return TelemetryConfig(traces=ExportConfig(), metrics=ExportConfig())
    return TelemetryConfig(
        traces=_signal(environment, "TRACES"), metrics=_signal(environment, "METRICS")
    )


def _signal(environment: Mapping[str, str], name: str) -> ExportConfig:
    exporter = f"OTEL_{name}_EXPORTER"
    value = environment.get(exporter, "").strip()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
    if not value and any(environment.get(variable) for variable in endpoints):
        value = "otlp"
    names = (part.strip() for part in value.split(","))
    exporters = tuple(part for part in names if part not in ("", "none"))
    for exporter_name in exporters:
        _check(exporter, exporter_name, (*EXPORTERS, "none"))
    own = f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL"
    chosen = own if environment.get(own) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(chosen, "").strip() or DEFAULT_PROTOCOL
    if "otlp" in exporters:
        _check(chosen, protocol, PROTOCOLS)
    return ExportConfig(exporters=exporters, protocol=protocol)


def _check(variable: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{variable}={value} is not known: use one of {', '.join(known)}")
