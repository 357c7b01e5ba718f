"""The safe lags of the documentation are the worst that were measured on any task."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.algorithms.judge import SafeLag
from benchmarks.algorithms.tasks import TASKS
from trinity.algorithm.types import ALGORITHM_TYPES

RESULTS = Path(__file__).parents[3] / "benchmarks/results"
NUM_SEEDS = 3


def measured() -> Iterator[tuple[str, SafeLag]]:
    """Yields the safe lag of each trial on each task."""
    for file in ("algorithms.json", "algorithms_newer.json"):
        for name, trial in json.loads((RESULTS / file).read_text())["trials"].items():
            learns = {int(lag): verdict["learns"] for lag, verdict in trial["lags"].items()}
            yield name, SafeLag.of("addition", learns)
    for task in TASKS:
        by_trial: dict[str, dict[int, bool]] = {}
        for area in json.loads((RESULTS / f"algorithms_{task}.json").read_text())["areas"]:
            if len(area["areas"]) >= NUM_SEEDS:
                for name in area["trials"]:
                    by_trial.setdefault(name, {})[area["lag"]] = area["learns"]
        for name, learns in by_trial.items():
            yield name, SafeLag.of(task, learns)


def test_a_declared_safe_lag_is_the_worst_measured_one() -> None:
    worst: dict[str, SafeLag] = {}
    for name, of_task in measured():
        worst[name] = min(of_task, worst.get(name, of_task))
    of_rollouts = {
        name: ALGORITHM_TYPES.get(name).safe_lag
        for name in ALGORITHM_TYPES.builtins
        if ALGORITHM_TYPES.get(name).schema == "experience"
    }
    assert {name: text.split(";")[0] for name, text in of_rollouts.items()} == {
        name: str(worst.get(name, "")) for name in of_rollouts
    }


def test_one_task_limits_the_lag_of_all() -> None:
    easy = SafeLag.of("addition", {0: True, 4: True})
    hard = SafeLag.of("carries", {0: True, 1: True, 4: False, 8: True})
    assert str(min(easy, hard)) == "1 (carries)"
    assert str(SafeLag.of("carries", {0: False})) == "none (carries)"
    assert str(min(easy, SafeLag.of("edits", {0: True, 8: True}))) == "4 or more"
