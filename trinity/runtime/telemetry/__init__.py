"""Tracing and metrics by OpenTelemetry, switched on by its standard `OTEL_*` variables.

`lifecycle.start` switches them on. When off, OpenTelemetry is not imported and every call here
checks one global. When on, no call here waits, raises or accumulates: spans go to a bounded queue
that drops, and drops are counted. This package itself has no imports: logs need `tracing` alone, in
short commands too.
"""
