"""Switches telemetry on at the start of a process, as the standard `OTEL_*` variables ask."""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, tracing

logger = logging.getLogger(__name__)
EXPORTERS = ("otlp", "console", "none")
PROTOCOLS = ("grpc", "http/protobuf")
PROMETHEUS = "prometheus"
"""The reader behind an address that is scraped; a setting asks for it, no `OTEL_*` variable."""
DEFAULT_PROTOCOL = "grpc"
Signal = Literal["TRACES", "METRICS"]
SIGNALS: tuple[Signal, Signal] = ("TRACES", "METRICS")
_stop: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """The destinations of spans or of metrics."""

    exporters: tuple[str, ...] = ()
    protocol: str = DEFAULT_PROTOCOL


def export_config(environment: Mapping[str, str], name: Signal) -> ExportConfig:
    """Returns where a signal is to be exported: nowhere unless an exporter or endpoint is named.

    Raises: UserError naming the variable whose value is not known here.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ExportConfig()
    exporter = f"OTEL_{name}_EXPORTER"
    value = environment.get(exporter, "").strip()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
    if not value and any(environment.get(variable) for variable in endpoints):
        value = "otlp"
    names = (part.strip() for part in value.split(","))
    exporters = tuple(part for part in names if part not in ("", "none"))
    for exporter_name in exporters:
        _check(exporter, exporter_name, EXPORTERS)
    own = f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL"
    chosen = own if environment.get(own) else "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(chosen, "").strip() or DEFAULT_PROTOCOL
    if "otlp" in exporters:
        _check(chosen, protocol, PROTOCOLS)
    return ExportConfig(exporters=exporters, protocol=protocol)


def _check(variable: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{variable}={value} is not known: use one of {', '.join(known)}")


def start(
    service: str,
    attributes: Mapping[str, str] | None = None,
    *,
    port: int = 0,
    scraped: bool = False,
) -> None:
    """Starts the telemetry that the OTEL_* variables request, if any, and that which is scraped.

    `port` tells the processes of a host apart where it is not 0.

    Raises: UserError when they request something that is not known or not installed.
    """
    global _stop
    spans, values = (export_config(os.environ, name) for name in SIGNALS)
    if scraped:
        if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
            raise UserError(
                "OTEL_SDK_DISABLED=true switches off the metrics that METRICS_LISTEN of this "
                "service is to serve: unset one of them"
            )
        values = replace(values, exporters=(*values.exporters, PROMETHEUS))
    if not (spans.exporters or values.exporters) or _stop is not None:
        return
    try:
        from trinity.runtime.telemetry.sdk import set_up

        stopping = set_up(spans, values, service, attributes or {}, port)
    except ImportError as error:
        raise UserError(
            "OTEL_* variables or METRICS_LISTEN ask for telemetry, which needs OpenTelemetry: run "
            f"`trinity setup telemetry`, or unset them ({error})"
        ) from error
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    _stop = stopping
    logger.info(
        "telemetry is on",
        extra={
            "traces": ",".join(spans.exporters) or "none",
            "metrics": ",".join(values.exporters) or "none",
        },
    )


def stop() -> None:
    """Flushes for some seconds at most; errors are only logged."""
    global _stop
    stopping, _stop = _stop, None
    if stopping is None:
        return
    try:
        stopping()
    except Exception:  # a failing flush must not fail the process
        logger.exception("telemetry was not sent completely")
    finally:
        tracing.set_tracer(None)
        metrics.set_meter(None)
