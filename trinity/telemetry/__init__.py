"""Tracing and metrics by OpenTelemetry, switched on by its standard `OTEL_*` variables.

Off, nothing of OpenTelemetry is imported and every call here is one look at a global. On, nothing
here waits, raises or grows: spans go to a bounded queue that drops, and the drops are counted.
"""

from trinity.telemetry.lifecycle import start, stop

__all__ = ["start", "stop"]
