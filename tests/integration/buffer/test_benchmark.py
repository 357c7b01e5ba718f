"""The parts of the buffer's benchmark run, at a size that means nothing."""

import pytest

from benchmarks.buffer.__main__ import ROWS, measure
from benchmarks.buffer.made import SMALLEST


@pytest.mark.thorough
async def test_every_row_of_the_table_is_measured() -> None:
    own, raw = await measure(SMALLEST, num_runs=1)
    assert {row.name for row in ROWS} <= own.keys()
    assert all(value > 0 for values in (*own.values(), *raw.values()) for value in values)
    assert raw.keys() >= {"lease_2k_ms", "lease_64k_ms", "publish_16k"}
    assert own["stopped_seconds"][0] >= SMALLEST.load_seconds
