"""What the buffer's benchmark says follows from its figures."""

import pytest

from benchmarks.buffer.__main__ import ROWS, as_json, print_table

OURS = {"publish_16k": [4000.0, 6000.0, 5500.0], "wake_ms": [4.0], "way_ms": [20.0]}


def test_ratios_above_one_say_that_we_are_ahead_whichever_way_the_figure_goes() -> None:
    raw = {"publish_16k": [11_000.0], "wake_ms": [1.0]}
    record = as_json(OURS, raw)
    rows = record["rows"]
    assert isinstance(rows, dict)
    assert rows["publish_16k"]["median"] == 5500.0
    assert rows["publish_16k"]["holds"]
    assert rows["publish_16k"]["raw"] == {"median": 11_000.0, "ratio": 0.5, "runs": [11_000.0]}
    assert rows["wake_ms"]["raw"]["ratio"] == 0.25
    assert record["further"] == {"way_ms": [20.0]}


def test_every_run_of_every_figure_is_recorded_and_raw_ones_too() -> None:
    runs = {row.name: [3.0, 1.0, 5.0, 2.0, 4.0] for row in ROWS}
    rows = as_json(runs, runs)["rows"]
    assert isinstance(rows, dict)
    for row in rows.values():
        assert row["median"] == row["raw"]["median"] == 3.0
        assert row["runs"] == row["raw"]["runs"] == [3.0, 1.0, 5.0, 2.0, 4.0]


def test_the_lowest_and_the_highest_run_stand_beside_a_median(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(as_json({"awaited_1": [180.0, 140.0, 250.0]}, {"awaited_1": [200.0]}))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "awaited" in line)
    assert [cell.strip() for cell in line.split("│")[2:-1]] == [
        *("180", "140 to 250", "200", "NO", "200 (0.90)")
    ]
