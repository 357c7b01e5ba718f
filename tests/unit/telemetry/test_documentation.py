"""The page on observability names every span and every metric, with what it is."""

from pathlib import Path

from trinity.runtime.telemetry import metrics, names

PAGE = (Path(__file__).resolve().parents[3] / "docs/observability.md").read_text()
SPANS = {
    names.TASK,
    names.LEASE,
    names.SAMPLE,
    names.PUBLISH,
    names.SEND,
    names.PROCESS,
    names.STORE,
    names.PIPELINE,
    names.BATCH,
    names.LOOP,
    names.TRAIN,
    names.SYNC,
    names.LOAD,
    names.CHECKPOINT,
}


def test_every_metric_is_described() -> None:
    assert metrics.SAMPLE_SECONDS.name in metrics.INSTRUMENTS
    for one in metrics.INSTRUMENTS.values():
        kind = "gauge" if one.kind == "observed" else one.kind
        assert f"| `{one.name}` | {kind} | {one.unit} | {one.description} |" in PAGE


def test_every_span_is_described() -> None:
    assert not [name for name in SPANS if f"`{name}`" not in PAGE]
