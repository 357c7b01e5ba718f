"""A reference that moves is a moving average of the policy, and part of a checkpoint."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.trainer.learners import (
    Build,
    assert_same,
    state_of,
    stepped,
    weights_of,
)
from tests.unit.trainer.builders import make_plan, random_batch
from trinity.config.plan.stage_plan import StagePlan

if TYPE_CHECKING:
    from services.trainer.learner.learner import Learner


def plan_of(model: Path, interval: int, decay: float, **trainer: object) -> StagePlan:
    """A stage whose policy is held at its reference."""
    algorithm = {
        "algorithm_type": "grpo",
        "repeat_times": 4,
        "kl_loss_fn": "k2",
        "kl_loss_fn_args": {"kl_coef": 0.1},
        "reference_interval": interval,
        "reference_decay": decay,
    }
    return make_plan(model, algorithm, trainer)


def step_of(learner: "Learner", step: int) -> dict[str, float]:
    return stepped(learner, random_batch(8, seed=step, step=step))


def references_of(learner: "Learner") -> dict[str, np.ndarray]:
    return {
        name.removeprefix("reference/"): value
        for name, value in state_of(learner).items()
        if name.startswith("reference/")
    }


def test_it_moves_a_share_of_the_way_every_so_many_steps(learner_of: Build, model: Path) -> None:
    learner = learner_of(plan_of(model, interval=2, decay=0.75))
    start = weights_of(learner)
    step_of(learner, 1)
    found = references_of(learner)
    assert all(np.array_equal(found[name], start[name]) for name in start), "not yet"
    step_of(learner, 2)
    found, policy = references_of(learner), weights_of(learner)
    for name in start:
        np.testing.assert_allclose(found[name], 0.75 * start[name] + 0.25 * policy[name], atol=1e-7)
        assert not np.array_equal(found[name], start[name])
    kept = found
    step_of(learner, 3)
    assert_same(references_of(learner), kept)


def test_without_decay_a_step_is_compared_with_the_policy_before_it(
    learner_of: Build, model: Path
) -> None:
    following = learner_of(plan_of(model, interval=1, decay=0.0))
    still = learner_of(plan_of(model, interval=0, decay=0.0))
    for step in (1, 2):
        divergences = [step_of(learner, step)["actor/kl"] for learner in (following, still)]
    assert divergences[0] == 0.0 < divergences[1]


def test_it_goes_on_bit_for_bit(learner_of: Build, model: Path, tmp_path: Path) -> None:
    plan = plan_of(model, interval=1, decay=0.5)
    learner, restored = learner_of(plan), learner_of(plan)
    step_of(learner, 1)
    learner.save(tmp_path, 1)
    restored.load(tmp_path)
    assert_same(state_of(restored), state_of(learner))
    for going in (learner, restored):
        step_of(going, 2)
    assert_same(state_of(restored), state_of(learner))
    forgetful = learner_of(plan)
    (tmp_path / "reference").rename(tmp_path / "elsewhere")
    forgetful.load(tmp_path)
    step_of(forgetful, 2)
    assert not np.array_equal(
        state_of(forgetful)["reference/model.norm.weight"],
        state_of(learner)["reference/model.norm.weight"],
    ), "the weights of the reference count"


def test_one_that_has_not_moved_yet_begins_where_the_stage_began(
    learner_of: Build, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    still, moving = (learner_of(plan_of(model, interval, 0.0)) for interval in (0, 1))
    start = references_of(moving)
    step_of(still, 1)
    still.save(tmp_path, 1)
    with caplog.at_level(logging.WARNING):
        moving.load(tmp_path)
    assert "the reference begins to move from the model" in caplog.text
    assert_same(references_of(moving), start)


def test_it_is_kept_in_single_precision(learner_of: Build, model: Path) -> None:
    """A thousandth of a change is nothing in bfloat16."""
    plan = plan_of(model, interval=1, decay=0.999, dtype="bfloat16")
    learner = learner_of(plan)
    start = references_of(learner)
    step_of(learner, 1)
    assert any(not np.array_equal(references_of(learner)[name], start[name]) for name in start)
    assert {value.dtype for value in start.values()} == {np.dtype("float32")}
