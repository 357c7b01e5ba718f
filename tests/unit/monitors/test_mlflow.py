"""What MLflow is sent is what it takes: one figure that it refuses would hold up all others."""

import posixpath

import pytest

from tests.unit.subtests import as_subtests
from trinity.run.monitors.mlflow import LONGEST_NAME, metric_name

ODD_NAMES = [
    "",
    ".",
    "..",
    "/",
    "/rollout/format",
    "rollout/format//mean",
    "rollout/./mean",
    "rollout/../../mean",
    "rollout/format/",
    "rollout/Is it polite?\nAnd short, e.g. one line/mean",
    "rollout/" + "Does the answer name every step? " * 20,
    "rollout/" + "../" * 200,
    "/" * 500,
    "a/" * 200,
    "rollout/\u7b54\u6848" * 100,
]


@as_subtests("name", ODD_NAMES)
def test_any_name_becomes_one_that_mlflow_takes(name: str) -> None:
    shown = metric_name(name)
    assert 0 < len(shown) <= LONGEST_NAME
    assert posixpath.normpath(shown) == shown
    assert not shown.startswith(("/", ".."))
    assert metric_name(shown) == shown


def test_names_that_are_cut_keep_apart() -> None:
    rubric = "rollout/" + "Does the answer name every step? " * 20
    assert metric_name(f"{rubric}/mean") != metric_name(f"{rubric}/max")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("rollout/reward/mean", "rollout/reward/mean"),
        ("eval/held_out/accuracy/mean@4", "eval/held_out/accuracy/mean_at_4"),
        ("rollout/format//mean", "rollout/format/mean"),
    ],
)
def test_names_stay_readable(name: str, shown: str) -> None:
    assert metric_name(name) == shown
