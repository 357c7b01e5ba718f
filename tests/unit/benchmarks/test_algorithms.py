"""Whether an algorithm learns is told from noise, and old rollouts from safe ones."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.algorithms.judge import TrialVerdict, safe_lag, verdicts
from benchmarks.algorithms.outcome import TrialRun
from benchmarks.algorithms.results import Results
from benchmarks.algorithms.run import wanted
from benchmarks.algorithms.trials import NOT_TRIED, all_trials
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.errors import UserError

START = 0.7


def a_run(end: float, *, trial: str = "grpo", lag: int = 0, seed: int = 1) -> TrialRun:
    run = TrialRun(trial=trial, lag=lag, seed=seed, num_steps=40, start=START)
    run.accuracies[40] = end
    return run


def a_verdict(ends: Sequence[float]) -> TrialVerdict:
    return TrialVerdict.of([a_run(end, seed=seed) for seed, end in enumerate(ends)])


@pytest.mark.parametrize(
    ("ends", "learns"),
    [
        ([0.9, 0.91, 0.92], True),
        ([0.7, 0.7, 0.7], False),
        ([0.71, 0.72, 0.72], False),  # within what 1024 problems can tell
        ([0.95, 0.95, 0.55], False),  # one seed fell
        ([0.5, 0.5, 0.5], False),
    ],
)
def test_learning_is_a_gain_of_more_than_twice_the_noise(
    ends: Sequence[float], learns: bool
) -> None:
    assert a_verdict(ends).learns is learns


@pytest.mark.parametrize(
    ("ends", "safe"),
    [
        ({0: 0.9, 4: 0.9}, "4 or more"),
        ({0: 0.9, 1: 0.9, 2: 0.9, 4: 0.6, 8: 0.9}, "2 (addition)"),
        ({0: 0.9, 1: 0.6, 2: 0.6, 4: 0.6, 8: 0.6}, "0 (addition)"),
        ({0: 0.6, 4: 0.6}, "none (addition)"),
        ({0: 0.9}, ""),
        ({4: 0.9, 8: 0.6}, "4 (addition)"),
    ],
)
def test_the_safe_lag_is_the_largest_below_any_that_fails(
    ends: dict[int, float], safe: str
) -> None:
    found = verdicts([a_run(end, lag=lag) for lag, end in ends.items()])
    assert safe_lag("grpo", found) == safe


def test_every_algorithm_type_is_tried_as_it_stands() -> None:
    assert set(ALGORITHM_TYPES.names()) - set(NOT_TRIED) <= set(all_trials())


def test_corrections_and_data_are_run_where_they_mean_something() -> None:
    trials = [all_trials()[name] for name in ("grpo", "sft", "grpo, tis")]
    assert list(wanted(trials, [0, 4], [1])) == [
        ("grpo", 0, 1),
        ("sft", 0, 1),
        ("grpo", 4, 1),
        ("grpo, tis", 4, 1),
    ]


@pytest.mark.parametrize(
    ("name", "is_corrected"),
    [
        ("grpo", True),
        ("opmd", False),
        ("opmd, tis", True),
        ("grpo, seq_mis", True),
        ("grpo, geo_rs", False),  # leaves rows out, weighs none
    ],
)
def test_a_correction_is_a_weight_by_who_made_the_tokens(name: str, is_corrected: bool) -> None:
    assert all_trials()[name].is_corrected is is_corrected


def test_what_was_noted_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [a_run(0.9, seed=1), a_run(0.8, seed=2)]
    for run in runs:
        Results(path).add(run)
    assert list(Results(path).runs.values()) == runs


def test_runs_of_another_warm_start_are_not_mixed_in(tmp_path: Path) -> None:
    results = Results(tmp_path / "runs.jsonl")
    results.add(a_run(0.9, seed=1))
    with pytest.raises(UserError, match="--results"):
        results.add(replace(a_run(0.9, seed=2), start=0.6))
    assert len(Results(tmp_path / "runs.jsonl").runs) == 1
