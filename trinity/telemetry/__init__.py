"""Tracing and metrics by OpenTelemetry, switched on by its standard `OTEL_*` variables.

When off, nothing of OpenTelemetry is imported and every call here checks one global. When on, no
call here waits, raises or accumulates: spans go to a bounded queue that drops, and drops are
counted.
"""

from trinity.telemetry.lifecycle import start, stop

__all__ = ["start", "stop"]
