"""What the buffer's benchmark says follows from its figures."""

from benchmarks.buffer.report import Figures, as_json

OURS = {"publish_16k": [4000.0, 6000.0, 5500.0], "wake_ms": [4.0], "way_ms": [20.0]}


def test_ratios_above_one_say_that_we_are_ahead_whichever_way_the_figure_goes() -> None:
    raw = {"publish_16k": [11_000.0], "wake_ms": [1.0]}
    peers: dict[str, Figures | str] = {
        "ray": {"wake_ms": [8.0]},
        "transfer_queue": "cannot be installed",
    }
    record = as_json(OURS, raw, peers)
    rows = record["rows"]
    assert isinstance(rows, dict)
    assert rows["publish_16k"]["median"] == 5500.0
    assert rows["publish_16k"]["holds"]
    assert rows["publish_16k"]["raw"] == {"median": 11_000.0, "ratio": 0.5}
    assert rows["wake_ms"]["ray"] == {"median": 8.0, "ratio": 2.0}
    assert rows["wake_ms"]["raw"]["ratio"] == 0.25
    assert record["not_measured"] == {"transfer_queue": "cannot be installed"}
    assert record["further"] == {"way_ms": [20.0]}
