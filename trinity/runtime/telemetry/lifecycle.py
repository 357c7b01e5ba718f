"""Switches telemetry on at the start of a process and off at its end."""

import logging
import os
from collections.abc import Mapping
from typing import Protocol

from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, tracing
from trinity.runtime.telemetry.environment import telemetry_config

logger = logging.getLogger(__name__)


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
        from trinity.runtime.telemetry.exporting import set_up
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
