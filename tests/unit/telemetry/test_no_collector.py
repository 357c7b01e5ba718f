"""Without anybody to send to, nothing waits, nothing grows, and a process ends in time."""

import os
import subprocess
import sys

PROGRAM = """
from trinity.runtime.telemetry import lifecycle, metrics, tracing
lifecycle.start("trinity-test")
for number in range(5_000):
    with tracing.span("span", attributes={"number": number}):
        metrics.SAMPLE_SECONDS.record(0.1)
[processor] = tracing._tracer._tracer.span_processor._span_processors
kept = len(processor._batch_processor._queue)
lifecycle.stop()
print(kept)
"""


def test_a_collector_that_is_not_there_costs_nothing_but_spans() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ
        | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
            "OTEL_BSP_MAX_QUEUE_SIZE": "1000",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "500",
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert int(done.stdout) <= 1000
