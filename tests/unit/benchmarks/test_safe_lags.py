"""What the documentation promises about old rollouts is what was measured."""

import json
from pathlib import Path

import pytest

from trinity.algorithm.types import ALGORITHM_TYPES

RESULTS = Path(__file__).parents[3] / "benchmarks/results"
MEASURED = {
    name: trial
    for file in ("algorithms.json", "algorithms_newer.json")
    for name, trial in json.loads((RESULTS / file).read_text())["trials"].items()
}
OF_ROLLOUTS = [
    name for name in ALGORITHM_TYPES.builtins if ALGORITHM_TYPES.get(name).schema == "experience"
]


@pytest.mark.parametrize("name", OF_ROLLOUTS)
def test_the_declared_safe_lag_is_the_measured_one(name: str) -> None:
    measured = MEASURED[name]["safe_lag"] if name in MEASURED else ""
    assert ALGORITHM_TYPES.get(name).safe_lag.split(";")[0] == measured
