"""The example of an operator of one's own does what its README says, in fewer than 40 lines."""

from pathlib import Path

import numpy as np
import pytest

from examples.custom_operator.near_miss import near_miss
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Content, Rollouts

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "custom_operator"


def test_it_is_short() -> None:
    assert len((EXAMPLE / "near_miss.py").read_text().splitlines()) < 40
    assert len((EXAMPLE / "README.md").read_text().splitlines()) <= 13


def test_a_wrong_sum_is_worth_its_right_digits() -> None:
    said = ["139", "129", "9", "", "1399"]
    contents = [
        Content(prompt_text="<|user|>56+83=<|end|>", response_text=one, info={}, metrics={})
        for one in said
    ]
    samples = Samples.of_groups([1.0, 0.0, 0.0], [0.0, 0.0])
    changes = near_miss(Rollouts.of(samples, contents=contents), bonus=0.3)
    assert changes.rewards is not None
    np.testing.assert_allclose(changes.rewards, [1.0, 0.2, 0.0, 0.0, 0.3])
    assert changes.metrics["near_miss_count"].tolist() == [1.0, 1.0]
    assert changes.left_out is None and OPERATORS.get("near_miss") is near_miss
    assert needs_of(near_miss, {}).content


def test_its_arguments_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stage = plan_experiment(load_config(EXAMPLE / "custom_operator.yaml")).stages[1]
    first, second = stage.operators
    path = "examples.custom_operator.near_miss.near_miss"
    assert (first.name, first.args) == (path, {"bonus": 0.2})
    assert (second.name, second.args) == ("reward_std_filter", {"threshold": 0.0})
