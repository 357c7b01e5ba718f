"""The example of an operator of one's own does what its README says, in fewer than 40 lines."""

from pathlib import Path

import numpy as np
import pytest

from examples.custom_operator.terse import terse
from trinity.algorithm.advantage.samples import Samples
from trinity.config.load import load_config
from trinity.config.planning import plan_experiment
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Rollouts

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "custom_operator"


def test_it_is_short() -> None:
    assert len((EXAMPLE / "terse.py").read_text().splitlines()) < 40
    assert len((EXAMPLE / "README.md").read_text().splitlines()) <= 13


def test_of_two_right_answers_the_shorter_is_better() -> None:
    samples = Samples.of_groups([1.0, 1.0, 0.0], [0.0, 0.0], [1.0])
    lengths_N = np.array([5, 3, 1, 2, 9, 4])
    changes = terse(Rollouts.of(samples, response_lengths=lengths_N), price=0.1)
    assert changes.rewards is not None
    np.testing.assert_allclose(changes.rewards, [0.8, 1.0, 0.0, 0.0, 0.0, 1.0])
    assert changes.metrics["extra_token_count"].tolist() == [2.0, 0.0, 0.0]
    assert changes.left_out is None and OPERATORS.get("terse") is terse


def test_its_arguments_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stage = plan_experiment(load_config(EXAMPLE / "custom_operator.yaml")).stages[1]
    first, second = stage.operators
    assert first.name == "dapo_dynamic_sampling"
    assert (second.name, second.args) == ("examples.custom_operator.terse.terse", {"price": 0.1})
