"""Off, nothing of OpenTelemetry is imported, and nothing is kept."""

import os
import subprocess
import sys

import pytest

from trinity.errors import UserError
from trinity.runtime.telemetry import metrics, tracing
from trinity.runtime.telemetry.grpc import traced_channel
from trinity.runtime.telemetry.lifecycle import SIGNALS, ExportConfig, export_config

PROGRAM = """
import sys
import services.buffer.__main__, services.explorer.__main__, services.explorer.control.explorer
import services.synchronizer.__main__, services.trainer.__main__, services.trainer.telemetry
from trinity.runtime.telemetry import lifecycle
lifecycle.start("trinity-test")
lifecycle.stop()
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_off_means_that_nothing_is_imported(variables: dict[str, str]) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_spans_that_are_off_are_one_and_the_same() -> None:
    assert not tracing.is_on()
    with tracing.span("a", attributes={"x": 1}) as span:
        span.set("y", 2)
        assert tracing.current() is None
    assert tracing.span("b") is span is tracing.NO_SPAN
    assert (span.traceparent, tracing.record_span("c", begun_ns=0), tracing.headers()) == (
        "",
        "",
        {},
    )


def test_observers_of_figures_that_are_off_are_not_kept() -> None:
    metrics.OUTBOX_RESULTS.register_callback(lambda: [(1.0, {})])
    assert not metrics.OUTBOX_RESULTS._observers


def test_a_channel_is_left_as_it_is() -> None:
    channel = object()
    assert traced_channel(channel) is channel


def test_an_endpoint_or_an_exporter_switches_signals_on() -> None:
    both = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4317"}
    assert [export_config(both, signal) for signal in SIGNALS] == [
        ExportConfig(exporters=("otlp",), protocol="grpc")
    ] * 2
    one = {"OTEL_TRACES_EXPORTER": "otlp,console", "OTEL_METRICS_EXPORTER": "none"}
    assert [export_config(one, signal).exporters for signal in SIGNALS] == [
        ("otlp", "console"),
        (),
    ]
    own = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }
    assert [export_config(own, signal) for signal in SIGNALS] == [
        ExportConfig(exporters=("otlp",), protocol="http/protobuf"),
        ExportConfig(),
    ]


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not known"),
        (
            {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/json is not known",
        ),
    ],
)
def test_what_is_not_known_is_said(variables: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        [export_config(variables, signal) for signal in SIGNALS]
