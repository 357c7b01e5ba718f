"""Starts and stops telemetry as the standard `OTEL_*` variables ask, without OpenTelemetry."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trinity.errors import UserError
from trinity.telemetry import metrics, tracing

logger = logging.getLogger(__name__)


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
    if not value and (
        environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or environment.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
    ):
        value = "otlp"
    exporters = tuple(
        exporter_name.strip()
        for exporter_name in value.split(",")
        if exporter_name.strip() not in ("", "none")
    )
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


class _Running(Protocol):
    def stop(self) -> None: ...


_running: _Running | None = None


def start(service: str, attributes: Mapping[str, str] | None = None) -> None:
    """Starts the telemetry that the OTEL_* variables request; does nothing without them.

    Raises: UserError when they request something that is not known or not installed.
    """
    global _running
    asked = telemetry_config(os.environ)
    if not asked.anything or _running is not None:
        return
    try:
        from trinity.telemetry.exporting import set_up
    except ImportError as error:
        raise UserError(
            "OTEL_* variables ask for telemetry, which needs OpenTelemetry: install the extra "
            f"`telemetry`, or set OTEL_SDK_DISABLED=true ({error})"
        ) from error
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    _running = set_up(asked, service, attributes or {})
    logger.info(
        "telemetry is on",
        extra={
            "traces": ",".join(asked.traces.exporters) or "none",
            "metrics": ",".join(asked.metrics.exporters) or "none",
        },
    )


def stop() -> None:
    """Flushes for some seconds at most; errors are only logged."""
    global _running
    running, _running = _running, None
    if running is None:
        return
    try:
        running.stop()
    except Exception:  # a failing flush must not fail the process
        logger.exception("telemetry was not sent completely")
    finally:
        tracing.set_backend(None)
        metrics.set_backend(None)
