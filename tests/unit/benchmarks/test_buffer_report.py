"""What the buffer's benchmark says follows from its figures."""

import pytest

from benchmarks.buffer.__main__ import ROWS, Figures, as_json, print_table

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
    assert rows["publish_16k"]["raw"] == {"median": 11_000.0, "ratio": 0.5, "runs": [11_000.0]}
    assert rows["wake_ms"]["ray"] == {"median": 8.0, "ratio": 2.0, "runs": [8.0]}
    assert rows["wake_ms"]["raw"]["ratio"] == 0.25
    assert record["not_measured"] == {"transfer_queue": "cannot be installed"}
    assert record["further"] == {"way_ms": [20.0]}


def test_every_run_of_every_figure_is_recorded_raw_and_peers_too() -> None:
    runs = {row.name: [3.0, 1.0, 5.0, 2.0, 4.0] for row in ROWS}
    rows = as_json(runs, runs, {"ray": runs})["rows"]
    assert isinstance(rows, dict)
    for row in rows.values():
        assert row["median"] == row["raw"]["median"] == row["ray"]["median"] == 3.0
        assert row["runs"] == row["raw"]["runs"] == row["ray"]["runs"] == [3.0, 1.0, 5.0, 2.0, 4.0]


def test_the_lowest_and_the_highest_run_stand_beside_a_median(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(as_json({"growth": [0.9, 0.7, 1.25]}, {"growth": [1.0]}, {}), [])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "1,000,000" in line)
    assert [cell.strip() for cell in line.split("│")[2:-1]] == [
        *("0.9", "0.7 to 1.25", "0.9", "yes", "1 (0.90)")
    ]
